"""A small paged KV pool with everything in it that a kernel must not read or write, and the device to run on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
import torch

from engines.reference.kernels.oracles import paged_attention as oracle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CANARY = 7.0
# The interpreter computes with the bits of a bfloat16 as if they were an integer, so bfloat16 waits for a GPU.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE.type == "cuda" else [])
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


# group, head_dim, dtype; the fast tests have every group, and both head sizes in a type each
SHAPES = [
    pytest.param(
        *shape, id=f"{shape[0]}-{shape[1]}-{str(shape[2])[6:]}", marks=() if shape[1:] == fast else pytest.mark.slow
    )
    for shape in product((1, 3, 4, 7, 8), (64, 128), DTYPES)
    for fast in [(128, torch.float16) if shape[0] in (4, 8) else (64, torch.float32)]
]


@dataclass
class Case:
    q: torch.Tensor  # [sum of counts, heads, head_dim]
    kv: torch.Tensor  # [blocks, 2, kv_heads, block_size, head_dim]
    tables: torch.Tensor  # int32[rows, blocks]
    lengths: torch.Tensor  # int32[rows]
    starts: torch.Tensor  # int32[rows + 1]


def case(
    lengths: list[int],
    counts: list[int] | None = None,
    *,
    kv_heads: int = 2,
    group: int = 1,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    layout: str = "head major",
) -> Case:
    """Rows of these KV lengths, on shuffled blocks; NaN in every position of no row, in the dummy block too.

    A table names block 0 behind the row's last block, except that a row of odd number names a block that is not there.
    """
    random = torch.Generator().manual_seed(sum(lengths) + 1000 * group + head_dim + block_size)
    counts = counts or [1] * len(lengths)
    needed = [-(-length // block_size) for length in lengths]
    blocks = sum(needed) + 2
    shape = (blocks, 2, kv_heads, block_size, head_dim)
    kv = torch.full(shape, float("nan"))
    tables = torch.zeros(len(lengths), max([*needed, 1]) + 1, dtype=torch.int32)
    free = (torch.randperm(blocks - 2, generator=random) + 1).tolist()
    for row, (length, number) in enumerate(zip(lengths, needed, strict=True)):
        tables[row] = 10**8 * (row % 2)
        for i in range(number):
            block = tables[row, i] = free.pop()
            filled = min(length - i * block_size, block_size)
            kv[block, :, :, :filled] = torch.randn(2, kv_heads, filled, head_dim, generator=random)
    kv = kv.to(DEVICE, dtype)
    if layout == "token major":  # [blocks, 2, block_size, kv_heads, head_dim] in memory, as vLLM has it
        kv = kv.transpose(2, 3).contiguous().transpose(2, 3)
    q = torch.randn(sum(counts), kv_heads * group, head_dim, generator=random).to(DEVICE, dtype)
    return Case(
        q=q,
        kv=kv,
        tables=tables.to(DEVICE),
        lengths=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        starts=torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(DEVICE),
    )


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), atol=tolerance, rtol=tolerance)


def reference(c: Case) -> torch.Tensor:
    """The oracle runs on the CPU, and wants tables that name only blocks that are there."""
    tables = torch.where(c.tables < len(c.kv), c.tables, 0)
    columns = (column.cpu().numpy() for column in (tables, c.lengths, c.starts))
    return oracle(c.q.cpu(), c.kv.cpu(), *columns).to(DEVICE)


def far_blocks(block: torch.Tensor) -> torch.Tensor:
    """Four blocks 2**30 elements apart, the last of them a copy of this one.

    The stride fits in 32 bits, 3 strides do not: int32 arithmetic would leave the pool. A CPU reserves the memory
    without touching it.
    """
    stride = 2**30
    storage = torch.empty(3 * stride + block.numel(), dtype=block.dtype, device=block.device)
    blocks = storage.as_strided((4, *block.shape), (stride, *block.stride()))
    blocks[3] = block
    return blocks


def far(c: Case) -> Case:
    """A case of one row and one block, with the block at the far end of a pool."""
    block = c.kv[int(c.tables[0, 0])].contiguous()
    tables = torch.full_like(c.tables, 3)
    return Case(c.q, far_blocks(block), tables, c.lengths, c.starts)
