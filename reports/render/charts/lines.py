"""Lines over time, or areas on top of each other."""

from __future__ import annotations

import altair as alt

from reports.document import Lines
from reports.render.charts.parts import axis_of, colour_of, data_of, rule_layers


def line_layers(plot: Lines) -> list[alt.Chart]:
    rows = [{"x": x, "y": y, "name": one.name} for one in plot.lines for x, y in zip(one.xs, one.ys, strict=True)]
    data = data_of(rows)
    colour = colour_of("name", {one.name: one.colour for one in plot.lines}, legend=len(plot.lines) > 1)
    x, y = axis_of(plot.x, "x", alt.X), axis_of(plot.y, "y", alt.Y, zero=True, stack="zero" if plot.stacked else None)
    if plot.stacked:
        order = alt.Order("place:Q")
        places = {one.name: at for at, one in enumerate(plot.lines)}
        data = data_of([row | {"place": places[str(row["name"])]} for row in rows])
        marks = data.mark_area(interpolate="step-after").encode(x=x, y=y, color=colour, order=order)
    else:
        marks = data.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour)
    hover = alt.selection_point(name="near", nearest=True, on="pointerover", encodings=["x"], empty=False)
    what = ".1%" if plot.y.percent else ",.4~g"
    tooltip = [
        alt.Tooltip("name:N", title="what"),
        alt.Tooltip("x:Q", title=plot.x.title, format=",.4~g"),
        alt.Tooltip("y:Q", title=plot.y.title, format=what),
    ]
    points = data.mark_point(filled=True, size=44).encode(
        x=x,
        y=y,
        color=colour,
        tooltip=tooltip,
        opacity=alt.condition(hover, alt.value(0 if plot.stacked else 1), alt.value(0)),
    )
    rules = rule_layers(plot.rules, plot.x, plot.y, [x for one in plot.lines for x in one.xs])
    return [*rules, marks, points.add_params(hover)]
