"""Repeats of one setting, merged into one point."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reports.pooled import pooled_result
from reports.schema import SlaResult, Validity
from reports.summary_schema import Signals
from reports.sweep_schema import Point, TenantPoint

MEDIANS = (
    "arrivals_per_s", "output_token_per_s", "request_per_s", "goodput_per_s", "tokens_per_s_per_user",
    "p50_ttft_ms", "p99_ttft_ms",
    "p50_tpot_ms", "p99_tpot_ms", "p99_e2el_ms", "attainment",
)  # fmt: skip
OWN = ("p99_ttft_ci_ms", "p99_tpot_ci_ms", "p99_e2el_ci_ms")  # intervals of a single run
BY_SEVERITY = ("invalid", "overloaded", "client_limited", "ok")


def merged_point(runs: Sequence[Point]) -> Point:
    """A single run as it is; else medians over the runs. An SLA is judged on all requests of runs with other plans
    (pooled.py); else it passes if all runs pass it, and fails if half of them fail it. The validity is one that half of
    the runs have."""
    first = runs[0]
    if len(runs) == 1:
        return first
    return msgspec.structs.replace(
        first,
        **{name: _median([getattr(one, name) for one in runs]) for name in MEDIANS},
        **dict.fromkeys(OWN),
        by_tenant=_tenants([one.by_tenant for one in runs]),
        signals=_signals([one.signals for one in runs]),
        instances={
            name: _signals([one.instances[name] for one in runs if name in one.instances]) for name in first.instances
        },
        sla=tuple(_sla(results, _may_pool(runs)) for results in zip(*(one.sla for one in runs), strict=True)),
        validity=_validity([one.validity for one in runs if one.validity is not None]),
        saturated=next(iter(_half([one.saturated for one in runs])), None),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return statistics.median(known) if known else None


def _tenants(runs: Sequence[Mapping[str, TenantPoint]]) -> dict[str, TenantPoint]:
    names = dict.fromkeys(name for one in runs for name in one)
    return {
        name: TenantPoint(
            p99_ttft_ms=_median([one[name].p99_ttft_ms for one in runs if name in one]),
            p99_tpot_ms=_median([one[name].p99_tpot_ms for one in runs if name in one]),
        )
        for name in names
    }


def _signals(runs: Sequence[Signals]) -> Signals:
    merged: dict[str, Any] = {}
    for name in Signals.__struct_fields__:
        if name != "blocked":
            middle = _median([getattr(one, name) for one in runs])
            whole = any(isinstance(getattr(one, name), int) for one in runs)
            merged[name] = round(middle) if middle is not None and whole else middle
    reasons = dict.fromkeys(reason for one in runs for reason in one.blocked)
    blocked = {reason: statistics.fmean(one.blocked.get(reason, 0.0) for one in runs) for reason in reasons}
    return Signals(**merged, blocked=blocked)


def _may_pool(runs: Sequence[Point]) -> bool:
    """Simulated repeats have other plans; on an engine or a server all replay one, and meet the same bursts."""
    valid = all(one.validity is None or one.validity.verdict == "ok" for one in runs)
    return valid and all(one.prediction is not None for one in runs)


def _sla(results: Sequence[SlaResult], may_pool: bool) -> SlaResult:
    if may_pool and (pooled := pooled_result(results)) is not None:
        return pooled
    verdicts = [one.verdict for one in results]
    passed, failed = verdicts.count("pass"), verdicts.count("fail")
    typical = sorted(results, key=lambda one: float("inf") if one.value is None else one.value)[len(results) // 2]
    return msgspec.structs.replace(
        typical,
        value=_median([one.value for one in results]) if None not in [one.value for one in results] else typical.value,
        verdict="fail" if 2 * failed >= len(results) else "pass" if passed == len(results) else "inconclusive",
        reason=f"{passed} of {len(results)} repeats pass, {failed} fail",
    )


def _validity(runs: Sequence[Validity]) -> Validity | None:
    for verdict in BY_SEVERITY:
        alike = [one for one in runs if one.verdict == verdict]
        if 2 * len(alike) >= len(runs) and alike:
            return alike[0]
    return max(runs, key=lambda one: -BY_SEVERITY.index(one.verdict), default=None)


def _half(sentences: Sequence[str | None]) -> list[str]:
    """The sentences, if half of the runs have one."""
    said = [one for one in sentences if one is not None]
    return said if 2 * len(said) >= len(sentences) else []
