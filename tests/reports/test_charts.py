"""Charts, drawn without a browser."""

from __future__ import annotations

import json
import math
import re
import struct
import subprocess
import sys

import pytest

from reports.document import Axis, Bars, Chart, Curve, Line, Lines, Rule, SlotTimeline, Spot
from reports.render.axis_limits import fitted
from reports.render.charts.vega import SCALE, WIDTH, png, spec, svg

SPOTS = [
    Spot(10, 5, "1", "static", {"limit": "slots"}, (4, 7), (9, 11)),
    Spot(20, 9, "2", "static", {"limit": "kv"}, marks=["knee"]),
    Spot(30, 20, "3", "continuous", {"limit": "kv"}),
]
PLOTS = {
    "curve": Curve(Axis("output tok/s"), Axis("P99, ms", log=True), SPOTS, [Rule(10, "p99<=10")]),
    "lines": Lines(
        Axis("s"), Axis("busy", percent=True), [Line("a", [0, 1, 2], [0.5, None, 1]), Line("b", [0], [1.0])]
    ),
    "areas": Lines(Axis("s"), Axis("slots"), [Line("a", [0, 1], [1, 2]), Line("b", [0, 1], [2, 1])], stacked=True),
    "bars": Bars(
        Axis("ms"), [("mean", "queue", 5.0), ("mean", "decode", 9.0)], {"queue": "padding", "decode": "decode"}
    ),
    "slots": SlotTimeline(
        Axis("step", domain=(0, 9)), 2, 9, [(0, "decode", 0, 5), (1, "decode", 1, 9)], {"decode": "decode"}
    ),
}


@pytest.mark.parametrize("kind", PLOTS)
def test_every_kind_is_drawn(kind: str) -> None:
    chart = Chart(kind, "Its title & more", PLOTS[kind], "Its caption.")
    drawn = svg(chart)
    assert "Its title &amp; more" in drawn
    assert "Its caption." in drawn
    assert "var(--" not in drawn  # a picture knows no page to take colours from
    assert drawn.count("<path") > 10
    assert drawn == svg(chart)


@pytest.mark.parametrize("most", [1.0, 0.004])
def test_no_two_ticks_of_a_share_read_alike(most: float) -> None:
    chart = Chart("kv", "KV", Lines(Axis("s"), Axis("KV", percent=True), [Line("a", [0, 1, 2], [0.0, most / 2, most])]))
    ticks = re.findall(r">([\d.]+%)<", svg(chart))
    assert len(ticks) >= 3
    assert len(set(ticks)) == len(ticks), ticks


@pytest.mark.parametrize("value", [1.7e308, 1e-320, math.inf, -math.inf, math.nan])
def test_a_number_too_large_or_none_at_all_spoils_no_chart(value: float) -> None:
    """JSON has no infinity: with one in it, a page would draw none of its charts."""
    kinds = {
        "curve": Curve(
            fitted("x", [10, value]),
            fitted("P99, ms", [5, 9, value]),
            [*SPOTS, Spot(value, 9, "far", "static"), Spot(20, value, "high", "static", y_interval=(1, value))],
            [Rule(value, "p99<=far")],
        ),
        "lines": Lines(
            fitted("s", [0, 1, value]),
            Axis("y"),
            [Line("a", [0, 1, value], [0.5, value, 1])],
            [Rule(value, "far", "x")],
        ),
        "bars": Bars(
            Axis("ms"), [("mean", "queue", value), ("mean", "decode", 9.0)], {"queue": "padding", "decode": "decode"}
        ),
    }
    for name, plot in kinds.items():
        chart = Chart(name, "Far", plot)
        json.dumps(spec(chart), allow_nan=False)
        drawn = svg(chart)
        assert drawn.count("<path") > 3, name
        assert "NaN" not in drawn, name


def test_a_curve_shows_labels_rules_and_why() -> None:
    drawn = svg(Chart("curve", "Curve", PLOTS["curve"]))
    for word in ("p99&lt;=10", "static", "continuous", "limit: slots"):
        assert word in drawn, word
    labels = re.findall(r'<text text-anchor="\w+" transform="[^"]*"[^>]*>([123])</text>', drawn)
    assert sorted(labels) == ["1", "2", "3"]


def test_each_mark_has_its_shape_and_a_legend_its_title() -> None:
    spots = [Spot(1, 1, "", "a", marks=["recommended"]), Spot(2, 2, "", "b", marks=["knee"]), Spot(3, 3, "", "b")]
    chart = Chart("curve", "Curve", Curve(Axis("x"), Axis("y"), spots, legend="the-option"))
    made = spec(chart)
    shaped = [one for one in made["layer"] if "shape" in one["mark"]]
    around = {one["mark"]["shape"]: made["datasets"][one["data"]["name"]] for one in shaped}
    marked = {shape: [row["x"] for row in rows] for shape, rows in around.items()}
    assert marked == {"circle": [1], "diamond": [2]}
    assert ">the-option<" in svg(chart)


def test_words_are_not_joined() -> None:
    def lines(plot: Curve) -> int:
        return sum(one["mark"]["type"] == "line" for one in spec(Chart("c", "C", plot))["layer"])

    assert lines(Curve(Axis("x"), Axis("y"), SPOTS)) == 1
    assert lines(Curve(Axis("x"), Axis("y"), SPOTS, joined=False)) == 0


def test_png() -> None:
    picture = png(Chart("bars", "Bars", PLOTS["bars"]))
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, _ = struct.unpack(">II", picture[16:24])
    assert width >= WIDTH * SCALE


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['altair'] = None\n"
        "from workloads.errors import CbbenchError\n"
        "try:\n    import reports.render.charts\n"
        "except CbbenchError as error: print(error)\n"
        "import reports.render.html, reports.render.markdown, reports.render.csv\n"
        "import reports.pages.run, reports.pages.sweep, reports.pages.comparison\n"
        "assert 'vl_convert' not in sys.modules\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = 'charts need altair and vl-convert: pip install "cbbench[charts]" (a page without charts: `no_charts`)\n'
    assert told.stdout == said
