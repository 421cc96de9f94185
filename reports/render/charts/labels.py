"""Places for the labels of a curve's points: never over another label or point, and off the lines if possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from reports.document import Axis, Spot

# The narrowest chart, on a phone, in pixels: labels that fit there fit anywhere.
WIDTH, HEIGHT = 320.0, 260.0
LETTER, LINE, POINT = 6.2, 12.0, 4.0
STRIDE = 5.0  # pixels between the sampled places of a line


class Side(NamedTuple):
    """Where a label stands, relative to its point."""

    align: Literal["left", "center", "right"]  # of the text
    dx: int
    dy: int


SIDES = {
    "right": Side("left", 8, 0),
    "above": Side("center", 0, -11),
    "below": Side("center", 0, 12),
    "left": Side("right", -8, 0),
}


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def place(spots: Sequence[Spot], x: Axis, y: Axis) -> list[str | None]:
    """The side of each spot's label, None where there is no room. Marked spots are placed first."""
    if not spots:
        return []
    xs = _scaled([one.x for one in spots], x, WIDTH)
    ys = [HEIGHT - up for up in _scaled([one.y for one in spots], y, HEIGHT)]
    lines = _lines(spots, xs, ys)
    taken = [_around(*at, POINT) for at in zip(xs, ys, strict=True)]
    sides: list[str | None] = [None] * len(spots)
    for index in sorted(range(len(spots)), key=lambda one: (not spots[one].marks, one)):
        if not spots[index].label:
            continue
        boxes = {
            name: _box(xs[index], ys[index], LETTER * len(spots[index].label), side) for name, side in SIDES.items()
        }
        inside = [name for name, box in boxes.items() if _inside(box)]
        covered = {name: sum(boxes[name].meets(other) for other in taken) for name in inside}
        # A marked spot is named even where its label must cover something.
        fits = inside if spots[index].marks else [name for name in inside if not covered[name]]
        if fits:
            best = min(fits, key=lambda name: (covered[name], sum(boxes[name].meets(dot) for dot in lines)))
            sides[index] = best
            taken.append(boxes[best])
    return sides


def _lines(spots: Sequence[Spot], xs: Sequence[float], ys: Sequence[float]) -> list[Box]:
    """Dots along the lines of each series, and on the intervals of its spots as far as a label reaches."""
    dots = [
        _around(x, y + away, 0.5)
        for one, x, y in zip(spots, xs, ys, strict=True)
        if one.y_interval
        for away in (-11, 12)
    ]
    for a, b in pairwise(range(len(spots))):
        if spots[a].series == spots[b].series:
            steps = max(1, int(math.hypot(xs[b] - xs[a], ys[b] - ys[a]) / STRIDE))
            for step in range(steps + 1):
                at = step / steps
                dots.append(_around(xs[a] + (xs[b] - xs[a]) * at, ys[a] + (ys[b] - ys[a]) * at, 0.5))
    return dots


def _scaled(values: Sequence[float], axis: Axis, length: float) -> list[float]:
    low, high = axis.domain or (min(values), max(values))
    if axis.log:
        values, low, high = [math.log(one) for one in values], math.log(low), math.log(high)
    span = (high - low) or 1.0
    return [(one - low) / span * length for one in values]


def _inside(box: Box) -> bool:
    return box.left >= -2 and box.top >= 0 and max(box.right - WIDTH, box.bottom - HEIGHT) <= 2


def _around(x: float, y: float, reach: float) -> Box:
    return Box(x - reach, y - reach, x + reach, y + reach)


def _box(x: float, y: float, width: float, side: Side) -> Box:
    left = {"left": x + side.dx, "center": x - width / 2, "right": x + side.dx - width}[side.align]
    return Box(left, y + side.dy - LINE / 2, left + width, y + side.dy + LINE / 2)
