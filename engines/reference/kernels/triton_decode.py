"""Paged attention for rows of one query: split-KV decode, with a fixed split size.

Row r reads KV positions 0 .. lengths[r]-1, cut into splits of equal size; a split is one *item* of work:

    row 0  |--------|--------|---|          items 0 1 2        position  0 ......... split ......... 2 split ... length
    row 1  |-----|                          item  3                      |<- item ->|
    row 2                (length 0)         no item                      | tile | tile | tile |

`plan_splits` lists the items on the device once a step. Each layer then runs two kernels:

    attend   program (kv head, p) takes items p, p + programs, ...: partial max, sum and output of its query heads.
             A row of one item is finished here.
    merge    program (row, head) merges the partials of a row of several items, and writes 0 for a row of none.

Properties:
- The order of a row's sums does not depend on other rows: the size of a split is fixed, not the number of splits.
- The launch does not depend on lengths, so a CUDA graph can hold it; and it does not grow with the longest context
  either: most programs of a grid (rows, heads, max splits) at 128k context would have no work.
- An empty split cannot exist (-inf - -inf = NaN in the merge), nor a program that stores a stale partial.
- The scratch is as large as the pool needs (`DecodeSplits.capacity`), not rows x longest context.

The query heads of one KV head share a tile of 16 rows, so KV is read once and tensor cores do the products. A group of
1 takes the same path: 15 idle rows are idle products, and the step waits for memory. Masked loads hide K and V past the
end, as 0 times a stale NaN is NaN. Block ids become int64 before they are multiplied: a layer may have 2**31
elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

import torch

from engines.reference.kernels._triton import launched, tl, triton, wait

SPLIT = 256  # positions per item; a multiple of TILE
TILE = 64  # positions per iteration, whatever the block size: blocks are gathered. Half of it in float32
STAGES = 3  # two tiles in flight
PROGRAMS_PER_SM = 3  # what fits in shared memory side by side at head size 128 on sm_90
WARPS = 4
MERGE = 8  # partials merged per iteration, all of them on their way before the first is needed


@dataclass(frozen=True)
class Tuning:
    """Parameters that change speed and rounding only. benchmarks/gpu_check.py tries others."""

    split: int = SPLIT
    tile: int = TILE
    stages: int = STAGES
    programs_per_sm: int = PROGRAMS_PER_SM
    warps: int = WARPS
    early: bool = False  # see engines.reference.kernels._triton.launched


SHIPPED = Tuning()


@dataclass
class DecodeSplits:
    """The items of a step and room for their partial results. Allocated once; graphs hold its addresses.

    capacity: most items in a step. rows + pool positions / SPLIT is enough as long as rows share no blocks. Where it is
    not, the splits of the step are doubled until they fit: still right, but rounding then depends on other rows.
    """

    rows: int
    capacity: int
    heads: int
    head_dim: int
    device: torch.device
    item_row: torch.Tensor = field(init=False)  # int32[capacity]
    item_start: torch.Tensor = field(init=False)  # int32[capacity] first position
    row_items: torch.Tensor = field(init=False)  # int32[rows + 1] items of row r: row_items[r] .. row_items[r + 1] - 1
    totals: torch.Tensor = field(init=False)  # int32[2] items, positions per item
    output: torch.Tensor = field(init=False)  # float32[capacity, heads, head_dim], not yet divided by sum
    maximum: torch.Tensor = field(init=False)  # float32[capacity, heads], base 2
    sum: torch.Tensor = field(init=False)  # float32[capacity, heads]

    def __post_init__(self) -> None:
        if self.capacity < self.rows:
            raise ValueError(f"a step of {self.rows} rows has at least as many items; capacity is {self.capacity}")
        ints = {"dtype": torch.int32, "device": self.device}
        floats = {"dtype": torch.float32, "device": self.device}
        self.item_row = torch.zeros(self.capacity, **ints)
        self.item_start = torch.zeros(self.capacity, **ints)
        self.row_items = torch.zeros(self.rows + 1, **ints)
        self.totals = torch.zeros(2, **ints)
        self.output = torch.empty(self.capacity, self.heads, self.head_dim, **floats)
        self.maximum = torch.empty(self.capacity, self.heads, **floats)
        self.sum = torch.empty(self.capacity, self.heads, **floats)


def plan_splits(splits: DecodeSplits, lengths: torch.Tensor, tuning: Tuning = SHIPPED) -> None:
    """List the items of rows of these lengths. Once a step, before the first layer; needs nothing from the host."""
    rows = len(lengths)
    if rows > splits.rows:
        raise ValueError(f"{rows} rows, but there is room for {splits.rows}")
    _plan[(rows,)](
        splits.item_row, splits.item_start, splits.row_items, splits.totals, lengths, rows, splits.capacity,
        SPLIT=tuning.split, ROWS=max(triton.next_power_of_2(splits.rows), 2), num_warps=1,
    )  # fmt: skip


def decode_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    splits: DecodeSplits,
    out: torch.Tensor | None = None,
    tuning: Tuning = SHIPPED,
) -> torch.Tensor:
    """q: [rows, heads, head_dim]; kv: [blocks, 2, kv_heads, block_size, head_dim] of any strides but the last;
    tables: [rows, blocks]; lengths: [rows], the ones that `plan_splits` saw. Returns the shape of q.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    attend(q, kv, tables, lengths, splits, out, tuning)
    merge(splits, out, tuning.early)
    return out


def attend(
    q: torch.Tensor,
    kv: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    splits: DecodeSplits,
    out: torch.Tensor,
    tuning: Tuning = SHIPPED,
) -> None:
    """The partial results of all items into `splits`; rows of one item into `out`."""
    heads, head_dim = q.shape[1:]
    kv_heads, block_size = kv.shape[2:4]
    group = heads // kv_heads
    programs = min(splits.capacity, _resident(tuning.programs_per_sm * _multiprocessors(q.device), kv_heads))
    _attend[(kv_heads, programs)](
        out, splits.output, splits.maximum, splits.sum, q, kv, tables, lengths,
        splits.item_row, splits.item_start, splits.row_items, splits.totals,
        head_dim**-0.5 * math.log2(math.e),
        q.stride(0), q.stride(1), out.stride(0), out.stride(1), *kv.stride()[:4], tables.stride(0),
        HEADS=heads, GROUP=group, M=max(triton.next_power_of_2(group), 16), D=head_dim, BLOCK_SIZE=block_size,
        TILE=tuning.tile * 2 // q.element_size(), PRECISION="ieee" if q.dtype == torch.float32 else None,
        num_warps=tuning.warps, num_stages=tuning.stages, **launched(tuning.early),
    )  # fmt: skip


def merge(splits: DecodeSplits, out: torch.Tensor, early: bool = False) -> None:
    """The rows of several items, or of none, into `out`: [rows, heads, head_dim]"""
    rows, heads, head_dim = out.shape
    _merge[(rows, heads)](
        out, splits.output, splits.maximum, splits.sum, splits.row_items, out.stride(0), out.stride(1),
        HEADS=heads, D=head_dim, MERGE=MERGE, num_warps=1, **launched(early),  # one warp sums without barriers
    )  # fmt: skip


def _resident(programs: int, kv_heads: int) -> int:
    """Programs for each KV head, so that all run at once: rounded up, the odd ones would begin when all others end."""
    return max(programs // kv_heads, 1)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit(do_not_specialize=["rows", "capacity"])
def _plan(item_row, item_start, row_items, totals, lengths, rows, capacity, SPLIT: tl.constexpr, ROWS: tl.constexpr):
    """Program (row): list its items behind those of the rows before it."""
    row = tl.program_id(0)
    index = tl.arange(0, ROWS)
    length = tl.load(lengths + index, mask=index < rows, other=0).to(tl.int32)
    split = SPLIT
    total = tl.sum((length + split - 1) // split)
    while total > capacity:
        split *= 2
        total = tl.sum((length + split - 1) // split)
    items = (length + split - 1) // split
    first = tl.sum(tl.where(index < row, items, 0))
    count = tl.sum(tl.where(index == row, items, 0))
    for item in range(count):
        tl.store(item_row + first + item, row)
        tl.store(item_start + first + item, item * split)
    tl.store(row_items + row, first)
    if row == rows - 1:
        tl.store(row_items + rows, total)
        tl.store(totals, total)
        tl.store(totals + 1, split)


@triton.jit
def _attend(
    out, partial_output, partial_max, partial_sum, q, kv, tables, lengths, item_row, item_start, row_items, totals,
    scale,  # of the scores, times log2(e): exp2 is what the hardware has
    q_row, q_head, out_row, out_head, kv_block, kv_value, kv_head, kv_offset, table_row,  # strides
    HEADS: tl.constexpr, GROUP: tl.constexpr, M: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (kv head, p): items p, p + programs, ... of the list."""
    wait(EARLY)
    group = tl.arange(0, M)
    head = tl.program_id(0) * GROUP + group
    d = tl.arange(0, D)
    real = (group < GROUP)[:, None]
    keys = kv + tl.program_id(0).to(tl.int64) * kv_head
    total = tl.load(totals)
    split = tl.load(totals + 1)
    for item in tl.range(tl.program_id(1), total, tl.num_programs(1)):
        row = tl.load(item_row + item).to(tl.int64)
        start = tl.load(item_start + item)
        end = tl.minimum(start + split, tl.load(lengths + row).to(tl.int32))
        query = tl.load(q + row * q_row + head[:, None] * q_head + d[None, :], mask=real, other=0.0)
        table = tables + row * table_row

        best = tl.full([M], float("-inf"), tl.float32)
        weight = tl.zeros([M, TILE], tl.float32)  # summed at the end: a sum across warps costs three barriers
        output = tl.zeros([M, D], tl.float32)
        position = start + tl.arange(0, TILE)
        page = tl.load(table + position // BLOCK_SIZE, mask=position < end, other=0)
        for _ in tl.range(start, end, TILE):
            valid = position < end
            at = (page.to(tl.int64) * kv_block + (position % BLOCK_SIZE) * kv_offset)[:, None] + d[None, :]
            key = tl.load(keys + at, mask=valid[:, None], other=0.0)
            value = tl.load(keys + kv_value + at, mask=valid[:, None], other=0.0)
            # The next tile's block ids, an iteration early. Loaded where they are used, they would be a stage of the
            # compiler's pipeline, and leave K and V half of its depth: one tile in flight instead of two.
            position += TILE
            page = tl.load(table + position // BLOCK_SIZE, mask=position < end, other=0)
            score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
            score = tl.where(valid[None, :], score, float("-inf"))
            higher = tl.maximum(best, tl.max(score, 1))
            share = tl.exp2(score - higher[:, None])
            fade = tl.exp2(best - higher)
            weight = weight * fade[:, None] + share
            output = tl.dot(share.to(value.dtype), value, output * fade[:, None], input_precision=PRECISION)
            best = higher

        if tl.load(row_items + row + 1) - tl.load(row_items + row) == 1:
            done = output / tl.sum(weight, 1)[:, None]
            at_out = out + row * out_row + head[:, None] * out_head + d[None, :]
            tl.store(at_out, done.to(out.dtype.element_ty), mask=real)
        else:
            at_head = tl.cast(item, tl.int64) * HEADS + head
            tl.store(partial_output + at_head[:, None] * D + d[None, :], output, mask=real)
            tl.store(partial_max + at_head, best, mask=group < GROUP)
            tl.store(partial_sum + at_head, tl.sum(weight, 1), mask=group < GROUP)


@triton.jit
def _merge(
    out, partial_output, partial_max, partial_sum, row_items, out_row, out_head,
    HEADS: tl.constexpr, D: tl.constexpr, MERGE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (row, head): out = sum of partial outputs / sum of partial sums, each faded to the highest maximum."""
    wait(EARLY)
    row = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(row_items + row)
    last = tl.load(row_items + row + 1)
    if last - first == 1:
        return
    d = tl.arange(0, D)
    best = float("-inf")
    weight = 0.0
    output = tl.zeros([D], tl.float32)
    for some in range(first, last, MERGE):
        item = some + tl.arange(0, MERGE)
        valid = item < last
        at = item.to(tl.int64) * HEADS + head
        maximum = tl.load(partial_max + at, mask=valid, other=float("-inf"))
        higher = tl.maximum(best, tl.max(maximum, 0))
        fade = tl.exp2(best - higher)
        share = tl.exp2(maximum - higher)
        partial = tl.load(partial_output + at[:, None] * D + d[None, :], mask=valid[:, None], other=0.0)
        weight = weight * fade + tl.sum(share * tl.load(partial_sum + at, mask=valid, other=0.0), 0)
        output = output * fade + tl.sum(partial * share[:, None], 0)
        best = higher
    done = output / tl.where(weight == 0.0, 1.0, weight)  # a row of no item is 0, and not what was there before
    tl.store(out + row.to(tl.int64) * out_row + head * out_head + d, done.to(out.dtype.element_ty))
