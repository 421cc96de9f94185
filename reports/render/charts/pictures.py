"""A chart as a picture: SVG or PNG, on white paper, with its title."""

from __future__ import annotations

import re
from typing import Any, cast

import vl_convert

from reports.document import Chart
from reports.render.charts.spec import Spec, spec, with_values
from reports.render.palette import LIGHT

WIDTH = 720  # pixels
SCALE = 2.0  # of PNG, for screens of today


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
    return cast(Spec, with_values(made, _coloured))


def _coloured(value: Any) -> Any:
    """The colour itself: outside a page nothing knows the variables."""
    found = re.fullmatch(r"var\(--([\w-]+)\)", value) if isinstance(value, str) else None
    return LIGHT[found[1]] if found else value


def _wrapped(text: str, width: int = 110) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines
