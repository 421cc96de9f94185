"""The batched CPU path equals the oracle: block boundaries, GQA groups, chunks, garbage beyond the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.reference.kernels import cpu, oracles
from engines.scheduling.plan import IntArray, Tables

BLOCKS = 40
BLOCK_SIZE = 8
HEAD_DIM = 16


@dataclass(frozen=True)
class Case:
    q: torch.Tensor
    kv: torch.Tensor
    tables: Tables
    lengths: IntArray
    starts: IntArray

    def oracle(self) -> torch.Tensor:
        return oracles.paged_attention(self.q, self.kv, self.tables, self.lengths, self.starts)

    def batched(self) -> torch.Tensor:
        return cpu.prepare(self.tables, self.lengths, self.starts, self.kv)(self.q, self.kv)


def _case(lengths: list[int], counts: list[int], *, heads: int = 6, kv_heads: int = 2, seed: int = 0) -> Case:
    """Random q and KV; every row's blocks are its own, in random order."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    width = max(-(-length // BLOCK_SIZE) for length in lengths) + 1
    tables = np.zeros((len(lengths), width), dtype=np.int32)
    free = (rng.permutation(BLOCKS - 1) + 1).tolist()
    for row, length in enumerate(lengths):
        held = -(-length // BLOCK_SIZE)
        tables[row, :held] = [free.pop() for _ in range(held)]
    return Case(
        q=torch.randn(sum(counts), heads, HEAD_DIM, generator=generator),
        kv=torch.randn(BLOCKS, 2, kv_heads, BLOCK_SIZE, HEAD_DIM, generator=generator),
        tables=tables,
        lengths=np.array(lengths, dtype=np.int64),
        starts=np.concatenate(([0], np.cumsum(counts))),
    )


def _assert_same(case: Case) -> None:
    torch.testing.assert_close(case.batched(), case.oracle(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE, 3 * BLOCK_SIZE + 1])
def test_decode_at_block_boundaries(length: int) -> None:
    _assert_same(_case([length, 2 * BLOCK_SIZE, length], [1, 1, 1]))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (9, 3), (8, 2), (8, 1)])
def test_every_query_head_meets_its_own_kv_head(heads: int, kv_heads: int) -> None:
    _assert_same(_case([5, 20, 33], [1, 1, 7], heads=heads, kv_heads=kv_heads))


def test_long_rows_are_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case([30, 41, 3], [30, 17, 23])
    _assert_same(case)
    monkeypatch.setattr(cpu, "MAX_QUERIES", 5)
    assert len(cpu.prepare(case.tables, case.lengths, case.starts, case.kv).keywords["groups"]) > 3
    _assert_same(case)


@pytest.mark.parametrize("count", [2, 3, BLOCK_SIZE, 2 * BLOCK_SIZE + 3])
@pytest.mark.parametrize("start", [0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 30])
def test_a_chunk_sees_what_came_before_it_and_no_later_position(start: int, count: int) -> None:
    _assert_same(_case([start + count], [count]))


def test_rows_of_very_different_length_are_computed_in_several_groups() -> None:
    case = _case([1, 2, 3, 4, 100, 110], [1] * 6)
    long = np.repeat(case.lengths, 20)
    many = Case(
        q=case.q.repeat_interleave(20, dim=0),
        kv=case.kv,
        tables=np.repeat(case.tables, 20, axis=0),
        lengths=long,
        starts=np.arange(len(long) + 1),
    )
    assert len(cpu.prepare(many.tables, many.lengths, many.starts, many.kv).keywords["groups"]) == 2
    _assert_same(many)


def test_padding_queries_attend_to_the_first_position_only() -> None:
    """A row of more queries than positions: the surplus has position 0."""
    case = _case([1, 3], [5, 6])
    _assert_same(case)
    first_value = case.kv[int(case.tables[0, 0]), 1, :, 0].repeat_interleave(3, dim=0)
    for query in range(5):
        torch.testing.assert_close(case.batched()[query], first_value)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_nothing_beyond_the_length_matters(poison: float) -> None:
    """Not in the row's last block, the dummy block, another row's blocks, or past the end of a table."""
    case = _case([1, 9, 16, 21], [1, 1, 1, 4])
    clean = case.batched()
    dirty = torch.full_like(case.kv, poison)
    for row, length in enumerate(case.lengths.tolist()):
        for position in range(length):
            block, offset = case.tables[row, position // BLOCK_SIZE], position % BLOCK_SIZE
            dirty[block, :, :, offset] = case.kv[block, :, :, offset]
    tables = case.tables.copy()
    for row, length in enumerate(case.lengths.tolist()):
        tables[row, -(-length // BLOCK_SIZE) :] = BLOCKS - 1
    assert torch.equal(Case(case.q, dirty, tables, case.lengths, case.starts).batched(), clean)


def test_the_pool_is_only_read() -> None:
    case = _case([1, 9, 16, 21], [1, 1, 1, 4])
    before = case.kv.clone()
    case.batched()
    assert torch.equal(case.kv, before)


def test_a_row_is_the_same_bits_in_any_order_of_equal_neighbours() -> None:
    case = _case([20, 20, 20, 20], [1] * 4)
    flipped = Case(case.q.flip(0), case.kv, case.tables[::-1].copy(), case.lengths, case.starts)
    assert torch.equal(case.batched(), flipped.batched().flip(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_the_oracle(dtype: torch.dtype) -> None:
    case = _case([5, 20, 33], [1, 1, 7])
    half = Case(case.q.to(dtype), case.kv.to(dtype), case.tables, case.lengths, case.starts)
    assert half.batched().dtype == dtype
    torch.testing.assert_close(half.batched().float(), case.oracle(), rtol=0.05, atol=0.05)


@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=6),
    heads=st.sampled_from([(2, 2), (6, 2), (8, 2)]),
)
@settings(max_examples=50, deadline=None)
def test_any_mixture_of_rows_equals_the_oracle(rows: list[tuple[int, int]], heads: tuple[int, int]) -> None:
    _assert_same(_case([r[0] for r in rows], [r[1] for r in rows], heads=heads[0], kv_heads=heads[1]))
