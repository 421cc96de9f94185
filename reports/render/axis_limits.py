"""The limits of a chart's axis: fitted to the values, and never so far that doubles overflow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from reports.document import Axis

FARTHEST = 1e150


def drawable(values: Iterable[float]) -> list[float]:
    """The finite values, moved to within ±FARTHEST."""
    return [within(one) for one in values if math.isfinite(one)]


def within(value: float) -> float:
    return max(-FARTHEST, min(FARTHEST, value))


LOG_SPAN = 10.0
MOST_POWERS = 30  # of ten on one axis
LOG_NEAREST, LOG_FARTHEST = -690.0, math.log(FARTHEST) + 2  # of an axis, with some room
NARROW = 0.02  # a span below this share of the values is hardly a difference: it may not fill the chart


def fitted(title: str, values: Sequence[float], *, may_be_log: bool = True) -> Axis:
    """An axis with some room around the values: logarithmic where they span more than 10x, from 0 where they come near.
    Values that are no numbers are left out, those beyond FARTHEST count as FARTHEST."""
    known = drawable(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if may_be_log and low > 0 and high > LOG_SPAN * low:
        room = 0.06 * (math.log(high) - math.log(low))
        low = math.exp(max(math.log(low) - room, LOG_NEAREST))
        high = math.exp(min(math.log(high) + room, LOG_FARTHEST))
        return Axis(title, log=True, domain=(low, high), ticks=log_ticks(low, high))
    size = max(abs(low), abs(high))
    room = (0.05 * size if high - low < NARROW * size else 0.08 * (high - low)) or 1.0
    return Axis(title, domain=(0.0 if 0 <= low < 0.4 * high else low - room, high + room))


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ...; over more than three decades powers of ten alone, at most about MOST_POWERS of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1,) if math.log10(high) - math.log10(low) > 3 else (1, 2, 5)
    powers = range(first, last + 1, 1 + (last - first) // MOST_POWERS)
    return [tick for power in powers for step in steps if low <= (tick := step * 10.0**power) <= high]
