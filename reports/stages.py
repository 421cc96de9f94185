"""The stages of a rate that changes: the requests due in each, and its part of the run's time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from reports.metrics import BoolArray
from workloads.columns import IntColumn
from workloads.rates import NS, RateSchedule, Stage

RAMP_PARTS = 8
MOST_CUT_RAMPS = 8  # with more, as of a wave, each ramp is one part: a table has to be read
REQUESTS_PER_PART = 25  # at least, on average


@dataclass(frozen=True)
class Span:
    """One stage, or a part of a ramp. key: as in [stage=3] or [stage=3.2]; "then" for the time after the last stage.
    end_s: infinite for the last one. cut: whether a ramp has parts"""

    key: str
    name: str  # "3: 16 for 60s", of a part "3.2: 6.5–9"
    stage: Stage
    start_s: float
    end_s: float
    cut: bool = True

    def holds(self, at_ns: IntColumn) -> BoolArray:
        """bool: which of these times are in it."""
        at_s = at_ns / NS
        return np.asarray((at_s >= self.start_s) & (at_s < self.end_s))

    def lasted_s(self, until_s: float) -> float:
        """Its duration in a run that ended at until_s."""
        return min(self.end_s, until_s) - min(self.start_s, until_s)

    @cached_property
    def parts(self) -> tuple[Span, ...]:
        """A ramp in parts of equal length, each with enough requests for its numbers; a constant rate is one part."""
        stage, fit = self.stage, int(min(self.stage.requests / REQUESTS_PER_PART, RAMP_PARTS))
        if stage.from_per_s == stage.to_per_s or fit < 2 or not self.cut:
            return (self,)
        edges_s = np.linspace(self.start_s, self.end_s, fit + 1).tolist()
        rates = np.linspace(stage.from_per_s, stage.to_per_s, fit + 1).tolist()
        pairs = enumerate(zip(pairwise(rates), pairwise(edges_s), strict=True), start=1)
        return tuple(
            Span(
                f"{self.key}.{at}",
                f"{self.key}.{at}: {low:.4g}–{high:.4g}",
                Stage(low, high, end_s - start_s),
                start_s,
                end_s,
            )
            for at, ((low, high), (start_s, end_s)) in pairs
        )

    def __str__(self) -> str:
        """3 (16 for 60s)"""
        cut = f", in parts {self.parts[0].key} to {self.parts[-1].key}" if len(self.parts) > 1 else ""
        return f"{self.key} ({self.stage}{cut})"


@dataclass(frozen=True)
class Stages:
    """Of one schedule."""

    rates: RateSchedule

    @staticmethod
    def of(rate_schedule: str | None) -> Stages | None:
        """Of a rate as run.json has it; None for a constant rate."""
        return None if rate_schedule is None else Stages(RateSchedule.parse(rate_schedule))

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        starts_s = [*self.rates.starts_s.tolist(), float("inf")]
        ramps = sum(stage.from_per_s != stage.to_per_s for stage in self.rates.given)
        keys = [*(str(number) for number in range(1, len(self.rates.given) + 1)), "then"]
        return tuple(
            Span(keys[at], name, stage, starts_s[at], starts_s[at + 1], ramps <= MOST_CUT_RAMPS)
            for at, (name, stage) in enumerate(zip(self.rates.names, self.rates.stages, strict=True))
        )

    @cached_property
    def rows(self) -> tuple[Span, ...]:
        """The rows of a table: the spans, with every ramp in its parts."""
        return tuple(part for one in self.spans for part in one.parts)

    def find(self, key: str) -> Span | None:
        return next((one for one in (*self.spans, *self.rows) if one.key == key), None)

    def due_ns(self, arrivals_ugap: IntColumn) -> IntColumn:
        """ns: when requests with these unit arrivals are due."""
        return self.rates.due_ns(arrivals_ugap).astype(np.int64)
