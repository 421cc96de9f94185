"""What several kinds of chart are made of: data, axes, colours, and lines that mark a value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from reports.document import Axis, Rule
from reports.render import labels

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
    """As many as fit. By the width of the element, which is known before the chart is laid out: with columns by the
    chart's own width the legend's lines are counted too late, and lie over each other. `width` is there for its
    changes, and is all that a picture has."""
    entry = 30 + labels.LETTER * max(map(len, names), default=0)
    return alt.ExprRef(f"max(1, floor(((containerSize()[0] || width) + 0 * width - 60) / {entry:.0f}))")


def rule_layers(rules: Sequence[Rule], x: Axis, y: Axis, xs: Sequence[float]) -> list[alt.Chart]:
    """`xs`: where the chart has data, so that a label beside an upright line does not leave the chart."""
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
