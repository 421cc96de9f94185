"""The terminal's plot: axes of values that hardly differ, and legends of many names."""

from __future__ import annotations

import math
import sys

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


HUGE = sys.float_info.max


@pytest.mark.parametrize(
    "values",
    [[1.0, HUGE], [1e-300, 1e308], [5e-324, 1.0], [HUGE], [HUGE, HUGE], [0.0, HUGE], [-HUGE, HUGE],
     [1.0, math.inf, 3.0], [math.nan, 2.0], [math.inf]],
)  # fmt: skip
def test_values_of_any_size_have_a_place(values: list[float]) -> None:
    for line in (
        Line(values, [1.0] * len(values), [""] * len(values)),
        Line(range(len(values)), values, ["x"] * len(values)),
    ):
        drawn = plot([line], x_name="x", y_name="y", width=40, log_x=True).plain
        assert "inf" not in drawn
        assert "nan" not in drawn
        assert (
            drawn.count("●") == sum(map(math.isfinite, values)) or "nothing to plot" in drawn or values == [HUGE, HUGE]
        )
        assert max(map(len, drawn.splitlines())) <= 40


def test_a_name_that_finds_no_room_beside_the_ends_gets_a_line() -> None:
    drawn = plot([Line([1, 2], [1, 2], ["", ""])], x_name="max-num-batched-tokens", y_name="y", width=24).plain
    assert drawn.splitlines()[-1].strip() == "max-num-batched-tokens"


def test_a_legend_breaks_between_its_entries() -> None:
    names = [f"max-num-batched-tokens {tokens}" for tokens in (512, 2048, 8192)]
    drawn = plot([Line([at, at + 1], [1, 2], ["", ""], name) for at, name in enumerate(names)],
                 x_name="x", y_name="y", width=72).plain.splitlines()  # fmt: skip
    assert drawn[1:3] == [f"● {names[0]}   ○ {names[1]}", f"◆ {names[2]}"]
