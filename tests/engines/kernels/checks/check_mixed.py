"""Attention of steps with a prompt on buffers of fixed address, as a graph of a number of tokens holds it."""

from __future__ import annotations

import pytest
import torch

from engines.reference.kernels import MixedRows
from engines.reference.kernels.triton_kernels import TritonKernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.config import ModelConfig
from tests.engines.kernels.checks.paged import DEVICE, Case, assert_close, case, reference

KV_HEADS, GROUP, HEAD_DIM = 2, 3, 16
ROWS, BLOCKS = 6, 48


def on_buffers(c: Case, decodes: int, tokens: int) -> torch.Tensor:
    """What a graph of `tokens` tokens computes for the case, whose first rows are of one query."""
    shape = ModelConfig(1, 64, KV_HEADS * GROUP, KV_HEADS, HEAD_DIM, ffn=64, vocab=64, max_position=999)
    pool = KVPool(shape, len(c.kv), c.kv.shape[3], dtype=c.q.dtype, device=DEVICE)
    ints = {"dtype": torch.int32, "device": DEVICE}
    rows = MixedRows(
        decode_tables=torch.full((ROWS, BLOCKS), 10**8, **ints),  # of an earlier step
        decode_lengths=torch.zeros(ROWS, dtype=torch.int64, device=DEVICE),
        chunk_tables=torch.full((ROWS, BLOCKS), 10**8, **ints),
        chunk_lengths=torch.full((ROWS,), 99, **ints),
        chunk_starts=torch.full((ROWS + 1,), len(c.q), **ints),
    )
    width, chunks = c.tables.shape[1], len(c.lengths) - decodes
    rows.decode_tables[:decodes, :width] = c.tables[:decodes]
    rows.decode_lengths[:decodes] = c.lengths[:decodes]
    rows.chunk_tables[:chunks, :width] = c.tables[decodes:]
    rows.chunk_lengths[:chunks] = c.lengths[decodes:]
    rows.chunk_starts[: chunks + 1] = c.starts[decodes:]
    attend = TritonKernels(ROWS).static_mixed(ROWS, BLOCKS, pool, KV_HEADS * GROUP)(rows)
    q = torch.full((tokens, *c.q.shape[1:]), float("nan"), dtype=c.q.dtype, device=DEVICE)
    q[: len(c.q)] = c.q
    return attend(q, c.kv)[: len(c.q)]


@pytest.mark.parametrize(
    ("lengths", "counts"),
    [
        ([40], [40]),  # a prompt alone
        ([5, 300, 33], [1, 1, 33]),  # a row of several splits
        ([1, 2, 3, 4, 5, 90], [1, 1, 1, 1, 1, 17]),
        ([30, 70, 16], [1, 50, 1]),  # one query behind a chunk
        ([9, 20, 30, 40], [1, 5, 9, 13]),
    ],
)
@pytest.mark.parametrize("padding", [0, 3, pytest.param(70, marks=pytest.mark.slow)])
def test_a_step_is_that_of_its_rows_alone(lengths: list[int], counts: list[int], padding: int) -> None:
    c = case(lengths, counts, kv_heads=KV_HEADS, group=GROUP, head_dim=HEAD_DIM)
    decodes = next((row for row, count in enumerate(counts) if count > 1), len(counts))
    assert_close(on_buffers(c, decodes, len(c.q) + padding), reference(c))
