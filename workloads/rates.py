"""A rate that changes over time: stages of a constant rate, or of one that climbs or falls in a straight line.

    2 for 60s, 8 for 60s, 2        two requests per second for a minute, eight for the next, then two again
    2..20 for 2m                   from two to twenty per second within two minutes, and then twenty

Arrivals are moved by a change of time. The unit arrivals of a plan count mean gaps, so request i is due when the rate
has added up to arrivals[i] requests: at the t with

    integral of rate from 0 to t = arrivals[i]

Under any arrival law, then, the plan and its hash are those of every other rate, and a rate that does not change gives
the same times to the bit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workloads.columns import IntColumn
from workloads.plan import UGAP

NS = 1_000_000_000
LEAST_PER_S = 1e-6  # of what is not 0: below, a request would be due beyond what an int64 of ns holds
MOST_PER_S = 1e6
MOST_S = 1e7
EXAMPLE = "'2 for 60s, 8 for 60s, 2' or '2..20 for 2m'"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(\d+(?:\.\d+)?)"
_STAGE = re.compile(rf"{_NUMBER}(?:\.\.{_NUMBER})?(?:\s+for\s+{_NUMBER}\s*([smh]))?")
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """The rate goes from one value to the other in a straight line. lasts_s: infinite for the last one."""

    from_per_s: float
    to_per_s: float
    lasts_s: float

    @property
    def requests(self) -> float:
        return (self.from_per_s + self.to_per_s) / 2 * self.lasts_s

    def __str__(self) -> str:
        rate = _written(self.from_per_s)
        if self.to_per_s != self.from_per_s:
            rate += f"..{_written(self.to_per_s)}"
        return rate if self.lasts_s == float("inf") else f"{rate} for {_written(self.lasts_s)}s"


@dataclass(frozen=True)
class RateSchedule:
    """Stages one after the other; the last of them has no end.

    end_s  when the last stage that was given an end is over, and its last rate goes on; None where the last had none
    """

    stages: tuple[Stage, ...]
    end_s: float | None

    @staticmethod
    def parse(text: str) -> RateSchedule:
        """Raises ValueError in one line."""
        stages = [_stage(part.strip()) for part in text.split(",")]
        for stage in stages[:-1]:
            if stage.lasts_s == float("inf"):
                raise ValueError(f"'{stage}' is not the last stage, so say how long it lasts, as in {stage} for 60s")
        if sum(stage.lasts_s for stage in stages if stage.lasts_s < float("inf")) > MOST_S:
            raise ValueError(f"the stages must last at most {MOST_S:,.0f} s together")
        last, end_s = stages[-1], None
        if last.lasts_s < float("inf"):
            end_s = sum(stage.lasts_s for stage in stages)
            stages.append(Stage(last.to_per_s, last.to_per_s, float("inf")))
        if stages[-1].to_per_s == 0:
            raise ValueError("the last rate goes on, so it must be above 0, or the requests left would never come")
        return RateSchedule(tuple(stages), end_s)

    @property
    def given(self) -> tuple[Stage, ...]:
        """As they were written; without the last one's rate that goes on."""
        return self.stages if self.end_s is None else self.stages[:-1]

    def __str__(self) -> str:
        return ", ".join(map(str, self.given))

    @property
    def requests(self) -> float | None:
        """That are due until end_s on average."""
        return None if self.end_s is None else float(self.expected(self.end_s))

    @cached_property
    def starts_s(self) -> FloatArray:
        """Of the stages."""
        return np.concatenate([[0.0], np.cumsum([stage.lasts_s for stage in self.stages[:-1]])])

    @property
    def names(self) -> list[str]:
        """Of each stage one that no other has, as "2: 8 for 60s"; of what comes after the last end, "then 2"."""
        names = [f"{number}: {stage}" for number, stage in enumerate(self.given, start=1)]
        return names if self.end_s is None else [*names, f"then {self.stages[-1]}"]

    @cached_property
    def _before(self) -> FloatArray:
        """Requests due before each stage."""
        return np.concatenate([[0.0], np.cumsum([stage.requests for stage in self.stages[:-1]])])

    @cached_property
    def _first(self) -> FloatArray:
        return np.array([stage.from_per_s for stage in self.stages])

    @cached_property
    def _slope(self) -> FloatArray:
        """By how much the rate changes per second."""
        return np.array([(stage.to_per_s - stage.from_per_s) / stage.lasts_s for stage in self.stages])

    def expected(self, t_s: float | FloatArray) -> FloatArray:
        """The integral of the rate from 0 to t: how many requests are due until then on average."""
        at = np.asarray(t_s, dtype=np.float64)
        stage = self.stage_of(at)
        into = at - self.starts_s[stage]
        return np.asarray(self._before[stage] + into * (self._first[stage] + self._slope[stage] * into / 2))

    def stage_of(self, t_s: FloatArray) -> NDArray[np.intp]:
        """Which stage a time is in: index from 0."""
        return np.searchsorted(self.starts_s, t_s, side="right") - 1

    def due_ns(self, arrivals_ugap: IntColumn) -> IntColumn:
        """When requests with these unit arrivals are due: the inverse of expected(); where the rate is 0 for a while,
        that while's end."""
        asked_ns = arrivals_ugap.astype(np.float64) * (NS / UGAP)  # at one request per second
        stage = np.searchsorted(self._before[1:] * NS, asked_ns, side="right")
        left_ns = asked_ns - self._before[stage] * NS
        first, slope = self._first[stage], self._slope[stage]
        # Of t with first * t + slope * t^2 / 2 = left: the form that loses no digits where the slope is small.
        square = np.maximum(first * first + 2 * slope * (left_ns / NS), 0.0)
        divisor = np.where(slope == 0, first, (first + np.sqrt(square)) / 2)
        into_ns = left_ns / np.where(divisor == 0, 1.0, divisor)  # left is 0 there: a climb from 0 begins
        due: IntColumn = np.rint(self.starts_s[stage] * NS + into_ns).astype(np.int64)
        return due

    def time_s(self, requests: float) -> float:
        """When so many requests have come on average."""
        return int(self.due_ns(np.array([round(requests * UGAP)], dtype=np.int64))[0]) / NS

    def mean_per_s(self, requests: int) -> float:
        """Over the time in which so many requests come."""
        return requests / self.time_s(requests)


def requests_expected(rate: float | RateSchedule, until_s: float) -> float:
    """How many are due until then on average."""
    return float(rate.expected(until_s)) if isinstance(rate, RateSchedule) else rate * until_s


def read_rate(value: float | str) -> float | RateSchedule:
    """A number, also as text, or stages. Raises ValueError in one line."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return RateSchedule.parse(value)
    return value


def _written(number: float) -> str:
    """In full and without an exponent: a report reads the schedule again out of run.json."""
    return np.format_float_positional(number, trim="-")


def _stage(text: str) -> Stage:
    found = _STAGE.fullmatch(text)
    if found is None:
        raise ValueError(f"cannot read '{text}'; want requests per second, as in 4, or stages of them, as in {EXAMPLE}")
    first, last, lasts, unit = found.groups()
    if last is not None and lasts is None:
        raise ValueError(f"'{text}' must say how long it takes, as in {text} for 60s")
    lasts_s = float("inf") if lasts is None else float(lasts) * _UNITS[unit]
    stage = Stage(float(first), float(first if last is None else last), lasts_s)
    if max(stage.from_per_s, stage.to_per_s) > MOST_PER_S:
        raise ValueError(f"'{text}' is more than {MOST_PER_S:,.0f} requests per second")
    if any(0 < rate < LEAST_PER_S for rate in (stage.from_per_s, stage.to_per_s)):
        raise ValueError(f"'{text}' is less than {LEAST_PER_S:f} requests per second, and more than none")
    if lasts is not None and not 0 < lasts_s <= MOST_S:
        raise ValueError(f"'{text}' must last above 0 and at most {MOST_S:,.0f} s")
    return stage
