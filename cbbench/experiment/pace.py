"""How long the rest of a sweep will take, from the runs made so far."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from cbbench.config import RunConfig
from workloads.rates import RateSchedule, read_rate


class Pace:
    """A run of an open loop takes as long as its schedule, and about as much more as the others did."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._started_s = 0.0
        self._beyond_schedule_s: list[float] = []

    def begin(self) -> None:
        self._started_s = self._clock_s()

    def end(self, config: RunConfig) -> None:
        self._beyond_schedule_s.append(self._clock_s() - self._started_s - schedule_s(config))

    def left_s(self, configs: Sequence[RunConfig]) -> float | None:
        """For these runs; None before the first has ended."""
        if not self._beyond_schedule_s:
            return None
        beyond_s = max(0.0, statistics.fmean(self._beyond_schedule_s))
        return sum(schedule_s(config) + beyond_s for config in configs)


def schedule_s(config: RunConfig) -> float:
    """How long requests go on arriving; 0 where nothing is scheduled, or only on a virtual clock."""
    if config.rate is None or config.engine == "simulated":
        return 0.0
    rate = read_rate(config.rate)
    lasts_s = rate.time_s(config.num_requests) if isinstance(rate, RateSchedule) else config.num_requests / rate
    return min(lasts_s, config.duration or float("inf"))


def in_words(seconds: float) -> str:
    """40 s · 3 min · 2.5 h"""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
