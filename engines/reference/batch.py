"""Batch: a StepPlan as the flat tokens that one forward pass takes.

    [ one-token rows, live and dead, by length | longer rows, by their count | all padding tokens ]

The order inside a step is ours to choose: attention likes neighbours of equal shape, and padding tokens are the same
wherever they stand. A padding token attends to position 0 of the dummy block, a dead row to the KV
its seat still holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engines.reference.kernels import PrepareAttention
from engines.reference.kv_pool import KVPool
from engines.reference.model.llama import Tokens
from engines.scheduling.plan import IntArray, StepPlan, Tables
from engines.scheduling.request import Request

PADDING_ID = 0  # which token a padding or dead row feeds makes no difference to anybody
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Batch:
    tokens: Tokens
    sampled: torch.Tensor  # [samples] the flat token whose logits each sampling row wants, in row order
    slots: torch.Tensor  # [samples] the seat of each
    requests: list[Request]  # [samples]
    output_indices: list[int]  # [samples] which output of its request each sampled token is, from 0


def build_batch(plan: StepPlan, pool: KVPool, last_token: torch.Tensor, prepare: PrepareAttention) -> Batch:
    """Copies what it needs: the plan's tables may change after this. last_token: [max_num_seqs], see `_token_ids`."""
    device = pool.layers.device
    rows = _flat_rows(plan)
    starts = np.concatenate(([0], np.cumsum(rows.counts)))
    row = np.repeat(np.arange(len(rows.counts)), rows.counts)  # of each token
    positions = np.maximum((rows.lengths - starts[1:])[row] + np.arange(starts[-1]), 0)
    own_block = rows.tables[row, positions // pool.block_size]
    blocks = np.where(rows.plan_row[row] == NOBODY, 0, own_block).astype(np.int64)

    live = np.flatnonzero(rows.plan_row != NOBODY)
    last = np.zeros(len(plan.requests), dtype=np.int64)  # the last flat token of each plan row
    last[rows.plan_row[live]] = starts[live + 1] - 1
    sampling = np.flatnonzero(plan.samples)
    requests = [plan.requests[r] for r in sampling.tolist()]
    ends = (plan.starts + plan.counts)[sampling].tolist()
    return Batch(
        tokens=Tokens(
            ids=_token_ids(plan, last, int(starts[-1]), last_token),
            positions=torch.from_numpy(positions).to(device),
            kv_index=pool.vector_index(blocks, positions % pool.block_size),
            attend=prepare(rows.tables, rows.lengths, starts, pool.layers[0]),
        ),
        sampled=torch.from_numpy(last[sampling]).to(device),
        slots=torch.from_numpy(plan.slots[sampling]).to(device),
        requests=requests,
        output_indices=[end - request.prompt_tokens for end, request in zip(ends, requests, strict=True)],
    )


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


def _token_ids(plan: StepPlan, last: IntArray, num_tokens: int, last_token: torch.Tensor) -> torch.Tensor:
    """int64[num_tokens] on the device. A token still being sampled by the step before is taken from its seat there."""
    ids = np.full(num_tokens, PADDING_ID, dtype=np.int64)
    unseen = []
    for r, (request, start, count, end) in enumerate(
        zip(plan.requests, plan.starts.tolist(), plan.counts.tolist(), (last + 1).tolist(), strict=True)
    ):
        if count:
            assert request.tokens is not None, f"{request} has no token ids: only virtual runs go without"
            ids[end - count : end] = request.tokens[start : start + count]
            if start + count > request.prompt_tokens + request.output_tokens:
                unseen.append(r)
    on_device = torch.from_numpy(ids).to(last_token.device)
    if unseen:
        slots = torch.from_numpy(plan.slots[unseen]).to(last_token.device)
        on_device[torch.from_numpy(last[unseen]).to(last_token.device)] = last_token[slots]
    return on_device
