"""The terminal's plot: what its axes make of values that hardly differ."""

from __future__ import annotations

import pytest

from reports.render.plot import Axis


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([1190.0, 1190.08], (1130.5, 1249.6)),  # a difference of nothing must not fill the plot
        ([5.0], (4.75, 5.25)),
        ([100.0, 110.0], (99.5, 110.5)),
        ([0.0], (0.0, 1.0)),
    ],
)
def test_a_narrow_axis_is_widened(values: list[float], ends: tuple[float, float]) -> None:
    axis = Axis(values)
    assert (axis.low, axis.high) == pytest.approx(ends, abs=0.1)
