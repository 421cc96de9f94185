"""The terminal's plot: axes of values that hardly differ, and legends of many names."""

from __future__ import annotations

import pytest

from reports.render.plot import Axis, Line, plot


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


def test_a_legend_breaks_between_its_entries() -> None:
    names = [f"max-num-batched-tokens {tokens}" for tokens in (512, 2048, 8192)]
    drawn = plot([Line([at, at + 1], [1, 2], ["", ""], name) for at, name in enumerate(names)],
                 x_name="x", y_name="y", width=72).plain.splitlines()  # fmt: skip
    assert drawn[1:3] == [f"● {names[0]}   ○ {names[1]}", f"◆ {names[2]}"]
