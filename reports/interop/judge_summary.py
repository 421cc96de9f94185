"""SLAs on a summary alone: percentiles that another tool computed, without single requests.

A value beyond its bound fails. A value within it is inconclusive: violations cannot be counted, and the effective
sample size is unknown. A rate or a maximum is one number of this run and passes or fails by it, as in judge.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from reports.metrics import definitions
from reports.quantiles import accepts, refuses, total_needed
from reports.schema import Criteria, RunFile, SlaResult, Validity, Verdict
from reports.sla import Sla
from reports.summary_schema import Distribution, Summary

NO_REQUESTS = "within the bound, but not proved: the file has no single requests, so violations cannot be counted"
ALONE = "judged by the value in the file alone"
UNSEEN = "the file does not show it"


def judged_by_summary(header: RunFile, summary: Summary, slas: Sequence[Sla], *, failures_known: bool) -> RunFile:
    """The header with this summary, the verdicts of the SLAs and the validity filled in."""
    judge = _Judge(summary, header.criteria, failures_known)
    return msgspec.structs.replace(
        header,
        definitions=definitions(),
        summary=summary,
        sla=tuple(judge.result(one) for one in slas),
        validity=_validity(summary, header.criteria.max_failure_rate),
    )


def _validity(summary: Summary, allowed: float) -> Validity:
    counts = summary.requests
    if not counts.completed:
        return Validity("invalid", ("no request completed",))
    share = counts.failed / counts.planned
    if share > allowed:
        return Validity(
            "invalid", (f"{counts.failed} of {counts.planned} requests failed: {share:.1%} is above {allowed:.1%}",)
        )
    return Validity("ok")


class _Judge:
    def __init__(self, summary: Summary, criteria: Criteria, failures_known: bool) -> None:
        self.summary, self.criteria, self.failures_known = summary, criteria, failures_known

    def result(self, sla: Sla) -> SlaResult:
        if sla.scope is not None:
            told = self._build(sla, sla.metric, None, "inconclusive", UNSEEN)
            return msgspec.structs.replace(told, scope=str(sla.scope))
        if sla.latency is not None:
            return self._latency(sla, sla.latency)
        if sla.metric == "failure_rate":
            return self._failure_rate(sla)
        value = getattr(self.summary.throughput, sla.metric, None)  # attainment and goodput need the requests
        if value is None:
            return self._build(sla, sla.metric, None, "inconclusive", UNSEEN)
        within = value <= sla.bound if sla.upper else value >= sla.bound
        return self._build(sla, sla.metric, value, "pass" if within else "inconclusive", ALONE)

    def _latency(self, sla: Sla, latency: str) -> SlaResult:
        metric = f"{sla.stat}_{latency}"
        one: Distribution = getattr(self.summary.latency, latency)
        value: float | None = getattr(one, sla.stat or "", None)
        if value is None:
            return self._build(sla, metric, None, "inconclusive", UNSEEN)
        counts = self.summary.requests
        lost = 1 - counts.completed / max(1, counts.planned)
        if value > sla.bound:
            said = "the value in the file is beyond it"
            if sla.stat == "max":
                return self._build(sla, metric, value, "fail", said)
            return self._build(sla, metric, value, "inconclusive", f"{said}; {NO_REQUESTS}")
        room = 1 - sla.quantile if sla.quantile is not None else 0.0 if sla.stat == "max" else 1.0
        if lost > room:  # a mean is over those that completed
            said = f"{lost:.1%} of the requests did not complete, so over all requests it is beyond any bound"
            return self._build(sla, metric, None, "fail", said)
        if sla.stat == "max" and self.failures_known:
            return self._build(sla, metric, value, "pass", ALONE)
        return self._build(sla, metric, value, "inconclusive", NO_REQUESTS)

    def _failure_rate(self, sla: Sla) -> SlaResult:
        counts, confidence = self.summary.requests, self.criteria.confidence
        if not self.failures_known:
            return self._build(sla, sla.metric, None, "inconclusive", "the file does not say how many requests failed")
        share = counts.failed / max(1, counts.planned)
        said = f"{counts.failed or 'none'} of {counts.planned} requests failed"
        if share > sla.bound and (sla.bound == 0 or refuses(counts.planned, counts.failed, 1 - sla.bound, confidence)):
            return self._build(sla, sla.metric, share, "fail", said)
        if counts.failed:
            return self._build(sla, sla.metric, share, "inconclusive", f"{said}; whether in bursts is unknown")
        if sla.bound == 0 or accepts(counts.planned, 0, 1 - sla.bound, confidence):
            return self._build(sla, sla.metric, share, "pass", said)
        needed = math.ceil(total_needed(0, 1 - sla.bound, confidence))
        said += f"; {confidence:.0%} confidence needs at least {needed} requests"
        return self._build(sla, sla.metric, share, "inconclusive", said, needed)

    def _build(
        self, sla: Sla, metric: str, value: float | None, verdict: Verdict, reason: str, needed: int | None = None
    ) -> SlaResult:
        n = self.summary.requests.planned
        return SlaResult(sla.expr, metric, value, sla.bound, self.criteria.confidence, n, None, verdict, reason, needed)
