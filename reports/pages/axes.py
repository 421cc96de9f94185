"""Axes that fit their values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.document import Axis

LOG_SPAN = 10.0
NARROW = 0.02  # a span below this share of the values is hardly a difference: it may not fill the chart


def fitted(title: str, values: Sequence[float], *, may_be_log: bool = True) -> Axis:
    """Logarithmic when the values span more than 10x; with some room around them, and from 0 where they come near."""
    low, high = min(values), max(values)
    if may_be_log and low > 0 and high > LOG_SPAN * low:
        room = (high / low) ** 0.06
        return Axis(title, log=True, domain=(low / room, high * room), ticks=log_ticks(low / room, high * room))
    size = max(abs(low), abs(high))
    room = (0.05 * size if high - low < NARROW * size else 0.08 * (high - low)) or 1.0
    return Axis(title, domain=(0.0 if 0 <= low < 0.4 * high else low - room, high + room))


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ...; over more than three decades the powers of ten alone."""
    steps = (1,) if high / low > 1000 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for power in powers for step in steps if low <= (tick := step * 10.0**power) <= high]
