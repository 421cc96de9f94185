"""Batch: a StepPlan as the flat columns that one forward pass takes, still on the host.

    [ one-token rows, live and dead, by length | longer rows, by their count | all padding tokens ]

The order inside a step is ours to choose: attention likes neighbours of equal shape, and padding tokens are the same
wherever they stand. A padding token attends to position 0 of the dummy block, a dead row to the KV
its seat still holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engines.reference import sampling
from engines.scheduling.plan import IntArray, StepPlan, Tables
from engines.scheduling.request import Request

PADDING_ID = 0  # which token a padding or dead row feeds makes no difference to anybody
NOBODY = -1
NOTHING = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """Copies of what the plan said: its tables may change after this. [tokens], [rows] or [samples]."""

    ids: IntArray  # [tokens]; below 0: -1 - seat, the token that was sampled for that seat last
    positions: IntArray  # [tokens]
    slots: IntArray  # [tokens] where its KV goes: block * block_size + offset
    tables: Tables  # [rows, blocks that are reached]
    lengths: IntArray  # [rows] see engines.reference.kernels
    starts: IntArray  # [rows + 1]
    sampled: IntArray  # [samples] the token whose logits each sampling row wants, in row order
    seats: IntArray  # [samples]
    sampling: IntArray  # [5, samples] see engines.reference.sampling.columns

    @property
    def all_single(self) -> bool:
        """Every row is one token."""
        return len(self.ids) == len(self.lengths)


def flatten(plan: StepPlan, block_size: int, seats: SlotTokens) -> Batch:
    """`seats` learns of the step."""
    seats.meet(plan)
    rows = _flat_rows(plan, block_size)
    starts = np.zeros(len(rows.counts) + 1, dtype=np.int64)
    np.cumsum(rows.counts, out=starts[1:])
    row = np.repeat(np.arange(len(rows.counts)), rows.counts)  # of each token
    positions = np.maximum((rows.lengths - starts[1:])[row] + np.arange(starts[-1]), 0)
    own_block = rows.tables[row, positions // block_size]
    blocks = np.where(rows.plan_row[row] == NOBODY, 0, own_block).astype(np.int64)

    live = np.flatnonzero(rows.plan_row != NOBODY)
    last = np.zeros(len(plan.requests), dtype=np.int64)  # the last flat token of each plan row
    last[rows.plan_row[live]] = starts[live + 1] - 1
    samples = np.flatnonzero(plan.samples)
    ids = _token_ids(plan, last, int(starts[-1]), seats)
    return Batch(
        ids=ids,
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        tables=rows.tables,
        lengths=rows.lengths,
        starts=starts,
        sampled=last[samples],
        seats=plan.slots[samples],
        sampling=seats.sample(plan.slots[samples], (plan.starts + plan.counts)[samples]),
    )


def fed(ids: torch.Tensor, last_token: torch.Tensor) -> torch.Tensor:
    """The ids with those of the seats filled in. last_token: [seats + 1], of each seat."""
    return torch.where(ids < 0, last_token[(-1 - ids).clamp_(min=0)], ids)


def reached(tables: Tables, lengths: IntArray, block_size: int) -> Tables:
    """The columns that these lengths reach, rounded up to a multiple of 16: what a kernel was compiled for."""
    blocks = -(-int(lengths.max(initial=1)) // block_size)
    width = -(-blocks // 16) * 16
    out = np.zeros((len(lengths), width), dtype=np.int32)
    out[:, : tables.shape[1]] = tables[:, :width]
    return out


@dataclass(frozen=True, slots=True)
class _FlatRows:
    """Rows as attention sees them, in flat order. All [rows]; see engines.reference.kernels."""

    plan_row: IntArray  # which row of the plan it is; NOBODY for dead and padding rows
    counts: IntArray
    lengths: IntArray
    tables: Tables


def _flat_rows(plan: StepPlan, block_size: int) -> _FlatRows:
    plan_row, counts, lengths, slots = np.arange(len(plan.slots)), plan.counts, plan.starts + plan.counts, plan.slots
    if len(plan.dead_slots) or not counts.all():
        live = np.flatnonzero(counts)
        dead = np.repeat(np.arange(len(plan.dead_slots)), plan.dead_tokens)  # each dead token is a row of its own
        plan_row = np.concatenate((live, np.full(len(dead), NOBODY)))
        counts = np.concatenate((counts[live], np.ones(len(dead), dtype=np.int64)))
        # A dead row that holds nothing has an empty table: it attends to the dummy, like padding.
        lengths = np.concatenate((lengths[live], np.maximum(plan.dead_lengths[dead], 1)))
        slots = np.concatenate((slots[live], plan.dead_slots[dead]))
    order = np.lexsort((lengths, counts))
    plan_row, counts, lengths, slots = plan_row[order], counts[order], lengths[order], slots[order]
    blocks = -(-int(lengths.max(initial=1)) // block_size)
    tables = plan.tables[:, :blocks][slots]
    if padding := int(plan.padding.sum()):
        plan_row, counts, lengths = (np.append(c, v) for c, v in ((plan_row, NOBODY), (counts, padding), (lengths, 1)))
        tables = np.vstack((tables, np.zeros((1, tables.shape[1]), dtype=np.int32)))
    return _FlatRows(plan_row, counts, lengths, tables)


def _token_ids(plan: StepPlan, last: IntArray, num_tokens: int, seats: SlotTokens) -> IntArray:
    """int64[num_tokens]. See Batch.ids."""
    ids = np.full(num_tokens, PADDING_ID, dtype=np.int64)
    by_seat = seats.feed_themselves(plan)
    ids[last[by_seat]] = seats.fed[plan.slots[by_seat]]
    for row in np.flatnonzero(~by_seat & (plan.counts > 0)).tolist():
        request, start, count = plan.requests[row], int(plan.starts[row]), int(plan.counts[row])
        assert request.tokens is not None, f"{request} has no token ids: only virtual runs go without"
        ids[last[row] + 1 - count : last[row] + 1] = request.tokens[start : start + count]
        if start + count > request.prompt_tokens + request.output_tokens:  # the host has not seen it yet
            ids[last[row]] = seats.fed[plan.slots[row]]
    return ids


class SlotTokens:
    def __init__(self, num_seats: int, tokens: IntArray | None = None) -> None:
        """tokens: [seats] the last one sampled for each, where the host can read it and never runs ahead of it."""
        # What to feed, or in place of it the seat's name: see Batch.ids.
        self.fed: IntArray = np.arange(-1, -1 - num_seats, -1) if tokens is None else tokens
        self._requests: list[Request | None] = [None] * num_seats
        self._next: IntArray = np.full(num_seats, NOTHING)
        self._prompt: IntArray = np.zeros(num_seats, dtype=np.int64)  # tokens
        self._sampling: IntArray = np.zeros((sampling.COLUMNS, num_seats), dtype=np.int64)

    def meet(self, plan: StepPlan) -> None:
        """See who sits where. Call it before anything else is asked of a step."""
        slots = plan.slots.tolist()
        if [self._requests[slot] for slot in slots] == plan.requests:
            return
        new = [(slot, one) for slot, one in zip(slots, plan.requests, strict=True) if self._requests[slot] is not one]
        for slot, request in new:
            self._requests[slot] = request
        at = [slot for slot, _ in new]
        self._next[at] = NOTHING
        self._prompt[at] = [request.prompt_tokens for _, request in new]
        self._sampling[:, at] = sampling.columns([request.sampling for _, request in new], [0] * len(new))

    def feed_themselves(self, plan: StepPlan) -> NDArray[np.bool_]:
        """bool[rows]: all that the row computes is the token that was sampled for its seat last."""
        themselves: NDArray[np.bool_] = (plan.counts == 1) & (self._next[plan.slots] == plan.starts)
        return themselves

    def sample(self, slots: IntArray, ends: IntArray) -> IntArray:
        """Those in these seats get the token of position `end`. Returns int64[5, rows]: see sampling.columns."""
        self._next[slots] = ends
        columns: IntArray = self._sampling.take(slots, axis=1)  # not [:, slots]: the kernel wants rows side by side
        columns[sampling.OUTPUT_INDEX] = ends - self._prompt[slots]
        return columns
