"""Curves in a terminal, in braille dots: each character cell is 2 dots wide and 4 high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bit of the dot in row, column of a cell
MARKER = "●"
LOG_SPAN = 10.0


class Axis:
    """Maps values onto 0..1; logarithmic when they are positive and span more than 10x."""

    def __init__(self, values: Sequence[float], *, may_be_log: bool = True) -> None:
        low, high = min(values), max(values)
        self.log = may_be_log and low > 0 and high / low > LOG_SPAN
        if not self.log:
            # A flat curve would sit on the frame, and one that starts high would look like it started at nothing.
            pad = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
            low, high = max(0.0, low - pad) if low >= 0 else low - pad, high + pad
        self.low, self.high = low, high

    def at(self, value: float) -> float:
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, at: float) -> float:
        if self.log:
            return self.low * math.pow(self.high / self.low, at)
        return self.low + at * (self.high - self.low)


def curve(
    xs: Sequence[float],
    ys: Sequence[float],
    labels: Sequence[str],
    *,
    x_name: str,
    y_name: str,
    width: int = 72,
    height: int = 14,
) -> Text:
    """Points joined in the order given, each with its label. The y axis is logarithmic when it spans more than 10x."""
    points = [one for one in zip(xs, ys, labels, strict=True) if math.isfinite(one[0]) and math.isfinite(one[1])]
    if not points:
        return Text(f"{y_name}: nothing to plot", style="dim")
    x_axis = Axis([x for x, _, _ in points], may_be_log=False)
    y_axis = Axis([y for _, y, _ in points])
    ticks = {row: tick(y_axis.value(1 - row / (height - 1))) for row in (0, (height - 1) // 2, height - 1)}
    margin = max(map(len, ticks.values()))
    columns = max(16, width - margin - 2)
    places = [(x_axis.at(x) * (2 * columns - 1), (1 - y_axis.at(y)) * (4 * height - 1)) for x, y, _ in points]
    cells = _lines(places, columns, height)
    _place_labels(cells, places, [label for _, _, label in points])
    out = Text(f"{y_name}{' (log)' if y_axis.log else ''}\n", style="bold")
    for row in range(height):
        out.append(f"{ticks.get(row, ''):>{margin}} ┤", style="dim")
        for char in cells[row]:
            out.append(char, style="cyan" if BRAILLE <= ord(char) < BRAILLE + 256 else "bold")
        out.append("\n")
    left, right = tick(x_axis.value(0)), tick(x_axis.value(1))
    out.append(f"{'':>{margin}} └{'─' * columns}\n", style="dim")
    out.append(f"{'':>{margin}}  {left}{x_name:^{max(1, columns - len(left) - len(right))}}{right}", style="dim")
    return out


def _lines(places: Sequence[tuple[float, float]], columns: int, height: int) -> list[list[str]]:
    bits = [[0] * columns for _ in range(height)]
    for (x0, y0), (x1, y1) in pairwise(places):
        steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(steps + 1):
            x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
            bits[y // 4][x // 2] |= DOTS[y % 4][x % 2]
    return [[chr(BRAILLE + cell) if cell else " " for cell in line] for line in bits]


def _place_labels(cells: list[list[str]], places: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """A marker at every point, and its label right or left of it, in its row or the one above or below: over empty
    cells if there is such a place, else over the line, but never over another label."""
    spots = [(round(x) // 2, round(y) // 4) for x, y in places]
    taken = set(spots)
    for column, row in spots:
        cells[row][column] = MARKER
    for (column, row), label in zip(spots, labels, strict=True):
        free: list[tuple[int, int, int, int]] = []
        for line, start in [(row + down, column + side) for down in (0, -1, 1) for side in (2, -len(label) - 1)]:
            wanted = {(start + offset, line) for offset in range(len(label))}
            if 0 <= line < len(cells) and start >= 0 and start + len(label) <= len(cells[0]) and not wanted & taken:
                covered = sum(cells[line][at] != " " for at in range(start, start + len(label)))
                free.append((covered, len(free), line, start))
        if free:
            _, _, line, start = min(free)
            cells[line][start : start + len(label)] = label
            taken |= {(start + offset, line) for offset in range(len(label))}


def tick(value: float) -> str:
    """Three significant digits, with thousands as k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g}k" if abs(value) < 1e6 else f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
