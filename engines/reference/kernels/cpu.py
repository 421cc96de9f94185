"""Paged attention by batched matrix products: gather the blocks, then scores, softmax, values. No loop over rows.

Rows of the same number of queries are computed together, padded to the longest of them. Padding is work, so a run of
rows is split where that saves more than another group of calls costs; rows sorted by length split well. Long rows are
first cut into pieces of MAX_QUERIES, as a piece reads no positions after its last query.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from engines.reference.kernels import Attend, Upload
from engines.scheduling.plan import IntArray, Tables

# Measured on 2 cores with SmolLM2-135M (9 heads, 3 of KV) in bfloat16: one more group costs about as much as one query
# looking at 600 more positions, and 8 more queries looking at a position as much as fetching it.
GROUP_COST = 600
QUERIES_PER_FETCH = 8
MAX_QUERIES = 128


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring rows that are computed as one batch. Padded length S = blocks * block_size."""

    first: int  # its queries are q[first:last]
    last: int
    rows: int
    gather: torch.Tensor  # [2 * rows * kv_heads * blocks] pieces of the pool: K of every row and head, then V
    hidden: torch.Tensor  # bool [rows, 1, queries, 1, S]: positions a query must not see
    beyond: torch.Tensor  # [n] vectors of V past the end of their row


def prepare(
    tables: Tables, lengths: IntArray, starts: IntArray, kv: torch.Tensor, upload: Upload = torch.from_numpy
) -> Attend:
    """tables: [rows, blocks]; lengths: [rows], each >= 1; starts: [rows + 1]; kv: a layer, for its shape."""
    tables, lengths, starts = _pieces(tables, lengths, starts)
    queries = np.diff(starts)
    edges = [0, *(np.flatnonzero(np.diff(queries)) + 1).tolist(), len(queries)]
    groups = [
        _group(tables[low:high], lengths[low:high], starts[low : high + 1], kv, upload)
        for begin, end in pairwise(edges)
        for low, high in _cuts(lengths, begin, end, int(queries[begin]))
    ]
    return partial(paged_attention, groups=groups)


def paged_attention(q: torch.Tensor, kv: torch.Tensor, groups: list[Group]) -> torch.Tensor:
    """q: [queries, heads, head_dim]; kv: [blocks, 2, kv_heads, block_size, head_dim], one layer of the pool.

    Returns the shape of q, contiguous.
    """
    heads, head_dim = q.shape[1:]
    kv_heads, block_size = kv.shape[2:4]
    per_kv_head = heads // kv_heads
    pieces = kv.view(-1, block_size * head_dim)
    q = q * head_dim**-0.5
    out = torch.empty_like(q)
    for g in groups:
        batch, n = g.rows * kv_heads, (g.last - g.first) // g.rows
        keys, values = pieces.index_select(0, g.gather).view(2, batch, -1, head_dim)
        # A weight of exactly 0 does not hide a NaN in what an earlier request left in V.
        values.view(-1, head_dim).index_fill_(0, g.beyond, 0.0)
        by_head = q[g.first : g.last].view(g.rows, n, kv_heads, per_kv_head, head_dim).transpose(1, 2)
        scores = torch.bmm(by_head.reshape(batch, n * per_kv_head, head_dim), keys.transpose(1, 2))
        scores.view(g.rows, kv_heads, n, per_kv_head, -1).masked_fill_(g.hidden, float("-inf"))
        attended = torch.bmm(scores.softmax(dim=-1), values).view(g.rows, kv_heads, n, per_kv_head, head_dim)
        out[g.first : g.last].view(g.rows, n, kv_heads, per_kv_head, head_dim).copy_(attended.transpose(1, 2))
    return out


def _pieces(tables: Tables, lengths: IntArray, starts: IntArray) -> tuple[Tables, IntArray, IntArray]:
    """The same rows with none longer than MAX_QUERIES. Each piece ends at its own last query."""
    counts = np.diff(starts)
    if counts.max(initial=0) <= MAX_QUERIES:
        return tables, lengths, starts
    pieces = -(-counts // MAX_QUERIES)
    row = np.repeat(np.arange(len(counts)), pieces)
    before = (np.arange(len(row)) - (np.cumsum(pieces) - pieces)[row]) * MAX_QUERIES  # queries of the row before it
    own = np.minimum(counts[row] - before, MAX_QUERIES)
    ends = np.maximum(lengths[row] - (counts[row] - before - own), 1)
    return tables[row], ends, np.concatenate(([0], np.cumsum(own)))


def _cuts(lengths: IntArray, begin: int, end: int, queries: int) -> list[tuple[int, int]]:
    """Split rows begin..end where two groups, each padded to its longest row, save more than a group costs."""
    run = lengths[begin:end]
    per_position = 1 + queries / QUERIES_PER_FETCH
    if (len(run) * run.max() - run.sum()) * per_position < GROUP_COST:  # all the padding there is
        return [(begin, end)]
    left = np.maximum.accumulate(run)[:-1]
    right = np.maximum.accumulate(run[::-1])[::-1][1:]
    sizes = np.arange(1, len(run))
    saved = (len(run) * run.max() - sizes * left - (len(run) - sizes) * right) * per_position
    if saved.max() < GROUP_COST:
        return [(begin, end)]
    middle = begin + 1 + int(saved.argmax())
    return _cuts(lengths, begin, middle, queries) + _cuts(lengths, middle, end, queries)


def _group(tables: Tables, lengths: IntArray, starts: IntArray, kv: torch.Tensor, upload: Upload) -> Group:
    kv_heads, block_size = kv.shape[2:4]
    rows, n = len(lengths), int(starts[1] - starts[0])
    blocks = -(-int(lengths.max()) // block_size)
    # Table entries past a row's end are undefined: read the dummy block there, which stays in the CPU's cache.
    held = np.where(np.arange(blocks) * block_size < lengths[:, None], tables[:, :blocks], 0).astype(np.int64)
    heads = np.arange(2 * kv_heads).reshape(2, 1, kv_heads, 1)
    gather = held[None, :, None, :] * (2 * kv_heads) + heads
    positions = np.arange(blocks * block_size)
    at = np.maximum((lengths - n)[:, None] + np.arange(n), 0)
    row, offset = np.nonzero(positions >= lengths[:, None])
    beyond = ((row[:, None] * kv_heads + np.arange(kv_heads)) * len(positions) + offset[:, None]).reshape(-1)
    return Group(
        first=int(starts[0]),
        last=int(starts[-1]),
        rows=rows,
        gather=upload(gather.reshape(-1)),
        hidden=upload(positions > at[:, :, None])[:, None, :, None, :],
        beyond=upload(beyond),
    )
