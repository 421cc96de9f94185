from __future__ import annotations

import pytest
import torch

from engines.reference.kernels import triton_decode
from engines.reference.kernels.triton_decode import SPLIT, TILE, DecodeSplits, Tuning, decode_attention, plan_splits
from tests.engines.kernels.checks.paged import DEVICE, SHAPES, Case, assert_close, case, far, reference

# around one position, a block, a tile and a split, with a padding row of length 0
BOUNDARIES = [1, 15, 16, 17, 0, TILE - 1, TILE, TILE + 1, SPLIT - 1, SPLIT, SPLIT + 1]


def splits_for(c: Case, capacity: int | None = None) -> DecodeSplits:
    rows, heads, head_dim = c.q.shape
    needed = int(sum(-(-c.lengths.cpu() // SPLIT)))
    splits = DecodeSplits(rows, capacity or max(needed, rows), heads, head_dim, DEVICE)
    for scratch in (splits.output, splits.maximum, splits.sum):
        scratch.fill_(float("nan"))  # what an earlier step left behind
    return splits


def decode(c: Case, splits: DecodeSplits | None = None) -> torch.Tensor:
    splits = splits or splits_for(c)
    out = torch.full_like(c.q, float("nan"))
    plan_splits(splits, c.lengths)
    return decode_attention(c.q, c.kv, c.tables, c.lengths, splits, out)


@pytest.mark.parametrize(("group", "head_dim", "dtype"), SHAPES)
def test_groups_and_head_sizes(group: int, head_dim: int, dtype: torch.dtype) -> None:
    c = case([SPLIT + 3, TILE + 1, 0, 1], kv_heads=1 + (group == 3), group=group, head_dim=head_dim, dtype=dtype)
    assert_close(decode(c), reference(c))


@pytest.mark.parametrize("block_size", [16, *(pytest.param(size, marks=pytest.mark.slow) for size in (8, 32, 128))])
def test_lengths_around_every_boundary(block_size: int) -> None:
    c = case(BOUNDARIES, kv_heads=1, group=3, head_dim=16, block_size=block_size)
    assert_close(decode(c), reference(c))


@pytest.mark.parametrize("length", [2 * SPLIT, 2 * SPLIT + 1, triton_decode.MERGE * SPLIT + 1])
def test_many_splits(length: int) -> None:
    c = case([length, 5], kv_heads=1, group=2, head_dim=16)
    assert_close(decode(c), reference(c))
    c.q.abs_()  # and with the highest score in the last split, so that what was merged before it fades
    c.kv[int(c.tables[0, (length - 1) // 16]), 0] = 1.0
    assert_close(decode(c), reference(c))


def test_the_layout_of_the_pool_is_free() -> None:
    c = case([SPLIT + 40, 30], group=3, layout="token major")
    assert_close(decode(c), reference(c))


def test_queries_may_be_a_view_of_the_fused_projection() -> None:
    c = case([70, 30], group=3)
    rows, heads, head_dim = c.q.shape
    qkv = torch.full((rows, heads + 4, head_dim), float("nan"), device=DEVICE)
    qkv[:, :heads] = c.q
    expected = reference(c)
    c.q = qkv[:, :heads]
    assert_close(decode(c), expected)


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    together = case([3 * SPLIT + 7, 100, SPLIT, 2 * SPLIT + 1], kv_heads=1, group=4, dtype=torch.float16)
    out = decode(together)
    for row in range(4):
        alone = Case(
            together.q[row : row + 1],
            together.kv,
            together.tables[row : row + 1],
            together.lengths[row : row + 1],
            together.starts,
        )
        assert torch.equal(decode(alone), out[row : row + 1])


def test_rows_of_a_bucket_beyond_the_batch_are_zero_and_disturb_no_request() -> None:
    c = case([SPLIT + 1, 9, 0, 0], group=2, dtype=torch.float16)
    out = decode(c)
    assert_close(out, reference(c))
    assert torch.equal(out[2:], torch.zeros_like(out[2:]))


def test_more_programs_than_items_and_more_items_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    c = case([SPLIT * 2, 1, 1], kv_heads=1)
    expected = reference(c)
    for multiprocessors in (1, 100):
        monkeypatch.setattr(triton_decode, "_multiprocessors", lambda device, n=multiprocessors: n)
        assert_close(decode(c), expected)


@pytest.mark.parametrize("tuning", [Tuning(split=64, tile=32), Tuning(split=512, tile=128, programs_per_sm=8)])
def test_another_tuning_gives_the_same(tuning: Tuning) -> None:
    c = case([SPLIT * 2 + 1, 63, 1, 0], group=4, head_dim=16)
    rows, heads, head_dim = c.q.shape
    splits = DecodeSplits(rows, 20, heads, head_dim, DEVICE)
    plan_splits(splits, c.lengths, tuning)
    assert int(splits.totals[1]) == tuning.split
    assert_close(decode_attention(c.q, c.kv, c.tables, c.lengths, splits, tuning=tuning), reference(c))


def test_too_little_scratch_means_longer_splits() -> None:
    # Rows that share a prefix can need more items than the pool has room for.
    c = case([5 * SPLIT + 1, 3 * SPLIT, 10], kv_heads=1, group=2, head_dim=16)
    splits = splits_for(c, capacity=4)
    assert_close(decode(c, splits), reference(c))
    assert splits.totals.tolist() == [4, 4 * SPLIT]


def test_scratch_of_fewer_items_than_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 3"):
        DecodeSplits(4, 3, 2, 64, DEVICE)


def test_offsets_pass_two_to_the_31() -> None:
    c = far(case([16], head_dim=16, dtype=torch.float16))
    assert_close(decode(c), reference(c))
