"""Paged attention for rows of many queries: chunks of a prompt over what is already in the pool, prefix hits included.

Queries of all rows lie flat, row r at starts[r] .. starts[r + 1] - 1. A program takes one *tile* of QUERIES adjacent
of one row, with the query heads of one KV head:

    starts      0              5      8                   a row's first tile is number  starts[r] // QUERIES + r:
    queries     a a a a a      b b b  c c c c             at least as many tiles as the row fills, so that the row of a
    tiles of 4  |-----| |-|    |---|  |-----|             tile is found by bisection, and no list comes from the host
    number        0      1       2       4                (number 3 is empty: its program ends at once)

    tile row m  is query m // GROUP of the tile, head m % GROUP of the group
    a query at position p reads KV positions 0 .. p; a tile stops after its last query's

The last tiles of a row read the most KV and are launched first. Masks, int64 offsets and blocks: see triton_decode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from engines.reference.kernels._triton import tl, triton


@dataclass(frozen=True)
class Tiling:
    """Parameters that change speed and rounding only."""

    rows: int  # queries times heads of a tile
    tile: int  # positions per iteration
    warps: int
    stages: int = 3


def prefill_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """q: [queries, heads, head_dim]; kv: [blocks, 2, kv_heads, block_size, head_dim] of any strides but the last;
    tables: [rows, blocks]; lengths: [rows]; starts: [rows + 1]. Returns the shape of q; queries of no row keep what
    `out` had.
    """
    heads, head_dim = q.shape[1:]
    kv_heads, block_size = kv.shape[2:4]
    group, rows = heads // kv_heads, len(lengths)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    tiling = tiling or usual_tiling(q.dtype, q.device)
    queries = tiling.rows // group
    _attend_chunks[(kv_heads * (len(q) // queries + rows),)](
        out, q, kv, tables, lengths, starts, rows, head_dim**-0.5 * math.log2(math.e),
        q.stride(0), q.stride(1), out.stride(0), out.stride(1), *kv.stride()[:4], tables.stride(0),
        KV_HEADS=kv_heads, GROUP=group, QUERIES=queries, M=tiling.rows, D=head_dim, BLOCK_SIZE=block_size,
        TILE=tiling.tile, PRECISION="ieee" if q.dtype == torch.float32 else None,
        num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out


def usual_tiling(dtype: torch.dtype, device: torch.device) -> Tiling:
    if dtype == torch.float32:  # no matrix instructions, so less fits in registers
        return Tiling(32, 16, 4)
    return Tiling(128, 64 if _has_wgmma(device) else 32, 8)


@cache
def _has_wgmma(device: torch.device) -> bool:
    """Hopper's products read K and V from shared memory; before it a tile of 64 does not fit in registers."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit(do_not_specialize=["rows"])
def _attend_chunks(
    out, q, kv, tables, lengths, starts, rows,
    scale,  # of the scores, times log2(e)
    q_row, q_head, out_row, out_head, kv_block, kv_value, kv_head, kv_offset, table_row,  # strides
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (n, kv head), on one axis as the others end at 65,535: the n-th tile from the end."""
    own_head = tl.program_id(0) % KV_HEADS
    number = (tl.num_programs(0) - 1 - tl.program_id(0)) // KV_HEADS
    row = 0  # the last row whose first tile is not behind this one
    above = rows
    while above - row > 1:
        middle = (row + above) // 2
        before = tl.load(starts + middle) // QUERIES + middle <= number
        row = tl.where(before, middle, row)
        above = tl.where(before, above, middle)
    first = tl.load(starts + row)
    count = tl.load(starts + row + 1) - first
    begin = (number - first // QUERIES - row) * QUERIES  # the tile's first query in its row
    if begin >= count or begin < 0:  # none of its own, or in front of the first row
        return
    length = tl.load(lengths + row)

    index = begin + tl.arange(0, M) // GROUP
    real = (tl.arange(0, M) < QUERIES * GROUP) & (index < count)
    head = own_head * GROUP + tl.arange(0, M) % GROUP
    d = tl.arange(0, D)
    at_query = (first + index).to(tl.int64)
    query = tl.load(q + (at_query * q_row + head * q_head)[:, None] + d[None, :], mask=real[:, None], other=0.0)
    # A padding row may hold more queries than its KV has positions: they all read position 0.
    last_seen = tl.maximum(length - count + index, 0)
    end = tl.minimum(tl.maximum(length - count + tl.minimum(begin + QUERIES, count), 1), length)
    table = tables + row.to(tl.int64) * table_row
    keys = kv + own_head.to(tl.int64) * kv_head

    best = tl.full([M], float("-inf"), tl.float32)
    weight = tl.zeros([M], tl.float32)
    output = tl.zeros([M, D], tl.float32)
    position = tl.arange(0, TILE)
    page = tl.load(table + position // BLOCK_SIZE, mask=position < end, other=0)
    for _ in tl.range(0, end, TILE):
        valid = position < end
        at = (page.to(tl.int64) * kv_block + (position % BLOCK_SIZE) * kv_offset)[:, None] + d[None, :]
        key = tl.load(keys + at, mask=valid[:, None], other=0.0)
        value = tl.load(keys + kv_value + at, mask=valid[:, None], other=0.0)
        seen = position[None, :] <= last_seen[:, None]
        position += TILE
        page = tl.load(table + position // BLOCK_SIZE, mask=position < end, other=0)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))  # finite from the first tile on: every query sees position 0
        share = tl.exp2(score - higher[:, None])
        fade = tl.exp2(best - higher)
        weight = weight * fade + tl.sum(share, 1)
        output = tl.dot(share.to(value.dtype), value, output * fade[:, None], input_precision=PRECISION)
        best = higher

    done = output / tl.where(weight == 0.0, 1.0, weight)[:, None]  # a row without KV is 0
    at_out = (at_query * out_row + head * out_head)[:, None] + d[None, :]
    tl.store(out + at_out, done.to(out.dtype.element_ty), mask=real[:, None])
