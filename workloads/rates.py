"""A rate that changes over time: stages with a constant rate, or one that rises or falls linearly.

    2 for 60s, 8 for 60s, 2        two requests per second for a minute, eight for the next, then two again
    2~20 every 24h for 48h         from two to twenty and back in the course of a day, along a cosine, for two days
    2..20 for 2m                   from two to twenty per second within two minutes, and then twenty

Arrivals are moved by a change of time. The unit arrivals of a plan count mean gaps, so request i is due when the rate
has added up to arrivals[i] requests: at the t with

    integral of rate from 0 to t = arrivals[i]

So the plan and its hash do not depend on the rate, whatever the arrival process, and a schedule with one constant rate
gives the same times to the bit as that rate.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workloads.columns import FloatColumn, IntColumn
from workloads.plan import UGAP

NS = 1_000_000_000
LEAST_PER_S = 1e-6  # except 0: below it a request could be due after the largest int64 of ns
MOST_PER_S = 1e6
MOST_S = 1e7
EXAMPLE = "'2 for 60s, 8 for 60s, 2', '2..20 for 2m' or '2~20 every 24h for 48h'"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(\d+(?:\.\d+)?)"
_STAGE = re.compile(rf"{_NUMBER}(?:\.\.{_NUMBER})?(?:\s+for\s+{_NUMBER}\s*([smh]))?")
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """The rate goes linearly from one value to the other. lasts_s: infinite for the last stage."""

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
    """Consecutive stages; the last one has no end.

    end_s  end of the last stage as written, after which its rate continues; None if it was written without an end
    """

    stages: tuple[Stage, ...]
    end_s: float | None

    @staticmethod
    def parse(text: str) -> RateSchedule:
        """Raises ValueError with a one-line message."""
        stages = [stage for part in text.split(",") for stage in _stages(part.strip())]
        for stage in stages[:-1]:
            if stage.lasts_s == float("inf"):
                raise ValueError(f"'{stage}' is not the last stage, so it needs a length, as in {stage} for 60s")
        if sum(stage.lasts_s for stage in stages if stage.lasts_s < float("inf")) > MOST_S:
            raise ValueError(f"the stages must last at most {MOST_S:,.0f} s together")
        last, end_s = stages[-1], None
        if last.lasts_s < float("inf"):
            end_s = sum(stage.lasts_s for stage in stages)
            stages.append(Stage(last.to_per_s, last.to_per_s, float("inf")))
        if stages[-1].to_per_s == 0:
            raise ValueError(
                "the last rate continues, so it must be above 0; otherwise the remaining requests would never be due"
            )
        return RateSchedule(tuple(stages), end_s)

    @property
    def given(self) -> tuple[Stage, ...]:
        """The stages as written, without the one that continues the last rate."""
        return self.stages if self.end_s is None else self.stages[:-1]

    def __str__(self) -> str:
        return ", ".join(map(str, self.given))

    @property
    def requests(self) -> float | None:
        """Requests due until end_s on average."""
        return None if self.end_s is None else float(self.expected(self.end_s))

    @cached_property
    def starts_s(self) -> FloatArray:
        """Start of each stage."""
        return np.concatenate([[0.0], np.cumsum([stage.lasts_s for stage in self.stages[:-1]])])

    @property
    def names(self) -> list[str]:
        """A unique name for each stage, as "2: 8 for 60s"; "then 2" for the time after the last end."""
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
        """Change of the rate per second, by stage."""
        return np.array([(stage.to_per_s - stage.from_per_s) / stage.lasts_s for stage in self.stages])

    def expected(self, t_s: float | FloatArray) -> FloatArray:
        """Requests due until t on average: the integral of the rate from 0 to t."""
        at = np.asarray(t_s, dtype=np.float64)
        stage = self.stage_of(at)
        into = at - self.starts_s[stage]
        return np.asarray(self._before[stage] + into * (self._first[stage] + self._slope[stage] * into / 2))

    def stage_of(self, t_s: FloatArray) -> NDArray[np.intp]:
        """Index of the stage that each time is in."""
        return np.searchsorted(self.starts_s, t_s, side="right") - 1

    def due_ns(self, arrivals_ugap: IntColumn) -> FloatColumn:
        """When requests with these unit arrivals are due, in whole ns: the inverse of expected(). While the rate is 0,
        at the end of that time."""
        asked_ns = arrivals_ugap.astype(np.float64) * (NS / UGAP)  # at one request per second
        stage = np.searchsorted(self._before[1:] * NS, asked_ns, side="right")
        left_ns = asked_ns - self._before[stage] * NS
        first, slope = self._first[stage], self._slope[stage]
        # Solves first * t + slope * t^2 / 2 = left in the form that loses no digits for a small slope.
        square = np.maximum(first * first + 2 * slope * (left_ns / NS), 0.0)
        divisor = np.where(slope == 0, first, (first + np.sqrt(square)) / 2)
        into_ns = left_ns / np.where(divisor == 0, 1.0, divisor)  # left is 0 there, at the start of a rise from 0
        due: FloatColumn = np.rint(self.starts_s[stage] * NS + into_ns)
        return due

    def time_s(self, requests: float) -> float:
        """Time by which this many requests are due on average."""
        return int(self.due_ns(np.array([round(requests * UGAP)], dtype=np.int64))[0]) / NS

    def mean_per_s(self, requests: int) -> float:
        """Mean rate over the time in which this many requests are due."""
        return requests / self.time_s(requests)


def requests_expected(rate: float | RateSchedule, until_s: float) -> float:
    """Requests due until until_s on average."""
    return float(rate.expected(until_s)) if isinstance(rate, RateSchedule) else rate * until_s


def read_rate(value: float | str) -> float | RateSchedule:
    """A number, also as text, or stages. Raises ValueError with a one-line message."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return RateSchedule.parse(value)
    return value


def _written(number: float) -> str:
    """In full and without an exponent: a report reads the schedule again out of run.json."""
    return np.format_float_positional(number, trim="-")


_WAVE = re.compile(rf"{_NUMBER}~{_NUMBER}\s+every\s+{_NUMBER}\s*([smh])\s+for\s+{_NUMBER}\s*([smh])")
_PIECES = 12  # straight ones that a wave is drawn with: at most 1.7 % of its height off
_MOST_PIECES = 2_000


def _stages(text: str) -> list[Stage]:
    """One stage, or the pieces of a wave: mid - half * cos(2 pi t / period), exact where two pieces meet."""
    found = _WAVE.fullmatch(text)
    if found is None:
        if "~" in text:
            raise ValueError(f"cannot read '{text}'; a wave is written as in 2~20 every 24h for 48h")
        return [_stage(text)]
    low, high, period, period_unit, lasts, lasts_unit = found.groups()
    ends = [_stage(f"{rate} for {lasts}{lasts_unit}").from_per_s for rate in (low, high)]  # within the bounds
    piece_s = float(period) * _UNITS[period_unit] / _PIECES
    lasts_s = float(lasts) * _UNITS[lasts_unit]
    if not piece_s > 0 or lasts_s / piece_s > _MOST_PIECES:
        raise ValueError(f"'{text}' has more than {_MOST_PIECES // _PIECES} waves; use a longer period")
    root = 3**0.5 / 2
    cosines = (1.0, root, 0.5, 0.0, -0.5, -root, -1.0, -root, -0.5, 0.0, 0.5, root)  # of 0, 30, ... 330 degrees
    middle, half = (ends[1] + ends[0]) / 2, (ends[1] - ends[0]) / 2
    rates = [round(middle - half * cosine, 6) for cosine in cosines]
    stages = []
    for at in range(math.ceil(round(lasts_s / piece_s, 9))):
        first, last = rates[at % _PIECES], rates[(at + 1) % _PIECES]
        part = min(1.0, lasts_s / piece_s - at)
        stages.append(Stage(first, first + (last - first) * part, piece_s * part))
    return stages


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
