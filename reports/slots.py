"""The state of every slot of the batch over the steps, from the stints of requests in it.

The slot timelines of the terminal and of the report are both drawn from this classification.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from engines.request_table import MISSING, StintRow
from reports.schema import RunFile

IntGrid = NDArray[np.int64]


class SlotState(IntEnum):
    """What a slot does in a step; a busier state has a larger number."""

    IDLE = 0
    HELD = 1  # its request has ended, but its static batch keeps the slot
    SWAPPED = 2  # empty: its request was swapped out and waits
    PREEMPTED = 3  # empty: its request was preempted and waits for recomputation
    DEAD = 4  # its request has ended, but the row is launched until its static batch ends
    PADDING = 5  # the padding before a shorter prompt of a padded batch alone
    TRANSFER = 6  # the KV of its request is being copied from the prefill instance
    PREFILL = 7
    DECODE = 8


class SlotSpan(NamedTuple):
    """A slot in one state from step `begin` to step `end`, both included; steps count from 1."""

    slot: int
    state: SlotState
    begin: int
    end: int


class Stay(NamedTuple):
    stint: StintRow
    prompt_tokens: int
    preempted: bool  # it ended with a preemption, not with the request
    readmitted: int  # the step that admitted the request again; 0: none did
    arrives: bool  # it began with KV from the prefill instance


def slot_spans(record: RunRecord, run: RunFile) -> list[SlotSpan]:
    """The states of every slot except IDLE, which is the rest, in order of admission and slot."""
    stays = _stays(record)
    vacated = SlotState.SWAPPED if run.engine.config.get("on_kv_pressure") == "swap" else SlotState.PREEMPTED
    budget = int(run.engine.config.get("max_num_batched_tokens") or 0) if tail_of(run) is SlotState.DEAD else 0
    spans: list[SlotSpan] = []
    for begin, end, batch_end in _batches(stays):
        batch = stays[begin:end]
        padding = _padding_steps(batch, budget)
        for stay, padded in zip(batch, padding, strict=True):
            spans += _worked(stay, padded)
            if tail_of(run) is not SlotState.IDLE:
                spans.append(SlotSpan(stay.stint.slot, tail_of(run), stay.stint.ended + 1, batch_end))
    spans += _vacated(stays, vacated, len(record.steps))
    return [one for one in spans if one.end >= one.begin]


def num_slots(record: RunRecord) -> int:
    """Slots of the batch; without a ledger those that were used."""
    if len(record.steps):
        first = record.steps[0]
        return int(first["active_slots"] + first["dead_slots"] + first["idle_slots"])
    return max((stint.slot + 1 for row in record.rows for stint in row.stints), default=0)


def tail_of(run: RunFile) -> SlotState:
    """The state of a slot whose request ended before its static batch: dead, held or idle."""
    if run.engine.mode != "static":
        return SlotState.IDLE
    shape = str(run.engine.config.get("static", "padded")).replace("-", "_")
    return {"padded": SlotState.DEAD, "compact_held": SlotState.HELD}.get(shape, SlotState.IDLE)


def slot_counts(spans: Sequence[SlotSpan], slots: int, edges: IntGrid) -> IntGrid:
    """Steps by [slot, column, SlotState]; column c has the steps after edges[c] up to edges[c+1].

    The steps of a span up to x are max(0, x - (begin - 1)) - max(0, x - end); summed over all spans at every edge.
    """
    inside = [one for one in spans if one.slot < slots]
    slot, state, begin, end = np.array(inside, dtype=np.int64).reshape(-1, 4).T
    shape = (slots, len(SlotState), edges.shape[0] + 1)
    number, offset = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for sign, at in ((1, begin - 1), (-1, end)):
        where = (slot, state, np.searchsorted(edges, at))
        np.add.at(number, where, sign)
        np.add.at(offset, where, sign * at)
    reached = (edges * number.cumsum(axis=2)[:, :, :-1]) - offset.cumsum(axis=2)[:, :, :-1]
    counts: IntGrid = np.diff(reached, axis=2).transpose(0, 2, 1).copy()
    counts[:, :, SlotState.IDLE] = np.diff(edges) - counts.sum(axis=2)
    return counts


def _stays(record: RunRecord) -> list[Stay]:
    """In order of admission and slot."""
    row, stints = record.stints()
    nth = np.arange(row.shape[0]) - np.searchsorted(row, row)  # of the stints of its request, from 0
    preempted = nth < record.column("preemptions")[row]
    again = np.append(row[1:] == row[:-1], False) if row.shape[0] else row.astype(np.bool_)
    readmitted = np.where(again, np.append(stints[1:, 1], 0), 0) if row.shape[0] else row
    prompts = record.column("prompt_tokens")[row]
    order = np.lexsort((stints[:, 0], stints[:, 1]))
    arrives = (nth == 0) & (record.column_ns("transfer_asked") != MISSING)[row]
    columns = (prompts[order].tolist(), preempted[order].tolist(), readmitted[order].tolist(), arrives[order].tolist())
    return [Stay(StintRow(*one), *rest) for one, *rest in zip(stints[order].tolist(), *columns, strict=True)]


def _worked(stay: Stay, padded: int) -> list[SlotSpan]:
    stint = stay.stint
    sampled = min(stint.sampled or stint.ended, stint.ended)
    if stay.arrives:  # it decodes in its first step
        first = stint.sampled or stint.ended + 1
        return [
            SlotSpan(stint.slot, SlotState.TRANSFER, stint.admitted, first - 1),
            SlotSpan(stint.slot, SlotState.DECODE, first, stint.ended),
        ]
    return [
        SlotSpan(stint.slot, SlotState.PADDING, stint.admitted, stint.admitted + padded - 1),
        SlotSpan(stint.slot, SlotState.PREFILL, stint.admitted + padded, sampled),
        SlotSpan(stint.slot, SlotState.DECODE, sampled + 1, stint.ended),
    ]


def _batches(stays: Sequence[Stay]) -> list[tuple[int, int, int]]:
    """(begin, end, last step) of each static batch, as indices: static batching admits only into an empty batch, so a
    new one begins with the first stint admitted after all earlier ones have ended."""
    batches: list[tuple[int, int, int]] = []
    start, last = 0, 0
    for at, stay in enumerate(stays):
        if stay.stint.admitted > last and at:
            batches.append((start, at, last))
            start = at
        last = max(last, stay.stint.ended)
    return [*batches, (start, len(stays), last)]


def _padding_steps(batch: Sequence[Stay], budget: int) -> list[int]:
    """Steps in which a row of a padded batch is padding alone: prompts end in the same step, and a step is budget //
    rows columns wide. The first step of a prompt may have padding too; the ledger counts all of it."""
    columns = budget // len(batch) if batch else 0
    if not columns:
        return [0] * len(batch)
    longest = max(one.prompt_tokens for one in batch)
    steps = [(one.stint.sampled or one.stint.ended) - one.stint.admitted for one in batch]
    return [min((longest - one.prompt_tokens) // columns, most) for one, most in zip(batch, steps, strict=True)]


def _vacated(stays: Sequence[Stay], state: SlotState, steps: int) -> list[SlotSpan]:
    """Slots that are empty after a preemption, until the request is admitted again or another one gets the slot."""
    taken: dict[int, int] = {}  # slot -> when it is next taken
    spans = []
    for stay in reversed(stays):
        stint = stay.stint
        if stay.preempted:
            until = min(stay.readmitted or stint.ended, taken.get(stint.slot, steps + 1))
            spans.append(SlotSpan(stint.slot, state, stint.ended + 1, until - 1))
        taken[stint.slot] = stint.admitted
    return spans
