"""Arrival processes: when requests arrive, in units of the mean gap, so that the rate alone scales them.

    constant    equal gaps
    poisson     exponential gaps
    gamma:CV    gamma gaps with that coefficient of variation: CV 1 is poisson, above it is burstier
    mmpp:F:S:G  Poisson arrivals F times as fast during a share S of the time (bursts.py)
    onoff:S:G   Poisson arrivals during a share S of the time, and silence in the rest (bursts.py)
    trace       the gaps of the workload's own trace, in their order, scaled to a mean of one

The first request arrives at 0. Requests all at once and the closed loop belong to Pacing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workloads.bursts import Phases
from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.plan import UGAP
from workloads.sampling import ARRIVALS, bit_stream, cell_of, gamma, whole

PROCESSES = "constant, poisson, gamma:CV, mmpp:FACTOR:SHARE:GAPS, onoff:SHARE:GAPS or trace"


@dataclass(frozen=True, eq=False)
class TraceGaps:
    """Gaps between the requests of a trace, in order, in any unit. After the last gap comes the first again.

    rate_per_s    the trace's own mean rate
    random_start  begin where the seed says, not at the first gap
    """

    gaps: IntColumn
    rate_per_s: float
    random_start: bool

    @property
    def cv(self) -> float:
        """Standard deviation of the gaps over their mean: 1 of Poisson arrivals, more of burstier ones."""
        mean = float(self.gaps.mean())
        return float(self.gaps.std()) / mean if mean else 0.0


def unit_arrivals(arrival: str, count: int, seed: int, trace: TraceGaps | None = None) -> IntColumn:
    """Arrival times int64[count] in millionths of the mean gap, non-decreasing, from 0. Raises CbbenchError."""
    if arrival == "constant":
        return np.arange(count, dtype=np.int64) * UGAP
    if arrival == "trace":
        if trace is None:
            raise CbbenchError(
                "arrival",
                "trace: this workload has no arrival times of its own; "
                "choose constant, poisson, gamma:CV, mmpp or onoff, or a file with a column arrival_s",
            )
        return _from_trace(trace, count, seed)
    if (phases := Phases.parse(arrival)) is not None:
        return phases.arrivals(count, seed)
    grid = whole(UGAP * gamma(_cv(arrival)))
    gaps = grid[cell_of(bit_stream(seed, ARRIVALS).random_raw(max(count - 1, 0)))]
    return _accumulate(gaps)[:count]


def at_mean_gap(arrivals_ugap: IntColumn) -> IntColumn:
    """The arrivals scaled so that their own mean gap is one: n requests at R a second take (n - 1) / R s exactly."""
    count = len(arrivals_ugap)
    if count < 2 or not arrivals_ugap[-1]:
        return arrivals_ugap
    return whole(arrivals_ugap.astype(np.float64) * ((count - 1) * UGAP / int(arrivals_ugap[-1])))


def requests_to_fill(gaps: float, arrival: str) -> int:
    """How many requests last for `gaps` mean gaps. Where gaps are drawn, a margin covers a draw of short ones: five
    standard deviations, and the requests that a bursty process sends at once. Raises CbbenchError."""
    if arrival in ("constant", "trace"):  # the gaps of a trace are scaled to their number
        cv = 0.0
    else:
        phases = Phases.parse(arrival)
        cv = _cv(arrival) if phases is None else math.sqrt(phases.dispersion)
    return max(1, math.ceil(round(gaps, 6) + 5 * cv * math.sqrt(gaps) + 8 * cv * cv))


def _cv(arrival: str) -> float:
    """The coefficient of variation of the gaps."""
    if arrival == "poisson":
        return 1.0
    name, _, text = arrival.partition(":")
    if name != "gamma":
        raise CbbenchError("arrival", f"unknown process '{arrival}'; want {PROCESSES}")
    try:
        cv = float(text)
    except ValueError:
        raise CbbenchError("arrival", f"gamma:CV needs a number, as in gamma:2.5, got '{arrival}'") from None
    if not 0.01 <= cv <= 10:
        raise CbbenchError("arrival", f"the CV of gamma:CV must lie between 0.01 and 10, got {text}")
    return cv


def _from_trace(trace: TraceGaps, count: int, seed: int) -> IntColumn:
    """Consecutive gaps of the trace, scaled so that their own mean is one: the rate asked is the rate offered."""
    length = len(trace.gaps)
    start = int(bit_stream(seed, ARRIVALS).random_raw()) % length if trace.random_start else 0
    at = _accumulate(trace.gaps[(start + np.arange(max(count - 1, 0))) % length])[:count]
    if count > 1 and at[-1] == 0:
        raise CbbenchError("arrival", f"trace: the first {count} requests all arrive at the same time")
    return at_mean_gap(at)


def _accumulate(gaps: IntColumn) -> IntColumn:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(gaps)))
