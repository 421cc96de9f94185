"""Whether a run meets its SLAs: pass, fail or inconclusive.

A percentile SLA says "at least a share p of all requests is within the bound", and so does a share SLA. Both pass by
the binomial test of quantiles.py, and fail where the measured value is beyond the bound. Failed and missing requests
are violations. Counts are scaled to the effective sample.
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
from reports.counted_values import CountedValues
from reports.metrics import IN_OPEN_LOOP, BoolArray, RequestTimes
from reports.quantiles import FloatArray, accepts, effective_n, quantile, total_needed, wilson_interval
from reports.schema import Criteria, SlaResult, Verdict
from reports.sla import Sla
from reports.sla_scope import Scope
from reports.stages import Stages
from reports.summary_schema import Goodput, Throughput
from workloads.rates import NS

BETWEEN_TOKENS = ("tpot_ms", "itl_ms")
NOTHING = "nothing was measured"


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

    def counted_values(self, latency: str) -> tuple[CountedValues, float]:
        """Values in ms, infinite where a request failed or lacks one, and their effective sample size."""
        if latency != "itl_ms":
            values, n_eff = self.values(latency)
            return CountedValues(np.sort(values), np.ones(values.shape[0], np.int64)), n_eff
        lost = int((self.counted() & ~self.times.completed).sum())
        gaps = self.times.gaps_ms.with_infinite(lost)
        independent = self.times.effective_n(latency) / max(1, len(self.times.gaps_ms))
        return gaps, len(gaps) * independent

    def values(self, latency: str) -> tuple[FloatArray, float]:
        """ms[requests] in order of sending, infinite where a request failed or lacks one, and the effective sample
        size."""
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
        if present.size:
            independent = min(independent, effective_n(present) / present.size)
        return np.where(missing, np.inf, values), values.size * independent

    def unanswerable(self, latency: str) -> bool:
        """Immeasurable, and not because every answer has one token: whether those answers met the SLA is unknown."""
        return self.immeasurable(latency) and not bool(self.times.single_token[self.times.completed].all())


class Violations(NamedTuple):
    """How many of `total` requests (or gaps) were beyond a bound. n_eff: effective sample size of `total`."""

    total: int
    beyond: int
    n_eff: float


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
        good, n_eff = self._good(slas)
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
            values, n_eff = self._sample.counted_values(latency)
            if len(values) == 0:
                return self._plain(sla, metric, None, 0)
            if sla.stat == "mean":
                return self._mean(sla, metric, values, n_eff)
            if sla.stat == "max":
                return self._plain(sla, metric, values[-1], len(values))
            assert sla.quantile is not None  # neither mean nor max
            violated = Violations(len(values), values.above(sla.bound), n_eff)
            return self._share(sla, metric, quantile(values, sla.quantile), violated, sla.quantile)
        if sla.metric == "attainment":
            good, n_eff = self._good(slas)
            violated = Violations(good.size, int((~good).sum()), n_eff)
            return self._share(sla, sla.metric, float(good.mean()) if good.size else None, violated, sla.bound)
        if sla.metric == "failure_rate":
            failed = self.times.failed[self._sample.counted()]
            share = float(failed.mean()) if failed.size else None
            violated = Violations(failed.size, int(failed.sum()), effective_n(failed.astype(float)))
            return self._share(sla, sla.metric, share, violated, 1 - sla.bound)
        at_goodput = sla.metric == "goodput_request_per_s"
        rate = self.goodput(slas).request_per_s if at_goodput else getattr(self.throughput, sla.metric)
        return self._plain(sla, sla.metric, rate, int(self.times.completed.sum()))

    def _good(self, slas: Sequence[Sla]) -> tuple[BoolArray, float]:
        """bool[requests]: which met every latency SLA, and their effective sample size. Empty without such an SLA.

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
            return np.empty(0, dtype=np.bool_), 0.0
        good = self.times.completed.copy()
        for (scope, latency), bound in loosest.items():
            within = self.times.latency(latency) <= bound  # NaN is not within
            within |= ~self._members(scope)
            good &= (within | self.times.single_token) if latency == "tpot_ms" else within
        good = good[counted]
        samples = [self.of(scope)._sample.values(latency) for scope, latency in loosest]
        shares = [n_eff / values.size for values, n_eff in samples if values.size]
        return good, good.shape[0] * min([effective_n(good.astype(float)) / good.shape[0], *shares])

    def _share(self, sla: Sla, metric: str, value: float | None, violated: Violations, p: float) -> SlaResult:
        """Whether at least a share p has no violation, by the binomial test on the effective sample."""
        n, violations, n_eff = violated
        confidence = self.criteria.confidence
        if value is None or not 0 < p < 1:  # "all" or "none" holds for this run: no sample can prove it for another
            return self._plain(sla, metric, value, n)
        done = partial(self._build, sla, metric, value, n, n_eff)
        total = math.floor(n_eff + 1e-9)
        counted = min(total, math.ceil(violations * n_eff / n - 1e-9))
        unit = "gaps" if metric.endswith("itl_ms") else f"requests {self.scope.words}" if self.scope else "requests"
        said = f"{violations or 'none'} of {n} {unit} beyond it"
        if total < n:
            said += f"; they are correlated, and the effective sample size is {total}"
        if value > sla.bound if sla.upper else value < sla.bound:
            return done("fail", said)
        if accepts(total, counted, p, confidence):
            return done("pass", said)
        needed = math.ceil(total_needed(counted, p, confidence) * n / n_eff - 1e-9)
        return done("inconclusive", f"{said}; {confidence:.0%} confidence needs at least {needed} {unit}", needed)

    def _mean(self, sla: Sla, metric: str, values: CountedValues, n_eff: float) -> SlaResult:
        """One-sided t bound on the effective sample of completed requests; fails where too many requests failed."""
        present = values.finite()
        n, confidence, allowed = len(present), self.criteria.confidence, self.criteria.max_failure_rate
        mean = present.mean() if n else None
        done = partial(self._build, sla, metric, mean, n, n_eff)
        lost = 1 - n / len(values)
        if mean is None or lost > allowed:
            return done("fail", f"{lost:.1%} of the requests have no latency, more than {allowed:.1%}")
        if mean > sla.bound:
            return done("fail", f"the mean of {n} requests is beyond it")
        if n_eff < 2:
            return done("inconclusive", f"the effective sample size of {n} requests is 1")
        t = float(stdtrit(n_eff - 1, confidence))
        upper = mean + t * present.std(ddof=1) / math.sqrt(n_eff)
        said = f"the true mean is below {upper:.4g} with {confidence:.0%} confidence"
        return done("pass" if upper <= sla.bound else "inconclusive", said)

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
        confidence = self.criteria.confidence
        scope = None if self.scope is None else str(self.scope)
        return SlaResult(sla.expr, metric, shown, sla.bound, confidence, n, n_eff, verdict, reason, needed, scope)
