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

from engines.reference import sampling
from engines.scheduling.plan import IntArray, StepPlan, Tables

PADDING_ID = 0  # which token a padding or dead row feeds makes no difference to anybody
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """Copies of what the plan said: its tables may change after this. [tokens], [rows] or [samples]."""

    ids: IntArray  # [tokens]; below 0: -1 - seat, the token that the step before is still sampling for that seat
    positions: IntArray  # [tokens]
    slots: IntArray  # [tokens] where its KV goes: block * block_size + offset
    tables: Tables  # [rows, blocks]
    lengths: IntArray  # [rows] see engines.reference.kernels
    starts: IntArray  # [rows + 1]
    sampled: IntArray  # [samples] the token whose logits each sampling row wants, in row order
    seats: IntArray  # [samples]
    sampling: IntArray  # [5, samples] see engines.reference.sampling.columns

    @property
    def all_single(self) -> bool:
        """Every row is one token."""
        return len(self.ids) == len(self.lengths)

    @property
    def feeds_unseen(self) -> bool:
        return bool((self.ids < 0).any())


def flatten(plan: StepPlan, block_size: int) -> Batch:
    rows = _flat_rows(plan)
    starts = np.concatenate(([0], np.cumsum(rows.counts)))
    row = np.repeat(np.arange(len(rows.counts)), rows.counts)  # of each token
    positions = np.maximum((rows.lengths - starts[1:])[row] + np.arange(starts[-1]), 0)
    own_block = rows.tables[row, positions // block_size]
    blocks = np.where(rows.plan_row[row] == NOBODY, 0, own_block).astype(np.int64)

    live = np.flatnonzero(rows.plan_row != NOBODY)
    last = np.zeros(len(plan.requests), dtype=np.int64)  # the last flat token of each plan row
    last[rows.plan_row[live]] = starts[live + 1] - 1
    samples = np.flatnonzero(plan.samples)
    requests = [plan.requests[r] for r in samples.tolist()]
    ends = (plan.starts + plan.counts)[samples].tolist()
    return Batch(
        ids=_token_ids(plan, last, int(starts[-1])),
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        tables=rows.tables,
        lengths=rows.lengths,
        starts=starts,
        sampled=last[samples],
        seats=plan.slots[samples],
        sampling=sampling.columns(
            [request.sampling for request in requests],
            [end - request.prompt_tokens for end, request in zip(ends, requests, strict=True)],
        ),
    )


def fed(ids: torch.Tensor, last_token: torch.Tensor) -> torch.Tensor:
    """The ids with those that the host has not seen filled in. last_token: [seats + 1], of each seat."""
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


def _flat_rows(plan: StepPlan) -> _FlatRows:
    live = np.flatnonzero(plan.counts)
    dead = np.repeat(np.arange(len(plan.dead_slots)), plan.dead_tokens)  # each dead token is a row of its own
    plan_row = np.concatenate((live, np.full(len(dead), NOBODY)))
    counts = np.concatenate((plan.counts[live], np.ones(len(dead), dtype=np.int64)))
    # A dead row that holds nothing has an empty table: it attends to the dummy, like padding.
    lengths = np.concatenate(((plan.starts + plan.counts)[live], np.maximum(plan.dead_lengths[dead], 1)))
    tables = plan.tables[np.concatenate((plan.slots[live], plan.dead_slots[dead]))]
    order = np.lexsort((lengths, counts))
    plan_row, counts, lengths, tables = plan_row[order], counts[order], lengths[order], tables[order]
    if padding := int(plan.padding.sum()):
        plan_row, counts, lengths = (np.append(c, v) for c, v in ((plan_row, NOBODY), (counts, padding), (lengths, 1)))
        tables = np.vstack((tables, np.zeros_like(plan.tables[:1])))
    return _FlatRows(plan_row, counts, lengths, tables)


def _token_ids(plan: StepPlan, last: IntArray, num_tokens: int) -> IntArray:
    """int64[num_tokens]. A token still being sampled by the step before is named by its seat: see Batch.ids."""
    ids = np.full(num_tokens, PADDING_ID, dtype=np.int64)
    for request, slot, start, count, end in zip(
        plan.requests, plan.slots.tolist(), plan.starts.tolist(), plan.counts.tolist(), (last + 1).tolist(), strict=True
    ):
        if count:
            assert request.tokens is not None, f"{request} has no token ids: only virtual runs go without"
            ids[end - count : end] = request.tokens[start : start + count]
            if start + count > request.prompt_tokens + request.output_tokens:
                ids[end - 1] = -1 - slot
    return ids
