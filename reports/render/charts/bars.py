"""Bars cut into parts."""

from __future__ import annotations

import altair as alt

from reports.document import Bars
from reports.render.charts.parts import axis_of, colour_of, data_of


def bar_layers(plot: Bars) -> list[alt.Chart]:
    places = {part: at for at, part in enumerate(plot.colours)}
    rows = [{"bar": bar, "part": part, "value": value, "place": places[part]} for bar, part, value in plot.parts]
    what = ".1%" if plot.x.percent else ",.4~g"
    tooltip = [
        alt.Tooltip("bar:N", title="of"), alt.Tooltip("part:N", title="part"),
        alt.Tooltip("value:Q", title=plot.x.title, format=what),
    ]  # fmt: skip
    return [
        data_of(rows)
        .mark_bar(height={"band": 0.72})
        .encode(
            x=axis_of(plot.x, "value", alt.X, stack="zero"),
            y=alt.Y("bar:N", sort=None, title=None, axis=alt.Axis(labelLimit=150, grid=False)),
            color=colour_of("part", dict(plot.colours)),
            order=alt.Order("place:Q"),
            tooltip=tooltip,
        )
    ]
