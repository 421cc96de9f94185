"""Whether an open loop asked for more than was served: from there on a higher rate only makes the queue longer."""

from __future__ import annotations

import math

from reports.schema import PacingInfo, RunFile
from workloads.rates import RateSchedule

SERVED = 0.95  # of the offered rate: less is saturation
NOISE = 2.0  # standard deviations of a count, so that a short run is not called saturated by chance


def saturation(run: RunFile) -> str | None:
    """In words, or None. Either the queue only grew (validity), or completions in the steady window fell behind the
    rate, by more than the chance of that many arrivals explains. None without a rate."""
    pacing = run.workload.pacing
    if run.summary is None or pacing.rate_per_s is None:
        return None
    if run.validity is not None and run.validity.verdict == "overloaded":
        return run.validity.reasons[0]
    steady = run.summary.throughput.steady
    if steady is None:
        return None
    expected = requests_offered(pacing, steady.start_s, steady.end_s)
    lasted_s = steady.end_s - steady.start_s
    completed = steady.request_per_s * lasted_s
    if completed >= SERVED * expected - NOISE * _variation(pacing.arrival) * math.sqrt(expected):
        return None
    return (
        f"only {steady.request_per_s:.4g} requests/s completed of {expected / lasted_s:.4g} offered "
        f"({completed / expected:.0%}, in the steady window)"
    )


def requests_offered(pacing: PacingInfo, start_s: float, end_s: float) -> float:
    """By an open loop between two times, on average."""
    if pacing.rate_schedule is not None:
        schedule = RateSchedule.parse(pacing.rate_schedule)
        return float(schedule.expected(end_s) - schedule.expected(start_s))
    return (pacing.rate_per_s or 0.0) * (end_s - start_s)


def _variation(arrival: str | None) -> float:
    """Coefficient of variation of the gaps: 1 for poisson (and for a trace, whose own is not known here)."""
    if arrival == "constant":
        return 0.0
    return float(arrival.partition(":")[2]) if arrival and arrival.startswith("gamma:") else 1.0
