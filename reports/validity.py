"""Whether the numbers of a run are valid, and whether its load exceeded what was served."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from engines.base import ClientReport
from engines.request_table import MISSING
from reports.client_limits import client_limits, client_notes, unseen_times
from reports.metrics import RequestTimes
from reports.schema import PacingInfo, RunFile, SlaResult, Validity
from reports.sla import RATES, latency_of
from reports.summary_schema import Warmup
from reports.warmup import warmup_note
from workloads.rates import RateSchedule

GROWTH = 0.05  # of the arrivals in a third of the run: less is not called overload
# Standard deviations of (arrivals - completions) in a third of the run. One is enough, as the wait must grow too.
# docs/gates.md has how often each test sees an overload, and sees one where there is none (benchmarks/overload.py).
NOISE = 1.0
WAIT_GROWTH = 0.07  # of the time, from quarter to quarter of the requests
LEAST_TO_SEE_WAITS = 100  # requests; in a shorter run a burst looks like a growing wait
LEAST_THIRD = 5  # requests in a third of a run; with fewer, growth is not judged


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
    """invalid: nothing completed, or failures above `max_failure_rate` (rejected requests miss the SLA, but are not
    failures of the set-up). overloaded: an open loop whose queue grows to the end, so latencies depend on the length
    of the run. client_limited: the load client did not keep up, so the numbers are not the server's."""
    notes: tuple[str, ...] = ("interrupted: only requests that had ended by then are counted",) if interrupted else ()
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
    """The validity of a part of a run's requests. In an overloaded run a part whose own queue did not grow (a tenant
    that is isolated from the others) is valid. With too few requests it is that of the run."""
    if found.verdict != "overloaded" or len(part) < 3 * LEAST_THIRD or _overload(part) is not None:
        return found
    return Validity("ok")


def supported(result: SlaResult, found: Validity, client: ClientReport | None = None) -> SlaResult:
    """The SLA result as far as the validity of the run supports it. An SLA on a time between tokens that the client
    could not see is inconclusive. In a client-limited run every SLA is, a missed one too: the client's slowness is not
    the server's. In an overloaded run an SLA on a latency cannot pass, as percentiles grow with the length of the run.
    A failed SLA stays failed there; rates and failures stand."""
    if client is not None and (unseen := unseen_times(client, latency_of(result.metric))) is not None:
        return msgspec.structs.replace(
            result, value=None, n_eff=None, verdict="inconclusive", reason=unseen, needed=None
        )
    if found.verdict == "client_limited":
        if result.verdict == "inconclusive":
            return msgspec.structs.replace(result, needed=None)
        told = f"without that: {result.verdict}, {result.reason}"
        reason = f"client limited, so the numbers are not the server's ({told})"
        return msgspec.structs.replace(result, verdict="inconclusive", reason=reason, needed=None)
    if found.verdict != "overloaded" or result.verdict == "fail" or result.metric in (*RATES, "failure_rate"):
        return result
    reason = "overloaded, so the value depends on the length of the run; measure at a lower rate"
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
    """Why arrivals outrun completions; None if they do not, or it is not seen."""
    return _growing_backlog(times) or _growing_wait(times)


def _growing_wait(times: RequestTimes) -> str | None:
    """Where the median wait for a first token grows from each quarter of the requests to the next. A queue for KV or
    slots that holds few requests for long shows here rather than in their number."""
    n = len(times)
    if n < LEAST_TO_SEE_WAITS:
        return None
    by_arrival = np.argsort(times.scheduled_ns, kind="stable")
    first, scheduled = times.first_ns[by_arrival], times.scheduled_ns[by_arrival]
    wait_s = np.where(first == MISSING, np.inf, first - scheduled) / 1e9
    begun, second, third, last = (float(np.median(part)) for part in np.array_split(wait_s, 4))
    lasted_s = float(scheduled[-1] - scheduled[n // 4]) / 1e9 * 2 / 3  # between the middles of the second and the last
    if not (begun <= second < third < last and last - second > WAIT_GROWTH * lasted_s):
        return None
    return (
        f"arrivals outran completions: the median wait for a first token grew from {second:.3g} to {third:.3g} and "
        f"{last:.3g} s over the last three quarters of the requests"
    )


def _growing_backlog(times: RequestTimes) -> str | None:
    """Where the number of requests in the system grows beyond noise from the middle third of the arrivals to the last,
    and the wait for a first token with it. (In a short run the number grows too, as few requests have completed, but
    the wait does not.)"""
    n = len(times)
    third = n // 3
    if third < LEAST_THIRD:
        return None
    arrivals = np.sort(times.scheduled_ns)
    ends = np.sort(times.end_ns)
    # requests in the system as each request arrives
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
COMPLETIONS_NOISE = 2.0  # standard deviations of a count: in a short run a shortfall may be chance


def saturation(run: RunFile) -> str | None:
    """Why an open loop offered more than was served; None if it did not, or without a rate. Either the run is
    overloaded, or completions in the steady window fell behind the rate by more than the noise of that many arrivals.
    From there on a higher rate only makes the queue longer."""
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
    """Requests that an open loop offers between two times, on average."""
    if pacing.rate_schedule is not None:
        schedule = RateSchedule.parse(pacing.rate_schedule)
        return float(schedule.expected(end_s) - schedule.expected(start_s))
    return (pacing.rate_per_s or 0.0) * (end_s - start_s)


def _variation(arrival: str | None) -> float:
    """Coefficient of variation of the gaps: 1 for poisson, and for a trace, whose gaps are not known here."""
    if arrival == "constant":
        return 0.0
    return float(arrival.partition(":")[2]) if arrival and arrival.startswith("gamma:") else 1.0
