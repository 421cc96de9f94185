"""Where the labels of a curve's points go, so that none lies over another or over a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from reports.document import Axis, Spot

# The chart as narrow as it gets on a phone: what fits there fits anywhere. In pixels.
WIDTH, HEIGHT = 330.0, 260.0
LETTER, LINE, POINT = 6.2, 12.0, 4.0


class Side(NamedTuple):
    """Where a label stands, seen from its point."""

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
        apart = self.right <= other.left or other.right <= self.left or self.bottom <= other.top
        return not (apart or other.bottom <= self.top)


def place(spots: Sequence[Spot], x: Axis, y: Axis) -> list[str | None]:
    """The side of each spot's label, None where there is no room for it. Marked spots come first."""
    if not spots:
        return []
    xs, ys = _scaled([one.x for one in spots], x, WIDTH), _scaled([one.y for one in spots], y, HEIGHT)
    points = [
        Box(at - POINT, HEIGHT - up - POINT, at + POINT, HEIGHT - up + POINT) for at, up in zip(xs, ys, strict=True)
    ]
    sides: list[str | None] = [None] * len(spots)
    taken = list(points)
    for index in sorted(range(len(spots)), key=lambda one: (not spots[one].mark, one)):
        width = LETTER * len(spots[index].label)
        for name, side in SIDES.items():
            box = _box(xs[index], HEIGHT - ys[index], width, side)
            inside = box.left >= -2 and box.right <= WIDTH + 2 and box.top >= 0 and box.bottom <= HEIGHT
            if spots[index].label and inside and not any(box.meets(other) for other in taken):
                sides[index] = name
                taken.append(box)
                break
    return sides


def _scaled(values: Sequence[float], axis: Axis, length: float) -> list[float]:
    low, high = axis.domain or (min(values), max(values))
    if axis.log:
        values, low, high = [math.log(one) for one in values], math.log(low), math.log(high)
    span = (high - low) or 1.0
    return [(one - low) / span * length for one in values]


def _box(x: float, y: float, width: float, side: Side) -> Box:
    left = {"left": x + side.dx, "center": x - width / 2, "right": x + side.dx - width}[side.align]
    return Box(left, y + side.dy - LINE / 2, left + width, y + side.dy + LINE / 2)
