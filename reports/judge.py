"""Whether a run meets its SLAs: pass, fail or inconclusive.

A percentile SLA says "at least a share p of all requests is within the bound", and so does a share SLA. Both pass by
the binomial test of quantiles.py and fail by its mirror; what proves neither is inconclusive. Failed and missing
requests are violations. Counts are scaled to the effective sample: that of the indicator "beyond the bound", which is
what the tests count. Means pass and fail by one-sided t bounds, and rates fail by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.special import stdtrit

from engines.base import RunRecord
from engines.request_table import MISSING
from reports.bursts import bursts_of
from reports.counted_values import CountedValues
from reports.metrics import IN_OPEN_LOOP, BoolArray, RequestTimes
from reports.quantiles import (
    TAIL_SHARE,
    FloatArray,
    autocorrelation_time,
    effective_n,
    quantile,
    tail_effective_n,
    tail_indicator,
    wilson_interval,
    with_margin,
)
from reports.schema import Criteria, SlaResult, Verdict
from reports.share_test import FAR_TAIL, Violations, share_verdict
from reports.sla import Sla
from reports.sla_scope import Scope
from reports.stages import Stages
from reports.summary_schema import Goodput, Throughput
from workloads.rates import NS

BETWEEN_TOKENS = ("tpot_ms", "itl_ms")
SLICES = 8  # of the window, over which a rate varies
NOTHING = "nothing was measured"
# A bound on a latency that looks like seconds: this small, and the value so many times larger.
IN_SECONDS = 60.0
FAR_BEYOND = 20.0


@dataclass(frozen=True, eq=False)
class Sample:
    """The requests that an SLA is judged on: those of one run, or of the part of it that `times` has."""

    times: RequestTimes
    interrupted: bool

    def counted(self) -> BoolArray:
        """bool[requests]: those that must meet the SLA: all that ended, except those that an interrupt cancelled."""
        return ~self.times.cancelled if self.interrupted else np.ones(len(self.times), dtype=np.bool_)

    def immeasurable(self, latency: str) -> bool:
        """Whether requests completed, but none shows the time between its tokens: each has one token, or the server
        sends it in one piece. Where some show it, the others are violations; where none does, the latency is not
        measured."""
        answered = self.times.completed & (self.times.first_ns != MISSING)
        if latency not in BETWEEN_TOKENS or not answered.any():
            return False
        return len(self.times.gaps_ms) == 0 if latency == "itl_ms" else bool(np.isnan(self.times.tpot_ms).all())

    def counted_values(self, latency: str, tail: Tail | None) -> tuple[CountedValues, float]:
        """Values in ms, infinite where a request failed or lacks one, and their effective sample size: for a test of
        that tail, or with None for one of the mean."""
        if latency != "itl_ms":
            values, n_eff = self.values(latency, tail)
            return CountedValues(np.sort(values), np.ones(values.shape[0], np.int64)), n_eff
        lost = int((self.counted() & ~self.times.completed).sum())
        gaps = self.times.gaps_ms.with_infinite(lost)
        in_time = self.times.gaps_in_time_ms
        n = max(1, in_time.shape[0])
        if tail is None or not len(gaps):
            return gaps, len(gaps) * effective_n(in_time) / n
        tau = autocorrelation_time(tail_indicator(in_time, gaps, tail.bound, tail.share))
        return gaps, len(gaps) / with_margin(tau, n, queued=False)

    def values(self, latency: str, tail: Tail | None) -> tuple[FloatArray, float]:
        """ms[requests] in order of sending, infinite where a request failed or lacks one, and the effective sample
        size: for a test of that tail, or with None for one of the mean.

        A test of a tail counts the values beyond a bound, so their dependence is what reduces the sample. For TTFT and
        E2EL that of all values does as well: a run that met no burst does not show how bursts cluster.
        """
        counted = self.counted()
        if latency == "tpot_ms":
            counted = counted & ~self.times.single_token
        values = self.times.latency(latency)[counted]
        missing = np.isnan(values)
        if not values.size:
            return values, 0.0
        # Failures may come in bursts while the latencies of the others look independent: the smaller size counts.
        present = values[~missing]
        independent = effective_n(missing.astype(float)) / values.size
        counted_as = np.where(missing, np.inf, values)
        if tail is not None:
            n_eff = tail_effective_n(counted_as, tail.bound, tail.share, queued=latency not in BETWEEN_TOKENS)
            independent = min(independent, n_eff / values.size)
        elif present.size:
            independent = min(independent, effective_n(present) / present.size)
        return counted_as, values.size * independent

    def unanswerable(self, latency: str) -> bool:
        """Immeasurable, and not because every answer has one token: whether those answers met the SLA is unknown."""
        return self.immeasurable(latency) and not bool(self.times.single_token[self.times.completed].all())


class Tail(NamedTuple):
    """The tail whose dependence counts: of values beyond a bound (ms), and of at least this share of all."""

    bound: float
    share: float = TAIL_SHARE

    @staticmethod
    def of(bound: float, quantile: float) -> Tail:
        """For a test of that quantile: twice the share that may be beyond it, if that is more than 2 %."""
        return Tail(bound, max(TAIL_SHARE, min(0.5, 2 * (1 - quantile))))


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges one run, or with a scope the part of its requests that `times` has."""

    record: RunRecord
    times: RequestTimes
    throughput: Throughput
    criteria: Criteria
    open_loop: bool = False
    interrupted: bool = False
    scope: Scope | None = None
    stages: Stages | None = None  # None: the rate does not change

    @property
    def _sample(self) -> Sample:
        return Sample(self.times, self.interrupted)

    def results(self, slas: Sequence[Sla], beside: Sequence[Sla] | None = None) -> tuple[SlaResult, ...]:
        """The results of `slas`. beside: all SLAs of the run where `slas` is a part of them; attainment and goodput
        count requests that meet all of them."""
        given = slas if beside is None else beside
        return tuple(self._whole(sla.scope, self.of(sla.scope)._result(sla, given)) for sla in slas)

    def _whole(self, scope: Scope | None, result: SlaResult) -> SlaResult:
        """The result with `needed` in requests of the whole run, where the scope keeps its share. None for a stage,
        which has no more requests in a longer run."""
        if scope is None or result.needed is None or not result.n:
            return result
        if scope.by == "stage":
            return msgspec.structs.replace(result, needed=None)
        return msgspec.structs.replace(result, needed=math.ceil(result.needed * len(self.times) / result.n))

    def goodput(self, slas: Sequence[Sla]) -> Goodput:
        """Requests that met the loosest bound of every latency SLA, per second of the window and as a share."""
        good, n_eff, _ = self._good(slas)
        if good.shape[0] == 0:
            return Goodput()
        share = float(good.mean())
        window_s = self.throughput.window_s
        return Goodput(
            request_per_s=int(good.sum()) / window_s if window_s > 0 else None,
            attainment=share,
            attainment_ci=wilson_interval(share, n_eff),
        )

    def _judged(self, latency: str) -> str:
        return IN_OPEN_LOOP.get(latency, latency) if self.open_loop else latency

    def of(self, scope: Scope | None) -> Judge:
        """The judge of that part of the requests."""
        if scope is None:
            return self
        times = self.times.part(self._members(scope))
        return replace(self, times=times, throughput=self._rates(times, scope), scope=scope)

    def _members(self, scope: Scope | None) -> BoolArray:
        if scope is None:
            return np.ones(len(self.times), dtype=np.bool_)
        return scope.members(self.record, self.stages)[self.times.row]

    def _rates(self, part: RequestTimes, scope: Scope) -> Throughput:
        """Rates over the window of the whole run; of a stage, of requests that ended within its time, over that time.
        None where the part has no request."""
        window_s, there = self.throughput.window_s, bool(len(part))
        if scope.by == "stage" and there and self.stages and (span := self.stages.find(scope.value)):
            window_s = span.lasted_s(int(self.times.scheduled_ns.min()) / NS + window_s)
            part = self.times.part(span.holds(self.times.end_ns))
        if not there or window_s <= 0:
            return Throughput(window_s, None, None, None)
        done = part.completed
        outputs, prompts = int(part.output_tokens[done].sum()), int(part.prompt_tokens[done].sum())
        return Throughput(window_s, int(done.sum()) / window_s, outputs / window_s, (outputs + prompts) / window_s)

    def _result(self, sla: Sla, slas: Sequence[Sla]) -> SlaResult:
        if sla.latency is not None:
            latency = self._judged(sla.latency)
            metric = f"{sla.stat}_{latency}"
            if self._sample.immeasurable(latency):
                return self._plain(sla, metric, None, 0, f"{NOTHING}: no answer came in two events or more")
            tail = None if sla.quantile is None else Tail.of(sla.bound, sla.quantile)
            values, n_eff = self._sample.counted_values(latency, tail)
            if len(values) == 0:
                return self._plain(sla, metric, None, 0)
            if sla.stat == "mean":
                return self._mean(sla, metric, values, n_eff)
            if sla.stat == "max":
                return self._plain(sla, metric, values[-1], len(values))
            assert sla.quantile is not None  # neither mean nor max
            violated = Violations(len(values), values.above(sla.bound), n_eff)
            queued = latency not in BETWEEN_TOKENS
            return self._share(sla, metric, quantile(values, sla.quantile), violated, sla.quantile, queued=queued)
        if sla.metric == "attainment":
            good, n_eff, _ = self._good(slas)
            violated = Violations(good.size, int((~good).sum()), n_eff)
            share = float(good.mean()) if good.size else None
            queued = any(one.latency not in (None, *BETWEEN_TOKENS) for one in slas)
            return self._share(sla, sla.metric, share, violated, sla.bound, queued=queued)
        if sla.metric == "failure_rate":
            failed = self.times.failed[self._sample.counted()]
            share = float(failed.mean()) if failed.size else None
            violated = Violations(failed.size, int(failed.sum()), effective_n(failed.astype(float)))
            return self._share(sla, sla.metric, share, violated, 1 - sla.bound)
        at_goodput = sla.metric == "goodput_request_per_s"
        rate = self.goodput(slas).request_per_s if at_goodput else getattr(self.throughput, sla.metric)
        return self._rate(sla, rate, slas)

    def _good(self, slas: Sequence[Sla]) -> tuple[BoolArray, float, BoolArray]:
        """(bool[those]: which met every latency SLA; their effective sample size; bool[requests]: which those are).
        None without such an SLA.

        An SLA on ITL is left out: it applies to pooled gaps and not to requests.
        """
        loosest: dict[tuple[Scope | None, str], float] = {}
        for sla in slas:
            if sla.latency is not None and sla.latency != "itl_ms":
                latency = self._judged(sla.latency)
                loosest[sla.scope, latency] = max(sla.bound, loosest.get((sla.scope, latency), 0.0))
        counted = self._sample.counted()
        if {latency for _, latency in loosest} == {"tpot_ms"}:
            counted = counted & ~self.times.single_token
        unknown = any(self.of(scope)._sample.unanswerable(latency) for scope, latency in loosest)
        if not loosest or unknown or not counted.any():
            return np.empty(0, dtype=np.bool_), 0.0, np.zeros(len(self.times), dtype=np.bool_)
        good = self.times.completed.copy()
        for (scope, latency), bound in loosest.items():
            within = self.times.latency(latency) <= bound  # NaN is not within
            within |= ~self._members(scope)
            good &= (within | self.times.single_token) if latency == "tpot_ms" else within
        good = good[counted]
        samples = [self.of(scope)._sample.values(latency, Tail(bound)) for (scope, latency), bound in loosest.items()]
        shares = [n_eff / values.size for values, n_eff in samples if values.size]
        return good, good.shape[0] * min([effective_n(good.astype(float)) / good.shape[0], *shares]), counted

    def _share(
        self, sla: Sla, metric: str, value: float | None, violated: Violations, p: float, *, queued: bool = False
    ) -> SlaResult:
        """Whether at least a share p has no violation, by the binomial test on the effective sample. queued: what is
        violated contains the queue."""
        n, violations, n_eff = violated
        if value is None or not 0 < p < 1:  # "all" or "none" holds for this run: no sample can prove it for another
            return self._plain(sla, metric, value, n)
        bursts = bursts_of(self.record, self.times) if queued and self.open_loop and p >= FAR_TAIL else None
        judged = share_verdict(
            violated,
            p,
            self.criteria.confidence,
            missed=value > sla.bound if sla.upper else value < sla.bound,
            unit="gaps" if metric.endswith("itl_ms") else f"requests {self.scope.words}" if self.scope else "requests",
            bursts=bursts.reason if bursts is not None and bursts.rare else None,
        )
        result = self._build(sla, metric, value, n, n_eff, *judged)
        counted = None if bursts is None else (bursts.found, bursts.wanted)
        return msgspec.structs.replace(result, violations=violations, bursts=counted)

    def _rate(self, sla: Sla, rate: float | None, slas: Sequence[Sla]) -> SlaResult:
        """Passes by this run's value, and fails where the t bound of its slices of time is below the SLA."""
        n = int(self.times.completed.sum())
        done = partial(self._build, sla, sla.metric, rate, n, None)
        if rate is None or rate >= sla.bound:
            return self._plain(sla, sla.metric, rate, n)
        upper = rate + self._rate_error(sla.metric, slas)
        if upper < sla.bound:
            return done("fail", f"the true rate is below {upper:.4g} with {self.criteria.confidence:.0%} confidence")
        return done("inconclusive", f"below the bound, but the rate varies over the run, up to {upper:.4g} on average")

    def _rate_error(self, metric: str, slas: Sequence[Sla]) -> float:
        """Half of the one-sided t interval of a rate, by its values in equal slices of the window, what completed
        counted where it ended."""
        times, window_s = self.times, self.throughput.window_s
        counted = times.completed.astype(np.float64)
        if metric == "goodput_request_per_s":
            good, _, rows = self._good(slas)
            counted = np.zeros(len(times))
            counted[rows] = good
        elif metric != "request_per_s":
            counted *= times.output_tokens + (times.prompt_tokens if metric == "total_token_per_s" else 0)
        begin_ns = int(times.scheduled_ns.min())
        at = ((times.end_ns - begin_ns) / NS / window_s * SLICES).astype(np.int64)
        inside = (at >= 0) & (at <= SLICES)
        slices = np.bincount(np.minimum(at[inside], SLICES - 1), counted[inside], SLICES) * SLICES / window_s
        t = float(stdtrit(SLICES - 1, self.criteria.confidence))
        return t * float(slices.std(ddof=1)) / math.sqrt(SLICES)

    def _mean(self, sla: Sla, metric: str, values: CountedValues, n_eff: float) -> SlaResult:
        """One-sided t bounds on the effective sample of completed requests; fails where too many requests failed."""
        present = values.finite()
        n, confidence, allowed = len(present), self.criteria.confidence, self.criteria.max_failure_rate
        mean = present.mean() if n else None
        done = partial(self._build, sla, metric, mean, n, n_eff)
        lost = 1 - n / len(values)
        if mean is None or lost > allowed:
            return done("fail", f"{lost:.1%} of the requests have no latency, more than {allowed:.1%}")
        if n_eff < 2:
            return done("inconclusive", f"the effective sample size of {n} requests is 1")
        half = float(stdtrit(n_eff - 1, confidence)) * present.std(ddof=1) / math.sqrt(n_eff)
        if mean > sla.bound:
            said = f"the true mean is above {mean - half:.4g} with {confidence:.0%} confidence"
            return done("fail" if mean - half > sla.bound else "inconclusive", said)
        said = f"the true mean is below {mean + half:.4g} with {confidence:.0%} confidence"
        return done("pass" if mean + half <= sla.bound else "inconclusive", said)

    def _plain(self, sla: Sla, metric: str, value: float | None, n: int, why_none: str = NOTHING) -> SlaResult:
        """One number of this run against its bound; it proves nothing about another run."""
        done = partial(self._build, sla, metric, value, n, None)
        if value is None:
            return done("inconclusive", why_none)
        within = value <= sla.bound if sla.upper else value >= sla.bound
        return done("pass" if within else "fail", "judged by this run's value alone")

    def _build(
        self,
        sla: Sla,
        metric: str,
        value: float | None,
        n: int,
        n_eff: float | None,
        verdict: Verdict,
        reason: str,
        needed: int | None = None,
    ) -> SlaResult:
        shown = value if value is not None and math.isfinite(value) else None
        in_seconds = sla.latency is not None and 0 < sla.bound <= IN_SECONDS
        if in_seconds and verdict != "pass" and shown is not None and shown >= FAR_BEYOND * sla.bound:
            reason += f" (the bound is in ms: {sla.bound:g} s would be {1000 * sla.bound:g})"
        confidence = self.criteria.confidence
        scope = None if self.scope is None else str(self.scope)
        return SlaResult(sla.expr, metric, shown, sla.bound, confidence, n, n_eff, verdict, reason, needed, scope)
