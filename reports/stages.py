"""The stages of a rate that changes as parts of a run: of its requests, by when they were due, and of its time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reports.metrics import BoolArray
from workloads.plan import IntColumn
from workloads.rates import NS, RateSchedule, Stage


@dataclass(frozen=True)
class Span:
    """One stage. key: as in [stage=3]; "then" for what comes after the last end. end_s: infinite for the last one."""

    key: str
    name: str  # "3: 16 for 60s"
    stage: Stage
    start_s: float
    end_s: float

    def holds(self, at_ns: IntColumn) -> BoolArray:
        """Which of these times are in it."""
        at_s = at_ns / NS
        return np.asarray((at_s >= self.start_s) & (at_s < self.end_s))

    def lasted_s(self, until_s: float) -> float:
        """How much of it there was in a run that was over then."""
        return min(self.end_s, until_s) - min(self.start_s, until_s)


@dataclass(frozen=True)
class Stages:
    """Of one schedule."""

    rates: RateSchedule

    @staticmethod
    def of(rate_schedule: str | None) -> Stages | None:
        """As run.json has it; None for a rate that does not change."""
        return None if rate_schedule is None else Stages(RateSchedule.parse(rate_schedule))

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        starts_s = [*self.rates.starts_s.tolist(), float("inf")]
        keys = [*(str(number) for number in range(1, len(self.rates.given) + 1)), "then"]
        return tuple(
            Span(keys[at], name, stage, starts_s[at], starts_s[at + 1])
            for at, (name, stage) in enumerate(zip(self.rates.names, self.rates.stages, strict=True))
        )

    def find(self, key: str) -> Span | None:
        return next((one for one in self.spans if one.key == key), None)

    def due_ns(self, arrivals_ugap: IntColumn) -> IntColumn:
        """When requests with these unit arrivals are due."""
        return self.rates.due_ns(arrivals_ugap)
