"""Batch: a StepPlan as the flat columns that one forward pass takes, still on the host.

    [ one-token rows, live and dead, by length | longer rows, by their count | all padding tokens ]

The order of tokens inside a step is free: rows of equal shape stand together because attention computes them faster. A
padding token attends to position 0 of the dummy block. A dead row attends to the KV that its slot still holds.

SlotTokens keeps the token that was sampled last in each slot, so a decode step needs no loop over its requests:

    position   0 ............. next
               |<- in KV ->|   fed from `last_token`
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engines.reference import sampling
from engines.scheduling.plan import IntArray, StepPlan, Tables
from engines.scheduling.request import Request

PADDING_ID = 0  # the token that padding and dead rows feed; its value changes no output
NO_ROW = -1
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """Copies of the plan's columns, as its tables may change later. [tokens], [rows] or [samples]."""

    ids: IntArray  # [tokens]; below 0: -1 - slot, for the token that was sampled last in that slot
    positions: IntArray  # [tokens]
    slot_mapping: IntArray  # [tokens] where the KV is written: block * block_size + offset
    tables: Tables  # [rows, blocks up to the longest row's end]
    lengths: IntArray  # [rows] see engines.reference.kernels
    starts: IntArray  # [rows + 1]
    sampled: IntArray  # [samples] index of the token whose logits are sampled, in row order
    sample_slots: IntArray  # [samples] the slot of each sample
    sampling: IntArray  # [5, samples] see engines.reference.sampling.columns

    @property
    def all_single(self) -> bool:
        """Every row is one token."""
        return len(self.ids) == len(self.lengths)

    @property
    def decode_rows(self) -> int:
        """How many rows of one token come first. One behind longer rows is computed as they are."""
        return rows_of_one(self.starts)


def rows_of_one(starts: IntArray) -> int:
    """How many rows of one query come first. starts: [rows + 1]"""
    longer = np.flatnonzero(np.diff(starts) != 1)
    return int(longer[0]) if len(longer) else len(starts) - 1


def flatten(plan: StepPlan, block_size: int, slot_tokens: SlotTokens) -> Batch:
    """Updates `slot_tokens` with the step."""
    slot_tokens.assign(plan)
    rows = _flat_rows(plan, block_size)
    starts = np.zeros(len(rows.counts) + 1, dtype=np.int64)
    np.cumsum(rows.counts, out=starts[1:])
    row = np.repeat(np.arange(len(rows.counts)), rows.counts)  # of each token
    positions = np.maximum((rows.lengths - starts[1:])[row] + np.arange(starts[-1]), 0)
    own_block = rows.tables[row, positions // block_size]
    blocks = np.where(rows.plan_row[row] == NO_ROW, 0, own_block).astype(np.int64)

    live = np.flatnonzero(rows.plan_row != NO_ROW)
    last = np.zeros(len(plan.requests), dtype=np.int64)  # the last flat token of each plan row
    last[rows.plan_row[live]] = starts[live + 1] - 1
    samples = np.flatnonzero(plan.samples)
    ids = _token_ids(plan, last, int(starts[-1]), slot_tokens)
    return Batch(
        ids=ids,
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        tables=rows.tables,
        lengths=rows.lengths,
        starts=starts,
        sampled=last[samples],
        sample_slots=plan.slots[samples],
        sampling=slot_tokens.sample(plan.slots[samples], (plan.starts + plan.counts)[samples]),
    )


def fed(ids: torch.Tensor, last_token: torch.Tensor) -> torch.Tensor:
    """The ids, with those below 0 replaced by the last token of their slot. last_token: [slots + 1]"""
    return torch.where(ids < 0, last_token[(-1 - ids).clamp_(min=0)], ids)


def reached(tables: Tables, lengths: IntArray, block_size: int) -> Tables:
    """The table columns up to the longest row's end, rounded up to a multiple of 16, for which kernels are compiled."""
    blocks = -(-int(lengths.max(initial=1)) // block_size)
    width = -(-blocks // 16) * 16
    out = np.zeros((len(lengths), width), dtype=np.int32)
    out[:, : tables.shape[1]] = tables[:, :width]
    return out


@dataclass(frozen=True, slots=True)
class _FlatRows:
    """Rows as attention sees them, in flat order. All [rows]; see engines.reference.kernels."""

    plan_row: IntArray  # index of the plan's row; NO_ROW for dead and padding rows
    counts: IntArray
    lengths: IntArray
    tables: Tables


def _flat_rows(plan: StepPlan, block_size: int) -> _FlatRows:
    plan_row, counts, lengths, slots = np.arange(len(plan.slots)), plan.counts, plan.starts + plan.counts, plan.slots
    if len(plan.dead_slots) or not counts.all():
        live = np.flatnonzero(counts)
        dead = np.repeat(np.arange(len(plan.dead_slots)), plan.dead_tokens)  # each dead token is a row of its own
        plan_row = np.concatenate((live, np.full(len(dead), NO_ROW)))
        counts = np.concatenate((counts[live], np.ones(len(dead), dtype=np.int64)))
        # A dead row that holds no KV has an empty table: it attends to the dummy block, like padding.
        lengths = np.concatenate((lengths[live], np.maximum(plan.dead_lengths[dead], 1)))
        slots = np.concatenate((slots[live], plan.dead_slots[dead]))
    order = np.lexsort((lengths, counts))
    plan_row, counts, lengths, slots = plan_row[order], counts[order], lengths[order], slots[order]
    blocks = -(-int(lengths.max(initial=1)) // block_size)
    tables = plan.tables[:, :blocks][slots]
    if padding := int(plan.padding.sum()):
        plan_row, counts, lengths = (np.append(c, v) for c, v in ((plan_row, NO_ROW), (counts, padding), (lengths, 1)))
        tables = np.vstack((tables, np.zeros((1, tables.shape[1]), dtype=np.int32)))
    return _FlatRows(plan_row, counts, lengths, tables)


def _token_ids(plan: StepPlan, last: IntArray, num_tokens: int, slot_tokens: SlotTokens) -> IntArray:
    """int64[num_tokens]. See Batch.ids."""
    ids = np.full(num_tokens, PADDING_ID, dtype=np.int64)
    by_slot = slot_tokens.continues(plan)
    ids[last[by_slot]] = slot_tokens.fed[plan.slots[by_slot]]
    for row in np.flatnonzero(~by_slot & (plan.counts > 0)).tolist():
        request, start, count = plan.requests[row], int(plan.starts[row]), int(plan.counts[row])
        assert request.tokens is not None, f"{request} has no token ids: only virtual runs go without"
        ids[last[row] + 1 - count : last[row] + 1] = request.tokens[start : start + count]
        if start + count > request.prompt_tokens + request.output_tokens:  # sampled, and not copied to the host yet
            ids[last[row]] = slot_tokens.fed[plan.slots[row]]
    return ids


class SlotTokens:
    """For each slot: its request, the position it computes next, and the token that was sampled for it last."""

    def __init__(self, num_slots: int, tokens: IntArray | None = None) -> None:
        """tokens: int64[slots], the last sampled token of each, where the device's memory is the host's own."""
        # The id to feed: the token itself, or a reference to the slot (see Batch.ids).
        self.fed: IntArray = np.arange(-1, -1 - num_slots, -1) if tokens is None else tokens
        self._requests: list[Request | None] = [None] * num_slots
        self._next: IntArray = np.full(num_slots, UNKNOWN)
        self._prompt: IntArray = np.zeros(num_slots, dtype=np.int64)  # tokens
        self._sampling: IntArray = np.zeros((sampling.COLUMNS, num_slots), dtype=np.int64)

    def assign(self, plan: StepPlan) -> None:
        """Record which request has which slot. The first call of a step."""
        slots = plan.slots.tolist()
        if [self._requests[slot] for slot in slots] == plan.requests:
            return
        new = [(slot, one) for slot, one in zip(slots, plan.requests, strict=True) if self._requests[slot] is not one]
        for slot, request in new:
            self._requests[slot] = request
        at = [slot for slot, _ in new]
        self._next[at] = UNKNOWN
        self._prompt[at] = [request.prompt_tokens for _, request in new]
        self._sampling[:, at] = sampling.columns([request.sampling for _, request in new], [0] * len(new))

    def continues(self, plan: StepPlan) -> NDArray[np.bool_]:
        """bool[rows]: the row computes one token, the one that was sampled last in its slot."""
        rows: NDArray[np.bool_] = (plan.counts == 1) & (self._next[plan.slots] == plan.starts)
        return rows

    def sample(self, slots: IntArray, ends: IntArray) -> IntArray:
        """Record that these slots sample the token of position `end`. Returns int64[5, rows]: see sampling.columns."""
        self._next[slots] = ends
        columns: IntArray = self._sampling.take(slots, axis=1)  # not [:, slots]: the kernel wants C order
        columns[sampling.OUTPUT_INDEX] = ends - self._prompt[slots]
        return columns
