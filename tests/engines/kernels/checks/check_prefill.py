from __future__ import annotations

import pytest
import torch

from engines.reference.kernels import triton_prefill
from engines.reference.kernels.triton_prefill import prefill_attention
from tests.engines.kernels.checks.paged import CANARY, SHAPES, Case, assert_close, case, far, reference


def prefill(c: Case) -> torch.Tensor:
    out = torch.full_like(c.q, float("nan"))
    return prefill_attention(c.q, c.kv, c.tables, c.lengths, c.starts, out)


@pytest.mark.parametrize(("group", "head_dim", "dtype"), SHAPES)
def test_groups_and_head_sizes(group: int, head_dim: int, dtype: torch.dtype) -> None:
    c = case([70, 33, 5], [37, 33, 2], kv_heads=1, group=group, head_dim=head_dim, dtype=dtype)
    assert_close(prefill(c), reference(c))


@pytest.mark.parametrize("block_size", [16, *(pytest.param(size, marks=pytest.mark.slow) for size in (8, 64))])
@pytest.mark.parametrize("wgmma", [pytest.param(False, marks=pytest.mark.slow), True], ids=["tile 32", "tile 64"])
def test_lengths_and_counts_around_every_boundary(
    block_size: int, wgmma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_prefill, "_has_wgmma", lambda device: wgmma)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130]
    counts = [1, 1, 15, 1, 17, 30, 32, 2, 63, 64, 1, 129]
    c = case(lengths, counts, kv_heads=1, group=2, head_dim=16, block_size=block_size, dtype=torch.float16)
    assert_close(prefill(c), reference(c))


def test_a_chunk_sees_what_was_computed_before_it_and_not_what_comes_after() -> None:
    """The same queries in one chunk and in three, on the same KV."""
    whole = case([100], [100], kv_heads=1, group=3)
    expected = reference(whole)
    for first, last in ((0, 13), (13, 64), (64, 100)):
        chunk = Case(whole.q[first:last], whole.kv, whole.tables, whole.lengths * 0 + last, whole.starts * 0)
        chunk.starts[1] = last - first
        assert_close(prefill(chunk), expected[first:last])


def test_padding_rows_hold_more_queries_than_positions() -> None:
    c = case([40, 1], [40, 50], kv_heads=1, group=2)
    c.tables[1] = 0  # the dummy block, which has been written
    c.kv[0] = CANARY
    assert_close(prefill(c), reference(c))


def test_a_row_without_kv_is_zero() -> None:
    c = case([20, 0], [20, 3], kv_heads=1)
    assert torch.equal(prefill(c)[20:], torch.zeros_like(c.q[20:]))


def test_rows_without_queries_take_no_tile() -> None:
    c = case([20, 30, 40, 50], [20, 0, 0, 9], kv_heads=1)
    assert_close(prefill(c), reference(c))


def test_the_layout_of_the_pool_is_free() -> None:
    c = case([50, 30], [50, 10], group=3, layout="token major")
    assert_close(prefill(c), reference(c))


def test_offsets_pass_two_to_the_31() -> None:
    c = far(case([16], [16], head_dim=16, dtype=torch.float16))
    assert_close(prefill(c), reference(c))
