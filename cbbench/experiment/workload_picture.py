"""A picture of length distributions: the share of requests with at most so many tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from reports.document import Axis, Chart, Line, Lines
from reports.render.palette import series
from workloads.columns import IntColumn

POINTS = 50  # of a line


def length_chart(name: str, title: str, columns: Mapping[str, IntColumn], caption: str = "") -> Chart:
    """One line for each column of token counts, by its name."""
    lines = []
    for at, (label, tokens) in enumerate(columns.items()):
        shares = (np.arange(POINTS) + 0.5) / POINTS
        shares = np.concatenate([[0.001], shares, [0.999]])
        lengths = np.quantile(tokens, shares, method="inverted_cdf")
        lines.append(Line(label, lengths.tolist(), shares.tolist(), series(at)))
    plot = Lines(Axis("tokens", log=True), Axis("requests with at most as many", percent=True), lines)
    return Chart(name, title, plot, caption)


def length_svg(chart: Chart) -> str:
    """Without the points that only a page shows, under the pointer: they are most of the file."""
    from reports.render.charts.vega import svg

    return re.sub(r'<path [^>]*opacity="0"/>', "", svg(chart))
