"""One verdict from several runs of one setting, whose plans differ.

Counts of a percentile or a share add up, and the dependence is the largest of the runs: a run that met no burst of the
queue does not show how requests cluster. Of means and rates the run is the unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

import msgspec
from scipy.special import stdtrit

from reports.bursts import WAY_OUT
from reports.schema import SlaResult, Verdict
from reports.share_test import FAR_TAIL, Violations, share_verdict
from reports.sla import Sla, parse_sla


def pooled_result(results: Sequence[SlaResult]) -> SlaResult | None:
    """The verdict on one SLA from its results in several runs. None where they do not add up: a run has no value, or an
    older cbbench wrote it without the count of what was beyond the bound."""
    first = results[0]
    values = [one.value for one in results if one.value is not None]
    if len(values) < len(results) or len(results) < 2:
        return None
    sla = parse_sla(first.expr)
    if sla.stat == "max":
        return _of_value(results, max(values), "fail" if max(values) > sla.bound else "pass", "the largest of")
    if (p := _share_within(sla)) is None:
        return _by_run(results, values, sla)
    if any(one.violations is None or not one.n_eff for one in results):
        return None
    return _counted(results, values, sla, p)


def _share_within(sla: Sla) -> float | None:
    """The share that must be within the bound; None for a mean, a rate, or a bound of all or none."""
    share = {"attainment": sla.bound, "failure_rate": 1 - sla.bound}.get(sla.metric, sla.quantile)
    return share if share is not None and 0 < share < 1 else None


def _counted(results: Sequence[SlaResult], values: Sequence[float], sla: Sla, p: float) -> SlaResult:
    n = sum(one.n for one in results)
    beyond = sum(one.violations or 0 for one in results)
    tau = max(one.n / (one.n_eff or 1.0) for one in results)
    bursts = [one.bursts for one in results if one.bursts is not None]
    found, wanted = (sum(one[at] for one in bursts) for at in (0, 1))
    rare = f"near saturation, where rare bursts decide this latency ({found} of {wanted} wanted): {WAY_OUT}"
    unit = "gaps" if sla.latency == "itl_ms" else "requests"
    unit += f" of {len(results)} runs"
    counts = Violations(n, beyond, n / tau)
    why = rare if found < wanted and p >= FAR_TAIL else None
    confidence = results[0].confidence
    judged = share_verdict(
        counts,
        p,
        confidence,
        missed=beyond > (1 - p) * n,
        unit=unit,
        bursts=why,
    )
    return msgspec.structs.replace(
        results[0],
        value=median(values),
        n=n,
        n_eff=n / tau,
        verdict=judged.verdict,
        reason=judged.reason,
        needed=None if results[0].scope is not None else judged.needed,
        violations=beyond,
        bursts=(found, wanted) if bursts else None,
    )


def _by_run(results: Sequence[SlaResult], values: Sequence[float], sla: Sla) -> SlaResult:
    """Student's t over the runs, one-sided. A rate passes by its mean alone, as that of a single run does."""
    runs, mean, confidence = len(values), fmean(values), results[0].confidence
    half = float(stdtrit(runs - 1, confidence)) * stdev(values) / math.sqrt(runs)
    harm, bound = (mean, sla.bound) if sla.upper else (-mean, -sla.bound)
    verdict: Verdict = "inconclusive"
    if harm - half > bound:
        verdict = "fail"
    elif (harm + half if sla.latency is not None else harm) <= bound:
        verdict = "pass"
    return _of_value(results, mean, verdict, f"{mean:.4g} ± {half:.2g} at {confidence:.0%} each way, the mean of")


def _of_value(results: Sequence[SlaResult], value: float, verdict: Verdict, words: str) -> SlaResult:
    n = sum(one.n for one in results)
    reason = f"{words} {len(results)} runs"
    return msgspec.structs.replace(
        results[0], value=value, n=n, n_eff=None, verdict=verdict, reason=reason, needed=None
    )
