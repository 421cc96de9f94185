"""Is the candidate worse than the baseline, by more than its budget?

change     0                budget
-----------|------------------|------------->  worse
 [----]    |                  |                 pass: within the budget, not shown to be worse
           |   [----]         |                 warn: worse, within the budget
           |                  |   [----]        fail: the whole interval is beyond the budget
           |               [----]               inconclusive: it reaches beyond the budget

Only a change for the worse fails, so the tests are one-sided: each end of an interval holds at its confidence alone,
as in the 90 % intervals of bioequivalence (Schuirmann, 1987). "Worse" is one finding among many, so the level of that
end is Holm's. "Within the budget" must hold for every metric, so its end needs no correction: all pass only where each
does (intersection-union; Berger, Technometrics 24, 1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.base import RunRecord
from reports.budgets import Budget, in_open_loop, times_in, value_of
from reports.checks import Check, CheckKind, CheckVerdict
from reports.metrics import WITH_QUEUE, RequestTimes
from reports.paired import Spread, holm_levels, paired_spread, request_spread
from reports.quantiles import FloatArray
from reports.record_differences import differences
from reports.scenarios import ComparedRuns, Scenario

OUTPUT_TOLERANCE = 0.005  # share of the output tokens by which two runs of the same work may differ
WEAKER = "one run a side: weaker, as the variation between runs is unknown"


@dataclass(frozen=True)
class Measured:
    """A metric of a scenario on both sides; `spread` is None where the change has no interval."""

    budget: Budget
    before: float | None
    after: float | None
    spread: Spread | None
    remark: str = ""  # why there is no spread, or what the spread leaves out

    @property
    def change(self) -> float | None:
        return self.after / self.before - 1 if self.before and self.after else None

    @property
    def p_worse(self) -> float | None:
        """The probability of a change as bad as this where there is none."""
        return None if self.spread is None else self.spread.p_value(upwards=self.budget.more_is_worse)

    def check(
        self,
        scenario: str,
        kind: CheckKind,
        verdict: CheckVerdict,
        limit: str,
        reason: str,
        log_interval: tuple[float, float] | None,
        context: tuple[str, ...] = (),
    ) -> Check:
        interval = None if log_interval is None else (math.expm1(log_interval[0]), math.expm1(log_interval[1]))
        metric = self.budget.name
        numbers = self.after, self.before, self.change
        return Check(scenario, metric, kind, verdict, limit, reason, *numbers, interval, context)


def regression_checks(
    scenarios: Sequence[Scenario], budgets: Sequence[Budget], confidence: float, max_failure_rate: float
) -> list[Check]:
    """All checks of a comparison. All metrics of all scenarios are one family of tests: twenty tests at 5 % each would
    fail two of three A/A comparisons."""
    measured = [(one, measure_metric(one, budget)) for one in scenarios for budget in budgets_of(one, budgets)]
    p_values = [one.p_worse for _, one in measured if one.p_worse is not None]
    levels = iter(holm_levels(p_values, 1 - confidence))
    checks = [check for one in scenarios for check in (_failure_rate(one, max_failure_rate), *_output_lengths(one))]
    for scenario, one in measured:
        level = next(levels) if one.spread is not None else 1 - confidence
        checks.append(_check(scenario, one, level, 1 - confidence))
    return checks


def budgets_of(scenario: Scenario, budgets: Sequence[Budget]) -> list[Budget]:
    return [in_open_loop(one) for one in budgets] if scenario.open_loop else list(budgets)


def judge(budget: Budget, adjusted: tuple[float, float], alone: tuple[float, float]) -> CheckVerdict:
    """The verdict of a log-ratio against the budget, as drawn above: of its interval at Holm's level, and of that at
    the level of a single test."""
    best, worst = min(map(budget.harm, adjusted)), max(map(budget.harm, alone))
    if best > budget.harm_limit:
        return "fail"
    if worst > budget.harm_limit:
        return "inconclusive"
    return "warn" if best > 0 else "pass"


def measure_metric(scenario: Scenario, budget: Budget) -> Measured:
    values = [(value_of(one.baseline, budget), value_of(one.candidate, budget)) for one in scenario.pairs]
    known = [(a, b) for a, b in values if a is not None and b is not None]
    if len(known) < len(values):
        return Measured(budget, *values[0], None, "not measured in every run")
    logs = np.log(known)
    before, after = (float(one) for one in np.exp(logs.mean(axis=0)))
    if len(known) > 1:
        return Measured(budget, before, after, paired_spread((logs[:, 1] - logs[:, 0]).tolist()))
    return Measured(budget, before, after, *_single(scenario.pairs[0], budget))


def _single(pair: ComparedRuns, budget: Budget) -> tuple[Spread | None, str]:
    """The spread within one pair of runs, and why there is none or what it leaves out."""
    latency, stat = budget.latency, budget.stat
    if latency is None or latency == "itl_ms" or stat is None or stat == "max":
        return None, "no interval from one value a side: compare several pairs of runs"
    if pair.baseline.record is None or pair.candidate.record is None:
        return None, "no interval, as a file has no single requests"
    ours = times_in(pair.baseline, pair.baseline.record, budget.scope)
    theirs = times_in(pair.candidate, pair.candidate.record, budget.scope)
    before, after = matched((pair.baseline.record, ours), (pair.candidate.record, theirs), latency)
    spread = request_spread(before, after, stat, matched=not pair.differences)
    if spread is None:
        return None, "no interval, as the requests are too correlated: compare several pairs of runs"
    counts = [int(np.count_nonzero(~np.isnan(one.latency(latency)))) for one in (ours, theirs)]
    left_out = sum(counts) - 2 * len(before)
    # The change is over all requests of each side, so it may lie outside the interval.
    return spread, f"; the interval leaves out {left_out} requests that only one side has" if left_out else ""


Side = tuple[RunRecord, RequestTimes]


def matched(before: Side, after: Side, latency: str) -> tuple[FloatArray, FloatArray]:
    """The latency of the requests that have one on both sides, in order of index."""
    ours, theirs = (_by_index(*side, latency) for side in (before, after))
    both = sorted(ours.keys() & theirs.keys())
    return np.array([ours[i] for i in both]), np.array([theirs[i] for i in both])


def _by_index(record: RunRecord, times: RequestTimes, latency: str) -> dict[int, float]:
    index = record.column("i")[times.row].tolist()
    values = times.latency(latency).tolist()
    return {i: value for i, value in zip(index, values, strict=True) if not math.isnan(value)}


def _check(scenario: Scenario, one: Measured, level: float, alone: float) -> Check:
    """level: Holm's, of the end that shows it to be worse; alone: of the end that shows it to be within the budget."""
    budget, change, interval = one.budget, one.change, None
    context: list[str] = []
    if one.spread is None:
        within = change is not None and budget.harm(math.log1p(change)) <= budget.harm_limit
        verdict: CheckVerdict = "pass" if within else "inconclusive"
        reason = one.remark
    else:
        adjusted, unadjusted = one.spread.interval(2 * level), one.spread.interval(2 * alone)
        verdict = judge(budget, adjusted, unadjusted)
        worse = min(map(budget.harm, adjusted)) > 0
        # Each end as it is judged by: the better one at Holm's level, the worse one alone.
        interval = (adjusted[0], unadjusted[1]) if budget.more_is_worse else (unadjusted[0], adjusted[1])
        reason = _reason(verdict, worse, len(scenario.pairs), level, alone) + one.remark
        context += [] if len(scenario.pairs) > 1 else [WEAKER]
    if (doubt := _unsupported(scenario, budget)) is not None:
        verdict, reason, context = "inconclusive", doubt, []
    context += ["the workloads differ"] if scenario.differences else []
    return one.check(scenario.name, "regression", verdict, budget.limit, reason, interval, tuple(context))


def _reason(verdict: CheckVerdict, worse: bool, pairs: int, level: float, alone: float) -> str:
    words = {
        "pass": "within the budget, and not shown to be worse",
        "warn": "worse, but within the budget",
        "fail": "the whole interval is beyond the budget",
        "inconclusive": f"{'worse, by an unknown amount: ' if worse else ''}the interval reaches beyond the budget",
    }
    unit = f"; {pairs} pairs of runs" if pairs > 1 else ""
    return f"{words[verdict]} (its better end holds at {1 - level:.4g}, its worse end at {1 - alone:.4g}{unit})"


def _unsupported(scenario: Scenario, budget: Budget) -> str | None:
    """Why these runs do not support a verdict on this metric."""
    for one in (run for pair in scenario.pairs for run in (pair.baseline, pair.candidate)):
        validity = one.run.validity.verdict if one.run.validity else "ok"
        reasons = "; ".join(one.run.validity.reasons) if one.run.validity else ""
        if validity in ("invalid", "client_limited"):
            return f"{one.name}: {validity.replace('_', ' ')}: {reasons}"
        if one.run.interrupted:
            return f"{one.name}: interrupted"
        if validity == "overloaded" and budget.latency in WITH_QUEUE:
            return f"{one.name}: overloaded, so its waiting times depend on the length of the run: {reasons}"
    return None


def _failure_rate(scenario: Scenario, allowed: float) -> Check:
    """A check of the failure rate, as failures lower the latencies of the requests that succeed."""
    shares = []
    for side in ("baseline", "candidate"):
        counts = [getattr(pair, side).run.summary.requests for pair in scenario.pairs]
        shares.append(sum(one.failed for one in counts) / max(1, sum(one.planned for one in counts)))
    before, after = shares
    limit = f"+{100 * allowed:g} points"
    for one in (run for pair in scenario.pairs for run in (pair.baseline, pair.candidate)):
        if not one.failures_known:
            reason = f"{one.name} does not say how many requests failed"
            return Check(scenario.name, "failure_rate", "regression", "inconclusive", limit, reason)
    verdict: CheckVerdict = "fail" if after - before > allowed else "warn" if after > before else "pass"
    reason = f"{after:.2%} of the requests failed, {before:.2%} in the baseline"
    return Check(scenario.name, "failure_rate", "regression", verdict, limit, reason, after, before)


def _output_lengths(scenario: Scenario) -> list[Check]:
    """A warning where the outputs differ in length, as that changes every other metric."""
    tokens = [0, 0]
    for pair in scenario.pairs:
        for at, one in enumerate((pair.baseline, pair.candidate)):
            tokens[at] += int(one.record.column("output_tokens").sum()) if one.record is not None else 0
    before, after = tokens
    if not before or not after or abs(after / before - 1) <= OUTPUT_TOLERANCE:
        return []
    reason = f"{after:,} output tokens, {before:,} in the baseline: the outputs differ in length (ignore_eos?)"
    limit, change = f"within {100 * OUTPUT_TOLERANCE:g} %", after / before - 1
    return [Check(scenario.name, "output_tokens", "regression", "warn", limit, reason, after, before, change)]


def exact_checks(scenario: Scenario, budgets: Sequence[Budget], *, strict: bool) -> list[Check]:
    """Checks of two simulated runs, which have no noise. strict: they fail unless they are equal to the bit."""
    (pair,) = scenario.pairs
    before, after = pair.baseline, pair.candidate
    assert before.record is not None  # simulated, so not of another tool
    assert after.record is not None
    found = differences(before.record, after.record)
    verdict: CheckVerdict = "pass" if not found else "fail" if strict else "warn"
    reason = "; ".join(found) or "every time, token and step is equal"
    if found and strict:
        reason += ". If the change is intended, store the new run as the baseline, or give a budget"
    checks = [Check(scenario.name, "bit-equal", "regression", verdict, "equal", reason)]
    held = [one for one in budgets_of(scenario, budgets) if not strict or _measured(pair, one)]
    return checks + [_exact_check(scenario, pair, budget) for budget in held]


def _measured(pair: ComparedRuns, budget: Budget) -> bool:
    """On one side at least. The budgets of a strict comparison are defaults: a metric that neither run has is left out,
    as equality to the bit covers it."""
    return any(value_of(one, budget) is not None for one in (pair.baseline, pair.candidate))


def _exact_check(scenario: Scenario, pair: ComparedRuns, budget: Budget) -> Check:
    old, new = value_of(pair.baseline, budget), value_of(pair.candidate, budget)
    if old is None or new is None:
        return Check(scenario.name, budget.name, "regression", "inconclusive", budget.limit, "not measured", new, old)
    log_ratio = math.log(new / old)
    verdict = judge(budget, (log_ratio, log_ratio), (log_ratio, log_ratio))
    reason = "simulated, so without noise"
    return Check(scenario.name, budget.name, "regression", verdict, budget.limit, reason, new, old, new / old - 1)
