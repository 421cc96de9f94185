"""Whether a run's numbers mean anything."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from engines.base import ClientReport
from engines.request_table import MISSING
from reports.client_limits import client_limits, client_notes
from reports.metrics import RequestTimes
from reports.schema import PacingInfo, RunFile, SlaResult, Validity
from reports.sla import RATES
from reports.summary_schema import Warmup
from reports.warmup import warmup_note
from workloads.rates import RateSchedule

GROWTH = 0.05  # of what a third of the run brought: less is not called overload
# Standard deviations of (arrivals - completions) in a third of the run. One is enough, as the wait must grow too: a
# queue loaded to 95 % with random arrivals and services is called overloaded in 1 run of 20, one to 120 % in 9 of 10.
NOISE = 1.0
LEAST_THIRD = 5  # requests in a third of a run, under which nothing is said of growth


def validity(
    times: RequestTimes,
    *,
    max_failure_rate: float,
    open_loop: bool,
    interrupted: bool = False,
    client: ClientReport | None = None,
    capped: bool = False,
    warmup: Warmup | None = None,
) -> Validity:
    """invalid: nothing completed, or failures above `max_failure_rate` (rejected requests are misses, not failures of
    the set-up). overloaded: an open loop whose queue only grows, so latencies measure how long the run was.
    client_limited: the load client did not keep up, so its numbers are its own."""
    notes: tuple[str, ...] = ("interrupted: only what had ended by then is counted",) if interrupted else ()
    if client is not None:
        notes += client_notes(client)
    reasons = _broken(times, max_failure_rate)
    if reasons:
        return Validity("invalid", reasons + notes)
    overload = _overload(times) if open_loop else None
    if overload is not None:
        return Validity("overloaded", (overload, *notes))
    if warmup is not None and (note := warmup_note(warmup)) is not None:
        notes += (note,)
    if client is not None and (limits := client_limits(client, times, capped=capped)):
        return Validity("client_limited", limits + notes)
    return Validity("ok", notes)


def validity_of_part(found: Validity, part: RequestTimes) -> Validity:
    """What may be believed of a part of a run's requests: in an overloaded run, one whose own queue did not grow (a
    tenant that others cannot crowd out) has latencies that mean something. Too few requests to tell: as the run."""
    if found.verdict != "overloaded" or len(part) < 3 * LEAST_THIRD or _overload(part) is not None:
        return found
    return Validity("ok")


def believed(result: SlaResult, found: Validity) -> SlaResult:
    """An SLA as it may be said of a run. Of one whose queue only grows none on a latency is judged: its percentiles say
    how long it was, and a longer run would miss it. What is missed already stays missed; rates and failures stand."""
    if found.verdict != "overloaded" or result.verdict == "fail" or result.metric in (*RATES, "failure_rate"):
        return result
    reason = "refused: in an overloaded run it only says how long the run was; ask at a lower rate"
    return msgspec.structs.replace(result, verdict="inconclusive", reason=reason, needed=None)


def _broken(times: RequestTimes, max_failure_rate: float) -> tuple[str, ...]:
    if not times.completed.any():
        return ("no request completed",)
    failed = int((times.failed & ~times.rejected).sum())
    share = failed / len(times)
    if share > max_failure_rate:
        return (f"{failed} of {len(times)} requests failed: {share:.1%} is above {max_failure_rate:.1%}",)
    return ()


def _overload(times: RequestTimes) -> str | None:
    """Do arrivals outrun completions? Compare the middle third of the arrivals with the last third: the number of
    requests in the system must have grown beyond noise, and the wait for a first token with it. (In a run that is
    merely short the number grows too, as nothing has completed yet, but nobody waits longer than before.)"""
    n = len(times)
    third = n // 3
    if third < LEAST_THIRD:
        return None
    arrivals = np.sort(times.scheduled_ns)
    ends = np.sort(times.end_ns)
    # Number in the system as each request arrives.
    inside = np.arange(1, n + 1) - np.searchsorted(ends, arrivals, side="right")
    growth = float(inside[-third:].mean() - inside[third : 2 * third].mean())
    if growth <= max(GROWTH * third, NOISE * math.sqrt(2 * third)):
        return None
    by_arrival = np.argsort(times.scheduled_ns, kind="stable")
    first, scheduled = times.first_ns[by_arrival], times.scheduled_ns[by_arrival]
    wait_ns = np.where(first == MISSING, np.inf, first - scheduled)
    before, after = np.median(wait_ns[third : 2 * third]), np.median(wait_ns[-third:])
    span_ns = arrivals[-1] - arrivals[-third]
    if np.isfinite(before) and after - before <= GROWTH * span_ns:
        return None
    return (
        f"arrivals outran completions: {inside[-third:].mean():.0f} requests in the system in the last third of the "
        f"arrivals against {inside[third : 2 * third].mean():.0f} in the middle, and still growing"
    )


SERVED = 0.95  # of the offered rate: less is saturation
COMPLETIONS_NOISE = 2.0  # standard deviations of a count, so that a short run is not called saturated by chance


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
    if completed >= SERVED * expected - COMPLETIONS_NOISE * _variation(pacing.arrival) * math.sqrt(expected):
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
