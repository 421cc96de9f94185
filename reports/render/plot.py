"""Curves in a terminal, in braille dots: each character cell is 2 dots wide and 4 high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

from reports.render.axis_limits import within

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bit of the dot in row, column of a cell
MARKERS = "●○◆◇■□▲△"
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
LOG_SPAN = 10.0
NARROW = 0.02  # a span below this share of the values is widened, so that noise does not fill the plot

Place = tuple[float, float]  # in dots, from the left and from the top


@dataclass(frozen=True)
class Line:
    """Points joined in the order given, each with its label."""

    xs: Sequence[float]
    ys: Sequence[float]
    labels: Sequence[str]
    name: str = ""  # in the legend

    def points(self) -> list[tuple[float, float, str]]:
        listed = zip(self.xs, self.ys, self.labels, strict=True)
        return [(within(x), within(y), label) for x, y, label in listed if math.isfinite(x) and math.isfinite(y)]


class Axis:
    """Maps values onto 0..1; logarithmic when they are positive and span more than 10x."""

    def __init__(self, values: Sequence[float], *, may_be_log: bool = True) -> None:
        low, high = min(values), max(values)
        self.log = may_be_log and low > 0 and math.log(high) - math.log(low) > math.log(LOG_SPAN)
        if not self.log:
            # Room, so that a flat curve does not lie on the frame and a high start does not look like 0.
            size = max(abs(low), abs(high))
            pad = 0.05 * (size if high - low < NARROW * size else high - low) or 1.0
            low, high = max(0.0, low - pad) if low >= 0 else low - pad, high + pad
        self.low, self.high = low, high

    def at(self, value: float) -> float:
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def value(self, at: float) -> float:
        if self.log:
            return math.exp(math.log(self.low) + at * (math.log(self.high) - math.log(self.low)))
        return self.low + at * (self.high - self.low)


class Canvas:
    """Characters, and the index of the line that each belongs to."""

    def __init__(self, columns: int, height: int) -> None:
        self.cells = [[" "] * columns for _ in range(height)]
        self.owners = [[0] * columns for _ in range(height)]
        self._taken: set[tuple[int, int]] = set()  # column, row

    def join(self, places: Sequence[Place], owner: int) -> None:
        for (x0, y0), (x1, y1) in pairwise(places):
            steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps + 1):
                x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
                char = self.cells[y // 4][x // 2]
                dots = ord(char) - BRAILLE if char != " " else 0
                self.cells[y // 4][x // 2] = chr(BRAILLE + (dots | DOTS[y % 4][x % 2]))
                self.owners[y // 4][x // 2] = owner

    def mark(self, places: Sequence[Place], owner: int) -> None:
        for column, row in map(cell_of, places):
            self.cells[row][column] = MARKERS[owner % len(MARKERS)]
            self.owners[row][column] = owner
            self._taken.add((column, row))

    def label(self, place: Place, text: str, owner: int) -> None:
        """Beside its marker, in its row or the one above or below: over empty cells if possible, else over a line;
        never over another label or marker. Left out where there is no such place."""
        column, row = cell_of(place)
        free: list[tuple[int, int, int, int]] = []
        for line, start in [(row + down, column + side) for down in (0, -1, 1) for side in (2, -len(text) - 1)]:
            wanted = {(start + offset, line) for offset in range(len(text))}
            if not (0 <= line < len(self.cells) and start >= 0 and start + len(text) <= len(self.cells[0])):
                continue
            if not wanted & self._taken:
                covered = sum(self.cells[line][at] != " " for at in range(start, start + len(text)))
                free.append((covered, len(free), line, start))
        if free:
            _, _, line, start = min(free)
            self.cells[line][start : start + len(text)] = text
            self.owners[line][start : start + len(text)] = [owner] * len(text)
            self._taken |= {(start + offset, line) for offset in range(len(text))}

    def row(self, at: int) -> Text:
        text = Text()
        for char, owner in zip(self.cells[at], self.owners[at], strict=True):
            colour = COLOURS[owner % len(COLOURS)]
            text.append(char, style=colour if BRAILLE <= ord(char) < BRAILLE + 256 else "bold")
        return text


def cell_of(place: Place) -> tuple[int, int]:
    return round(place[0]) // 2, round(place[1]) // 4


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
    """One line. The y axis is logarithmic when it spans more than 10x."""
    return plot([Line(xs, ys, labels)], x_name=x_name, y_name=y_name, width=width, height=height)


def plot(
    lines: Sequence[Line], *, x_name: str, y_name: str, width: int = 72, height: int = 14, log_x: bool = False
) -> Text:
    """Several lines on the same axes, told apart by marker and colour; a legend where there is more than one."""
    drawn = [(line, points) for line in lines if (points := line.points())]
    if not drawn:
        return Text(f"{y_name}: nothing to plot", style="dim")
    x_axis = Axis([x for _, points in drawn for x, _, _ in points], may_be_log=log_x)
    y_axis = Axis([y for _, points in drawn for _, y, _ in points])
    ticks = {row: tick(y_axis.value(1 - row / (height - 1))) for row in (0, (height - 1) // 2, height - 1)}
    margin = max(map(len, ticks.values()))
    columns = max(16, width - margin - 2)
    canvas = Canvas(columns, height)
    places = [
        [(x_axis.at(x) * (2 * columns - 1), (1 - y_axis.at(y)) * (4 * height - 1)) for x, y, _ in points]
        for _, points in drawn
    ]
    for owner, spots in enumerate(places):
        canvas.join(spots, owner)
    for owner, spots in enumerate(places):  # over all lines
        canvas.mark(spots, owner)
    for owner, (spots, (_, points)) in enumerate(zip(places, drawn, strict=True)):
        for spot, (_, _, label) in zip(spots, points, strict=True):
            canvas.label(spot, label, owner)
    out = Text(f"{y_name}{' (log)' if y_axis.log else ''}\n", style="bold")
    if len(lines) > 1:
        out.append(_legend([line.name for line, _ in drawn], width)).append("\n")
    for row in range(height):
        out.append(f"{ticks.get(row, ''):>{margin}} ┤", style="dim").append(canvas.row(row)).append("\n")
    left, right = tick(x_axis.value(0)), tick(x_axis.value(1))
    name = f"{x_name} (log)" if x_axis.log else x_name
    out.append(f"{'':>{margin}} └{'─' * columns}\n", style="dim")
    between = columns - len(left) - len(right)
    inline = name if len(name) + 2 <= between else ""  # else the name gets a line of its own
    out.append(f"{'':>{margin}}  {left}{inline:^{max(1, between)}}{right}", style="dim")
    if not inline:
        out.append(f"\n{'':>{margin}}  {name:^{columns}}", style="dim")
    return out


def _legend(names: Sequence[str], width: int) -> Text:
    """Entries in lines of at most `width`; a line never breaks inside an entry."""
    lines: list[list[Text]] = [[]]
    for at, name in enumerate(names):
        entry = Text(f"{MARKERS[at % len(MARKERS)]} {name}", style=COLOURS[at % len(COLOURS)])
        if lines[-1] and sum(len(one) + 3 for one in lines[-1]) + len(entry) > width:
            lines.append([])
        lines[-1].append(entry)
    return Text("\n").join(Text("   ", style="not bold").join(line) for line in lines)


def tick(value: float) -> str:
    """Three significant digits, with thousands as k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g}k" if abs(value) < 1e6 else f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
