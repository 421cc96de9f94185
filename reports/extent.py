"""How far a chart's axis can reach. Beyond it, doubles overflow where room is added or a square is taken."""

from __future__ import annotations

import math
from collections.abc import Iterable

FARTHEST = 1e150


def drawable(values: Iterable[float]) -> list[float]:
    """Those that are numbers, none farther than FARTHEST."""
    return [within(one) for one in values if math.isfinite(one)]


def within(value: float) -> float:
    return max(-FARTHEST, min(FARTHEST, value))
