"""The entry point: the columns of a step in, as every other backend takes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engines.reference.kernels.triton_attention import EagerStep
from engines.reference.kernels.triton_decode import SPLIT
from tests.engines.kernels.checks.paged import DEVICE, assert_close, case, reference


def upload(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).to(DEVICE)


@pytest.mark.parametrize(
    ("lengths", "counts"),
    [
        ([SPLIT + 1, 5, 40], [1, 1, 1]),
        ([30, 20], [30, 7]),
        ([SPLIT + 1, 5, 30, 44], [1, 1, 30, 9]),
        ([5, 30, 20], [1, 30, 1]),
        ([7, 3, 1], [1, 3, 20]),
    ],
    ids=["decodes", "chunks", "both", "a decode behind a chunk", "padding"],
)
def test_a_step_of_any_mix(lengths: list[int], counts: list[int]) -> None:
    c = case(lengths, counts, kv_heads=1, group=3, head_dim=16)
    columns = (column.cpu().numpy() for column in (c.tables, c.lengths.long(), c.starts.long()))
    attend = EagerStep(*columns, 16, upload)
    expected = reference(c)
    for _ in range(2):  # the second layer uses the first one's plan
        assert_close(attend(c.q, c.kv), expected)


def test_the_pool_is_only_read() -> None:
    c = case([9, 30], [1, 30], kv_heads=1, head_dim=16)
    before = c.kv.clone()
    columns = (column.cpu().numpy() for column in (c.tables, c.lengths.long(), c.starts.long()))
    EagerStep(*columns, 16, upload)(c.q, c.kv)
    torch.testing.assert_close(c.kv, before, rtol=0, atol=0, equal_nan=True)
