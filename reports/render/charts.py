"""Charts as Vega-Lite: one specification gives the interactive chart of a page, SVG and PNG, without a browser.

The only module that needs the extra `charts`. Colours are CSS variables, so that the page can change them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast

from reports.document import Axis, Bars, Chart, Curve, Lines, Mark, Rule, Seats
from reports.extent import within
from reports.files import FolderError
from reports.render import labels
from reports.render.palette import LIGHT, series

try:
    import altair as alt
    import vl_convert
except ImportError as error:
    raise FolderError(
        'charts need altair and vl-convert: pip install "cbbench[charts]" (a page without charts: --no-charts)'
    ) from error

Spec = dict[str, Any]

WIDTH, HEIGHT = 720, 340  # of pictures, in pixels
SCALE = 2.0  # of PNG, for screens of today
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
# Around a point: a shape and its area. The diamond is so large that a ring fits into it.
MARKS: dict[Mark, tuple[str, int]] = {"recommended": ("circle", 220), "knee": ("diamond", 540)}
NUMBERS = (
    "abs(datum.value) >= 1e15 ? format(datum.value, '.0e') : "
    "abs(datum.value) >= 10000 ? format(datum.value, '~s') : format(datum.value, ',~g')"
)


@cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, for every chart of a page; it defines window.vegaEmbed."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def svg(chart: Chart) -> str:
    """Its ids are its own: vl-convert counts clip paths on from one picture to the next."""
    drawn = str(vl_convert.vegalite_to_svg(_picture(chart)))
    ids = {found: f"{chart.name}-{at}" for at, found in enumerate(dict.fromkeys(re.findall(r'id="(clip\d+)"', drawn)))}
    return re.sub(r"(?<=[\"#])clip\d+(?=[\")])", lambda found: ids.get(found[0], found[0]), drawn)


def png(chart: Chart) -> bytes:
    return bytes(vl_convert.vegalite_to_png(_picture(chart), scale=SCALE))


def _picture(chart: Chart) -> Spec:
    """On white paper, with its title, and a width of its own."""
    made = spec(chart) | {"width": WIDTH, "background": LIGHT["paper"], "padding": 16}
    caption = {"subtitle": _wrapped(chart.caption)} if chart.caption else {}
    made["title"] = {"text": chart.title, "anchor": "start", "offset": 12, **caption}
    return cast(Spec, _coloured(made))


def _coloured(value: Any) -> Any:
    """With the colours themselves: outside a page nothing knows the variables."""
    if isinstance(value, dict):
        return {key: _coloured(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_coloured(one) for one in value]
    found = re.fullmatch(r"var\(--([\w-]+)\)", value) if isinstance(value, str) else None
    return LIGHT[found[1]] if found else value


def _wrapped(text: str, width: int = 110) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def spec(chart: Chart) -> Spec:
    """Vega-Lite with the data inside, as wide as what it is put into."""
    plot = chart.plot
    if isinstance(plot, Curve):
        layers, height = _curve(plot), HEIGHT
    elif isinstance(plot, Lines):
        layers, height = _lines(plot), 220
    elif isinstance(plot, Bars):
        layers, height = _bars(plot), 34 * len({bar for bar, _, _ in plot.parts}) + 10
    else:
        layers, height = _seats(plot), plot.slots * (18 if plot.slots <= 8 else 12 if plot.slots <= 32 else 8)
    made: Spec = alt.layer(*layers).properties(width="container", height=height).to_dict(validate=False)
    made["config"] = _config()
    made["autosize"] = {"type": "fit-x", "contains": "padding"}
    return cast(Spec, _as_json(made))


def _as_json(value: Any) -> Any:
    """With nothing that JSON has no number for: it is a gap. What is too far for an axis lies at its end."""
    if isinstance(value, dict):
        return {key: _as_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    if isinstance(value, float):
        return within(value) if math.isfinite(value) else None
    return value


def _data(rows: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def _axis(axis: Axis, field: str, channel: type[alt.X] | type[alt.Y], *, zero: bool = False, **more: Any) -> Any:
    ticks = alt.Axis(
        title=None if axis.quiet else axis.title,
        format=".0%" if axis.percent else alt.Undefined,
        labelExpr=alt.Undefined if axis.percent else NUMBERS,
        values=list(axis.ticks) or alt.Undefined,
        tickMinStep=1 if axis.whole else alt.Undefined,
        tickCount=alt.Undefined if axis.ticks else alt.ExprRef("max(2, width / 90)") if channel is alt.X else 5,
    )
    scale: dict[str, Any] = {"type": "log"} if axis.log else {"zero": zero, "nice": axis.domain is None}
    if axis.domain is not None:
        scale["domain"] = list(axis.domain)
    return channel(field, type="quantitative", axis=ticks, scale=alt.Scale(**scale), **more)


def _colour(field: str, colours: dict[str, str], *, legend: bool = True, title: str = "") -> alt.Color:
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


def _rules(rules: Sequence[Rule], x: Axis, y: Axis, xs: Sequence[float]) -> list[alt.Chart]:
    """`xs`: where the chart has data, so that a label beside an upright line does not leave the chart."""
    low, high = (min(xs), max(xs)) if xs else (0.0, 0.0)
    middle = math.sqrt(low * high) if x.log else (low + high) / 2
    layers = []
    for one in rules:
        across = one.along == "y"
        data = _data([{"at": one.value, "label": one.label}])
        place = {"y": _axis(y, "at", alt.Y)} if across else {"x": _axis(x, "at", alt.X)}
        away = {"x": alt.value(6)} if across else {"y": {"value": {"expr": "height - 9"}}}
        layers.append(data.mark_rule(color="var(--bad)", strokeDash=[5, 4], strokeWidth=1.2).encode(**place))
        left = not across and one.value > middle
        dx, dy = (0, -6) if across else (-5 if left else 5, 0)
        text = data.mark_text(align="right" if left else "left", color="var(--bad)", dx=dx, dy=dy)
        layers.append(text.encode(text="label:N", **place, **away))
    return layers


def _curve(plot: Curve) -> list[alt.Chart]:
    plot = _drawable(plot)
    names = list(dict.fromkeys(one.series for one in plot.spots))
    colours = {name: series(at) for at, name in enumerate(names)}
    colour = _colour("series", colours, legend=len(names) > 1, title=plot.legend)
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
    data = _data(rows)
    x, y = _axis(plot.x, "x", alt.X), _axis(plot.y, "y", alt.Y)
    layers = _rules(plot.rules, plot.x, plot.y, [one.x for one in plot.spots])
    if plot.frontier:
        edge = _data([{"x": at, "y": up, "n": n} for n, (at, up) in enumerate(plot.frontier)])
        layers.append(edge.mark_line(color="var(--muted)", strokeDash=[2, 3], clip=True).encode(x=x, y=y, order="n:Q"))
    elif plot.joined:
        layers.append(data.mark_line(strokeWidth=1.5, opacity=0.6).encode(x=x, y=y, color=colour, order="n:Q"))
    if any(one.y_interval for one in plot.spots):
        layers.append(
            data.mark_rule(opacity=0.55, strokeWidth=2).encode(
                x=x, y=_axis(plot.y, "y0", alt.Y), y2="y1:Q", color=colour
            )
        )
    if any(one.x_interval for one in plot.spots):
        layers.append(
            data.mark_rule(opacity=0.55, strokeWidth=2).encode(
                y=y, x=_axis(plot.x, "x0", alt.X), x2="x1:Q", color=colour
            )
        )
    tooltip = [alt.Tooltip(f"d{at}", type="nominal", title=key) for at, key in enumerate(keys)]
    layers.append(data.mark_point(filled=True, opacity=1, size=64).encode(x=x, y=y, color=colour, tooltip=tooltip))
    for mark, (shape, size) in MARKS.items():
        marked = [row for row, one in zip(rows, plot.spots, strict=True) if mark in one.marks]
        if marked:
            around = _data(marked).mark_point(shape=shape, size=size, filled=False, opacity=1, strokeWidth=2)
            layers.append(around.encode(x=x, y=y, color=alt.value("var(--ink)")))
    for name, side in labels.SIDES.items():
        beside = [row for row in rows if row["side"] == name]
        if beside:
            text = _data(beside).mark_text(align=side.align, dx=side.dx * 1.9, dy=side.dy * 1.3, color="var(--ink)")
            layers.append(text.encode(x=x, y=y, text="label:N"))
    return layers


def _drawable(plot: Curve) -> Curve:
    """Without points that have no place."""
    spots = [
        replace(one, x=within(one.x), y=within(one.y))
        for one in plot.spots
        if math.isfinite(one.x) and math.isfinite(one.y)
    ]
    return replace(plot, spots=spots)


def _lines(plot: Lines) -> list[alt.Chart]:
    rows = [{"x": x, "y": y, "name": one.name} for one in plot.lines for x, y in zip(one.xs, one.ys, strict=True)]
    data = _data(rows)
    colour = _colour("name", {one.name: one.colour for one in plot.lines}, legend=len(plot.lines) > 1)
    x, y = _axis(plot.x, "x", alt.X), _axis(plot.y, "y", alt.Y, zero=True, stack="zero" if plot.stacked else None)
    if plot.stacked:
        order = alt.Order("place:Q")
        places = {one.name: at for at, one in enumerate(plot.lines)}
        data = _data([row | {"place": places[str(row["name"])]} for row in rows])
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
    rules = _rules(plot.rules, plot.x, plot.y, [x for one in plot.lines for x in one.xs])
    return [*rules, marks, points.add_params(hover)]


def _bars(plot: Bars) -> list[alt.Chart]:
    places = {part: at for at, part in enumerate(plot.colours)}
    data = _data([{"bar": bar, "part": part, "value": value, "place": places[part]} for bar, part, value in plot.parts])
    what = ".1%" if plot.x.percent else ",.4~g"
    tooltip = [
        alt.Tooltip("bar:N", title="of"), alt.Tooltip("part:N", title="part"),
        alt.Tooltip("value:Q", title=plot.x.title, format=what),
    ]  # fmt: skip
    return [
        data.mark_bar(height={"band": 0.72}).encode(
            x=_axis(plot.x, "value", alt.X, stack="zero"),
            y=alt.Y("bar:N", sort=None, title=None, axis=alt.Axis(labelLimit=150, grid=False)),
            color=_colour("part", dict(plot.colours)),
            order=alt.Order("place:Q"),
            tooltip=tooltip,
        )
    ]


def _seats(plot: Seats) -> list[alt.Chart]:
    data = _data([{"slot": slot, "is": state, "a": begin, "b": end} for slot, state, begin, end in plot.spans])
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
        _data(empty).mark_bar(color="var(--idle)", clip=True).encode(y=slots, x=_axis(plot.x, "a", alt.X), x2="b:Q")
    )
    bars = data.mark_bar(clip=True).encode(
        x=_axis(plot.x, "a", alt.X), x2="b:Q", y=slots, color=_colour("is", dict(plot.colours)), tooltip=tooltip
    )
    return [ground, bars.add_params(zoom)]


def _config() -> Spec:
    words = {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "labelFontSize": 11, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": words | {
            "gridColor": "var(--grid)", "domainColor": "var(--grid)", "tickColor": "var(--grid)",
            "titleFontWeight": "normal", "titlePadding": 8, "labelOverlap": "greedy", "labelSeparation": 6,
        },
        "axisX": {"grid": False},
        "legend": words | {
            "symbolType": "circle", "symbolOpacity": 1, "symbolSize": 70, "labelColor": "var(--ink)", "labelLimit": 260,
        },
        "title": {
            "color": "var(--ink)", "subtitleColor": "var(--muted)", "fontSize": 15, "subtitleFontSize": 11,
            "fontWeight": 600, "subtitlePadding": 5,
        },
        "text": {"fontSize": 11},
    }  # fmt: skip
