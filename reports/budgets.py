"""Budgets: how much worse a metric may be than its baseline, as in "tpot=3%"."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from engines.base import RunRecord
from reports.metrics import IN_OPEN_LOOP, LATENCIES, RequestTimes, request_times
from reports.quantiles import distribution
from reports.sla import LATENCY, RATES, latency_of, stat_of
from reports.sla_scope import Scope, parse_scope
from reports.stages import Stages
from reports.stored_runs import StoredRun
from reports.summary_schema import Distribution
from workloads.errors import CbbenchError

# Short names stand for the statistic that shows a change of a few percent in a few pairs of runs (papers.md 3.5).
# A P99 may be named in full, but needs many more runs.
SHORT = {
    "tpot": "mean_tpot_ms",
    "itl": "mean_itl_ms",
    "ttft": "p50_ttft_ms",
    "e2el": "mean_e2el_ms",
    "throughput": "output_token_per_s",
}
DEFAULTS = ("tpot=3%", "e2el=5%", "ttft=5%", "throughput=3%")
FORM = re.compile(r"\s*([^=\[\s]+)\s*(?:\[([^\]]*)\])?\s*=\s*(.*?)\s*")
STATS = ("mean", "p50", "p90", "p95", "p99", "p999", "max")


@dataclass(frozen=True)
class Budget:
    metric: str
    share: float  # 0.03: may be 3 % worse
    scope: Scope | None = None  # None: all requests

    @property
    def name(self) -> str:
        """mean_e2el_ms[tenant=quiet]"""
        return self.metric if self.scope is None else f"{self.metric}[{self.scope}]"

    @property
    def more_is_worse(self) -> bool:
        return self.metric not in RATES

    @property
    def latency(self) -> str | None:
        """The latency that it bounds ("ttft_ms"), None for a rate."""
        return latency_of(self.metric)

    @property
    def stat(self) -> str | None:
        return stat_of(self.metric)

    @property
    def limit(self) -> str:
        return f"at {'most +' if self.more_is_worse else 'least −'}{100 * self.share:g} %"

    @property
    def symmetric(self) -> str:
        return f"within ±{100 * self.share:g} %"

    def harm(self, log_ratio: float) -> float:
        """log(candidate / baseline), with the sign that makes more worse."""
        return log_ratio if self.more_is_worse else -log_ratio

    @property
    def harm_limit(self) -> float:
        return math.log1p(self.share) if self.more_is_worse else -math.log1p(-self.share)


def parse_budgets(texts: Sequence[str]) -> tuple[Budget, ...]:
    """One budget per metric. CbbenchError on `budget` says what is wrong and what would be right."""
    budgets = [_parse(text) for text in texts]
    metrics = [one.name for one in budgets]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise CbbenchError("budget", f'two budgets for "{metric}"; give one')
    return tuple(budgets)


def _parse(text: str) -> Budget:
    match_of_text = FORM.fullmatch(text)
    name, part, amount = match_of_text.groups() if match_of_text else (text.partition("=")[0].strip(), None, "")
    metric = SHORT.get(name, name)
    match = LATENCY.fullmatch(metric)
    if metric not in RATES and (match is None or match["stat"] not in STATS):
        known = [*SHORT, *RATES, *(f"{stat}_{latency}" for stat in STATS for latency in LATENCIES)]
        close = get_close_matches(name, known, n=1)
        hint = f'did you mean "{(close or ["tpot"])[0]}=3%"?'
        raise CbbenchError("budget", f'"{text}": unknown metric "{name}"; {hint}')
    try:
        share = float(amount.removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not amount.endswith("%") or not 0 <= share < 1:
        raise CbbenchError("budget", f'"{text}": must be a percentage from 0 to below 100, as in {name}=3%')
    return Budget(metric, share, _scope(text, metric, part))


def _scope(text: str, metric: str, part: str | None) -> Scope | None:
    if part is None:
        return None
    if latency_of(metric) in (None, "itl_ms"):
        problem = "a part of the load takes a latency of single requests, as in e2el[tenant=quiet]=5%"
        raise CbbenchError("budget", f'"{text}": {problem}')
    try:
        return parse_scope(part)
    except ValueError as error:
        raise CbbenchError("budget", f'"{text}": {error}') from None


def in_open_loop(budget: Budget) -> Budget:
    """The budget on latencies from the scheduled time, as for an SLA in open loop."""
    latency = IN_OPEN_LOOP.get(budget.latency or "")
    return replace(budget, metric=f"{budget.stat}_{latency}") if latency else budget


def value_of(one: StoredRun, budget: Budget) -> float | None:
    """The metric of this run; None where it was not measured, or is not above 0 and so has no ratio."""
    summary = one.run.summary
    assert summary is not None  # every stored run was judged
    if budget.latency is None:
        holder: object = summary.goodput if budget.metric == "goodput_request_per_s" else summary.throughput
        value = getattr(holder, budget.metric.removeprefix("goodput_"))
    elif budget.scope is None:
        value = getattr(getattr(summary.latency, budget.latency), budget.stat or "")
    elif one.record is None:  # another tool's file
        return None
    else:
        times = times_in(one, one.record, budget.scope)
        # No interval is taken from it, so its effective sample does not matter.
        found: Distribution = distribution(times.latency(budget.latency), float(len(times)))
        value = getattr(found, budget.stat or "")
    return value if value is not None and value > 0 else None


def times_in(one: StoredRun, record: RunRecord, scope: Scope | None) -> RequestTimes:
    """The requests of a run in scope."""
    times = request_times(record)
    if scope is None:
        return times
    members = scope.members(record, Stages.of(one.run.workload.pacing.rate_schedule))
    return times.part(members[times.row])
