"""Chooses the best of several variants: correct, and faster than the shipped one by more than noise.

The shipped variant is timed before and after the others; the difference is the noise. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import mean
from typing import Any

LARGEST_ERROR = 1e-2  # of 16-bit numbers summed in another order; a wrong result is off by far more
SHIPPED = "shipped"


@dataclass(frozen=True)
class Trial:
    name: str
    us: float | None = None  # of a call
    error: float | None = None  # |result - shipped result| / |shipped result|; None where that is no number
    problem: str | None = None  # why it did not run

    @property
    def right(self) -> bool:
        return self.us is not None and self.error is not None and self.error <= LARGEST_ERROR


def compared(shipped_us: Sequence[float], trials: Sequence[Trial]) -> dict[str, Any]:
    """best: the shipped variant, unless a correct one is faster by more than the noise."""
    us, noise = min(shipped_us), max(shipped_us) / min(shipped_us) - 1
    fastest = min((one for one in trials if one.right), key=lambda one: one.us or 0.0, default=None)
    gain = us / fastest.us - 1 if fastest is not None and fastest.us else 0.0
    better = fastest is not None and gain > noise
    return {
        "us": us,
        "noise": noise,
        "best": fastest.name if fastest is not None and better else SHIPPED,
        "best_us": fastest.us if fastest is not None and better else us,
        "gain": gain if better else 0.0,
        "tried": {one.name: one.us for one in trials if one.right},
        "wrong": {one.name: one.error for one in trials if one.us is not None and not one.right},
        "failed": {one.name: one.problem for one in trials if one.problem is not None},
    }


def over_all(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The variant that is correct in all `compared` cells and fastest by the geometric mean.

    A gain within the noise of the noisiest cell counts as none.
    """
    everywhere = set.intersection(*(set(cell["tried"]) for cell in cells)) if cells else set()
    gains = {name: exp(mean(log(cell["us"] / cell["tried"][name]) for cell in cells)) - 1 for name in everywhere}
    best = max(sorted(gains), key=lambda name: gains[name], default=SHIPPED)
    if gains.get(best, 0.0) <= max((cell["noise"] for cell in cells), default=0.0):
        return {"best": SHIPPED, "gain": 0.0, "cells": len(cells)}
    return {"best": best, "gain": gains[best], "cells": len(cells)}
