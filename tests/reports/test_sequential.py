"""The error of many looks, from its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.quantiles import accepts
from reports.sequential import confidence_of_look


@given(st.floats(0.5, 0.999), st.integers(1, 200))
def test_all_looks_together_spend_at_most_the_error(confidence: float, looks: int) -> None:
    spent = sum(1 - confidence_of_look(confidence, look) for look in range(1, looks + 1))
    assert spent == pytest.approx((1 - confidence) * looks / (looks + 1))
    assert spent <= 1 - confidence


def test_a_value_at_its_bound_passes_falsely_in_at_most_the_error() -> None:
    """Independent requests of which exactly 1 % are beyond the bound, looked at five times as they double: with the
    same test at every look more than 5 % of the runs would pass at some look."""
    random = np.random.default_rng(3)
    looks = [1000, 2000, 4000, 8000, 16_000]
    beyond = random.random((2000, looks[-1])) < 0.01
    counts = [beyond[:, :n].sum(axis=1) for n in looks]

    def ever(at: list[float]) -> float:
        passed = np.zeros(len(beyond), np.bool_)
        for n, count, confidence in zip(looks, counts, at, strict=True):
            most = max((v for v in range(int(count.max()) + 1) if accepts(n, v, 0.99, confidence)), default=-1)
            passed |= count <= most
        return float(passed.mean())

    assert ever([confidence_of_look(0.95, look) for look in range(1, 6)]) <= 0.05
    assert ever([0.95] * 5) > 0.065
