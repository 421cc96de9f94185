"""A chart as a Vega-Lite specification, and drawn from it: the script of a page, SVG and PNG."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import altair as alt
import vl_convert

from reports.document import Bars, Chart, Curve, Lines
from reports.render.axis_limits import within
from reports.render.charts.curve import curve_layers
from reports.render.charts.layers import bar_layers, line_layers, slot_layers
from reports.render.palette import LIGHT

Spec = dict[str, Any]

HEIGHT = 340  # of a curve, in pixels
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"


@cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, for every chart of a page; it defines window.vegaEmbed."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def spec(chart: Chart) -> Spec:
    """Vega-Lite with the data inside, as wide as its container."""
    plot = chart.plot
    if isinstance(plot, Curve):
        layers, height = curve_layers(plot), HEIGHT
    elif isinstance(plot, Lines):
        layers, height = line_layers(plot), 220
    elif isinstance(plot, Bars):
        layers, height = bar_layers(plot), 34 * len({bar for bar, _, _ in plot.parts}) + 10
    else:
        layers, height = slot_layers(plot), plot.slots * (18 if plot.slots <= 8 else 12 if plot.slots <= 32 else 8)
    made: Spec = alt.layer(*layers).properties(width="container", height=height).to_dict(validate=False)
    made["config"] = _config()
    made["autosize"] = {"type": "fit-x", "contains": "padding"}
    return cast(Spec, with_values(made, _json_value))


def with_values(found: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of nested objects and lists with `change` applied to every value."""
    if isinstance(found, dict):
        return {key: with_values(one, change) for key, one in found.items()}
    if isinstance(found, list):
        return [with_values(one, change) for one in found]
    return change(found)


def _json_value(value: Any) -> Any:
    """None for what is no number, which is a gap; numbers beyond the limits of an axis are moved onto them."""
    if isinstance(value, float):
        return within(value) if math.isfinite(value) else None
    return value


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


WIDTH = 720  # pixels
SCALE = 2.0  # of PNG, for high-density screens


def svg(chart: Chart) -> str:
    """With ids that depend on this chart alone: vl-convert numbers clip paths across pictures."""
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
    return cast(Spec, with_values(made, _coloured))


def _coloured(value: Any) -> Any:
    """The colour of a CSS variable: outside a page there are none."""
    found = re.fullmatch(r"var\(--([\w-]+)\)", value) if isinstance(value, str) else None
    return LIGHT[found[1]] if found else value


def _wrapped(text: str, width: int = 110) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines
