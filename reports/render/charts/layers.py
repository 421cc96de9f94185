"""The layers of a chart: bars, lines, slots, and the data, axes, colours and rules that all kinds share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from reports.document import Axis, Bars, Lines, Rule, SlotTimeline
from reports.render.charts import labels

NUMBERS = (
    "abs(datum.value) >= 1e15 ? format(datum.value, '.0e') : "
    "abs(datum.value) >= 10000 ? format(datum.value, '~s') : format(datum.value, ',~g')"
)


def data_of(rows: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def axis_of(axis: Axis, field: str, channel: type[alt.X] | type[alt.Y], *, zero: bool = False, **more: Any) -> Any:
    ticks = alt.Axis(
        title=None if axis.quiet else axis.title,
        format="~%" if axis.percent else alt.Undefined,
        labelExpr=alt.Undefined if axis.percent else NUMBERS,
        values=list(axis.ticks) or alt.Undefined,
        tickMinStep=1 if axis.whole else alt.Undefined,
        tickCount=alt.Undefined if axis.ticks else alt.ExprRef("max(2, width / 90)") if channel is alt.X else 5,
    )
    scale: dict[str, Any] = {"type": "log"} if axis.log else {"zero": zero, "nice": axis.domain is None}
    if axis.domain is not None:
        scale["domain"] = list(axis.domain)
    return channel(field, type="quantitative", axis=ticks, scale=alt.Scale(**scale), **more)


def colour_of(field: str, colours: dict[str, str], *, legend: bool = True, title: str = "") -> alt.Color:
    key = alt.Legend(orient="top", title=title or None, columns=_columns(colours)) if legend else None
    return alt.Color(
        field,
        type="nominal",
        scale=alt.Scale(domain=list(colours), range=[f"var(--{name})" for name in colours.values()]),
        legend=key,
    )


def _columns(names: Iterable[str]) -> alt.ExprRef:
    """As many columns as fit the width of the element, which is known before the chart is laid out; by the width of the
    chart itself Vega counts the lines of the legend too late and draws them over each other. `width` makes the
    expression follow changes, and is all that a picture has."""
    entry = 30 + labels.LETTER * max(map(len, names), default=0)
    return alt.ExprRef(f"max(1, floor(((containerSize()[0] || width) + 0 * width - 60) / {entry:.0f}))")


def rule_layers(rules: Sequence[Rule], x: Axis, y: Axis, xs: Sequence[float]) -> list[alt.Chart]:
    """xs: where the chart has data; the label of a vertical rule stands on the side that has room."""
    low, high = (min(xs), max(xs)) if xs else (0.0, 0.0)
    middle = math.sqrt(low * high) if x.log else (low + high) / 2
    layers = []
    for one in rules:
        across, colour = one.along == "y", "var(--muted)" if one.quiet else "var(--bad)"
        data = data_of([{"at": one.value, "label": one.label}])
        place = {"y": axis_of(y, "at", alt.Y)} if across else {"x": axis_of(x, "at", alt.X)}
        away = {"x": alt.value(6)} if across else {"y": {"value": 8 if one.quiet else {"expr": "height - 9"}}}
        dash, width = ([2, 3], 1.0) if one.quiet else ([5, 4], 1.2)
        layers.append(data.mark_rule(color=colour, strokeDash=dash, strokeWidth=width).encode(**place))
        if not one.label:
            continue
        left = not across and not one.quiet and one.value > middle
        dx, dy = (0, -6) if across else (-5 if left else 5, 0)
        text = data.mark_text(align="right" if left else "left", color=colour, dx=dx, dy=dy)
        layers.append(text.encode(text="label:N", **place, **away))
    return layers


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


def slot_layers(plot: SlotTimeline) -> list[alt.Chart]:
    data = data_of([{"slot": slot, "is": state, "a": begin, "b": end} for slot, state, begin, end in plot.spans])
    every = 1 if plot.slots <= 16 else 4 if plot.slots <= 32 else 8
    zoom = alt.selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]",
        translate="[pointerdown, window:pointerup] > window:pointermove!",
    )  # fmt: skip
    tooltip = [
        alt.Tooltip("slot:O", title="slot"), alt.Tooltip("is:N", title="state"),
        alt.Tooltip("a:Q", title="from", format=",.5~g"), alt.Tooltip("b:Q", title="to", format=",.5~g"),
    ]  # fmt: skip
    slots = alt.Y(
        "slot:O",
        title="slot",
        scale=alt.Scale(domain=list(range(plot.slots)), paddingInner=0.18),
        axis=alt.Axis(values=list(range(0, plot.slots, every)), grid=False, ticks=False),
    )
    low, high = plot.x.domain or (0.0, plot.end)
    empty = [{"slot": slot, "a": low, "b": min(high, plot.end)} for slot in range(plot.slots)]
    ground = (
        data_of(empty).mark_bar(color="var(--idle)", clip=True).encode(y=slots, x=axis_of(plot.x, "a", alt.X), x2="b:Q")
    )
    bars = data.mark_bar(clip=True).encode(
        x=axis_of(plot.x, "a", alt.X), x2="b:Q", y=slots, color=colour_of("is", dict(plot.colours)), tooltip=tooltip
    )
    return [ground, bars.add_params(zoom)]
