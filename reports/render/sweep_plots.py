"""The plots of a sweep in the terminal: latency against throughput and rate, goodput against the parameter.

With two parameters there is a line for each value of the second.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from reports.curves import CurvePoint, bend, label_of, latency_of_knee, merge, numeric, series, short_label
from reports.render.plot import Line, plot
from reports.sweep_schema import Point, SweepFile

HEIGHT = 12
MOST_WIDE = 100
NAMES = {"p99_ttft_ms": "P99 TTFT in ms", "p99_tpot_ms": "P99 TPOT in ms"}

Number = Callable[[Point], float | None]


def sweep_plots(sweep: SweepFile, width: int) -> list[Text]:
    """The plots for which this sweep has points, each at most `width` characters wide."""
    by = f"by {sweep.params[0]}"
    drawn = [
        _plot_of(sweep, width, lambda one: one.output_token_per_s or None, key, "output tok/s", f"{NAMES[key]}, {by}")
        for key in ("p99_ttft_ms", "p99_tpot_ms")
    ]
    if "rate" in sweep.params and any(one.rate_per_s for one in sweep.points):
        name = f"{NAMES['p99_ttft_ms']} from the schedule, against the offered rate"
        drawn.append(_plot_of(sweep, width, lambda one: one.rate_per_s, "p99_ttft_ms", "requests/s offered", name))
    if any(one.goodput_per_s is not None for one in sweep.points) and numeric(one.values[0] for one in sweep.points):
        name = "goodput: requests/s within the SLA"
        drawn.append(_plot_of(sweep, width, _first_value, "goodput_per_s", sweep.params[0], name, log_x=True))
    return drawn


def _first_value(point: Point) -> float:
    return float(point.values[0])


def _plot_of(
    sweep: SweepFile, width: int, x_of: Number, key: str, x_name: str, y_name: str, *, log_x: bool = False
) -> Text:
    lines = []
    for rest, line in series(merge(sweep.points)).items():
        top = bend(line, latency_of_knee(sweep.params))
        points = [one for one in line if x_of(one.point) is not None and getattr(one.point, key) is not None]
        lines.append(
            Line(
                [x_of(one.point) or 0.0 for one in points],
                [getattr(one.point, key) for one in points],
                [_label(one, top) for one in points],
                label_of(sweep.params[1:], rest),
            )
        )
    return plot(lines, x_name=x_name, y_name=y_name, width=min(width, MOST_WIDE), height=HEIGHT, log_x=log_x)


def _label(one: CurvePoint, top: CurvePoint | None) -> str:
    return short_label(one.values[:1]) + (" knee" if one is top else "")
