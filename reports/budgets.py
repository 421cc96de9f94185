"""Budgets: how much worse a metric may be than its baseline, as in "tpot=3%"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from reports.metrics import IN_OPEN_LOOP, LATENCIES
from reports.schema import RunFile
from reports.sla import LATENCY, RATES, latency_of, stat_of
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
STATS = ("mean", "p50", "p90", "p95", "p99", "p999", "max")


@dataclass(frozen=True)
class Budget:
    metric: str
    share: float  # 0.03: may be 3 % worse

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
    metrics = [one.metric for one in budgets]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise CbbenchError("budget", f'two budgets for "{metric}"; give one')
    return tuple(budgets)


def _parse(text: str) -> Budget:
    name, _, amount = (part.strip() for part in text.partition("="))
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
    return Budget(metric, share)


def in_open_loop(budget: Budget) -> Budget:
    """The budget on latencies from the scheduled time, as for an SLA in open loop."""
    latency = IN_OPEN_LOOP.get(budget.latency or "")
    return Budget(f"{budget.stat}_{latency}", budget.share) if latency else budget


def value_of(run: RunFile, budget: Budget) -> float | None:
    """The metric of this run; None where it was not measured, or is not above 0 and so has no ratio."""
    assert run.summary is not None  # every stored run was judged
    if budget.latency is None:
        holder: object = run.summary.goodput if budget.metric == "goodput_request_per_s" else run.summary.throughput
        value = getattr(holder, budget.metric.removeprefix("goodput_"))
    else:
        one: Distribution = getattr(run.summary.latency, budget.latency)
        value = getattr(one, budget.stat or "")
    return value if value is not None and value > 0 else None
