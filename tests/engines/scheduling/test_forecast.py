"""The forecast of peak admission: a request at a time, against the formula over all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.policies.admission import Forecast

request = st.tuples(st.integers(1, 50), st.integers(0, 20))  # held, left: many have as many left


def _peak(requests: list[tuple[int, int]], block_size: int) -> int:
    """LightLLM's rule, step by step: of those still there when one ends, all that each has then."""
    most_left = sorted(requests, key=lambda one: -one[1])
    return max(
        sum(held + left + block_size - 1 for held, _ in most_left[: i + 1]) for i, (_, left) in enumerate(most_left)
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(request, min_size=1, max_size=8), st.lists(request, max_size=4), request, st.integers(1, 5))
def test_one_more_request_is_foreseen_as_if_all_were_counted_anew(
    running: list[tuple[int, int]], joining: list[tuple[int, int]], asked: tuple[int, int], block_size: int
) -> None:
    held, left = (np.array(column, dtype=np.int64) for column in zip(*running, strict=True))
    forecast = Forecast(held, left, block_size)
    for one in joining:
        forecast.add(*one)
    assert forecast.peak_with(*asked) == _peak([*running, *joining, asked], block_size)
