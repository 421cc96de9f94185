"""The layers of a curve: points with intervals, labels and marks, and the line that joins them or the frontier."""

from __future__ import annotations

import math
from dataclasses import replace

import altair as alt

from reports.document import Curve, Mark
from reports.render.axis_limits import within
from reports.render.charts import labels
from reports.render.charts.layers import axis_of, colour_of, data_of, rule_layers
from reports.render.palette import series

# Around a point: a shape and its area. The diamond is so large that a ring fits into it.
MARKS: dict[Mark, tuple[str, int]] = {"recommended": ("circle", 220), "knee": ("diamond", 540)}


def curve_layers(plot: Curve) -> list[alt.Chart]:
    plot = _drawable(plot)
    names = list(dict.fromkeys(one.series for one in plot.spots))
    colours = {name: series(at) for at, name in enumerate(names)}
    colour = colour_of("series", colours, legend=len(names) > 1, title=plot.legend)
    keys = list(dict.fromkeys(key for one in plot.spots for key in one.details))
    sides = labels.place(plot.spots, plot.x, plot.y)
    rows = [
        {
            "x": one.x, "y": one.y, "n": at, "series": one.series, "label": one.label,
            **({"y0": one.y_interval[0], "y1": one.y_interval[1]} if one.y_interval else {}),
            **({"x0": one.x_interval[0], "x1": one.x_interval[1]} if one.x_interval else {}),
            **{f"d{keys.index(key)}": value for key, value in one.details.items()},
            "side": side,
        }
        for at, (one, side) in enumerate(zip(plot.spots, sides, strict=True))
    ]  # fmt: skip
    data = data_of(rows)
    x, y = axis_of(plot.x, "x", alt.X), axis_of(plot.y, "y", alt.Y)
    layers = rule_layers(plot.rules, plot.x, plot.y, [one.x for one in plot.spots])
    if plot.frontier:
        edge = data_of([{"x": at, "y": up, "n": n} for n, (at, up) in enumerate(plot.frontier)])
        layers.append(edge.mark_line(color="var(--muted)", strokeDash=[2, 3], clip=True).encode(x=x, y=y, order="n:Q"))
    elif plot.joined:
        layers.append(data.mark_line(strokeWidth=1.5, opacity=0.6).encode(x=x, y=y, color=colour, order="n:Q"))
    if any(one.y_interval for one in plot.spots):
        layers.append(
            data.mark_rule(opacity=0.55, strokeWidth=2).encode(
                x=x, y=axis_of(plot.y, "y0", alt.Y), y2="y1:Q", color=colour
            )
        )
    if any(one.x_interval for one in plot.spots):
        layers.append(
            data.mark_rule(opacity=0.55, strokeWidth=2).encode(
                y=y, x=axis_of(plot.x, "x0", alt.X), x2="x1:Q", color=colour
            )
        )
    tooltip = [alt.Tooltip(f"d{at}", type="nominal", title=key) for at, key in enumerate(keys)]
    layers.append(data.mark_point(filled=True, opacity=1, size=64).encode(x=x, y=y, color=colour, tooltip=tooltip))
    for mark, (shape, size) in MARKS.items():
        marked = [row for row, one in zip(rows, plot.spots, strict=True) if mark in one.marks]
        if marked:
            around = data_of(marked).mark_point(shape=shape, size=size, filled=False, opacity=1, strokeWidth=2)
            layers.append(around.encode(x=x, y=y, color=alt.value("var(--ink)")))
    for name, side in labels.SIDES.items():
        on_side = [row for row in rows if row["side"] == name]
        if on_side:
            text = data_of(on_side).mark_text(align=side.align, dx=side.dx * 1.9, dy=side.dy * 1.3, color="var(--ink)")
            layers.append(text.encode(x=x, y=y, text="label:N"))
    return layers


def _drawable(plot: Curve) -> Curve:
    """The curve without points that are not finite numbers, the others inside the limits of an axis."""
    spots = [
        replace(one, x=within(one.x), y=within(one.y))
        for one in plot.spots
        if math.isfinite(one.x) and math.isfinite(one.y)
    ]
    return replace(plot, spots=spots)
