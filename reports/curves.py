"""A sweep: the points of its curve, the setting to choose, and what stops the next step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reports.files import read_json, write_atomic
from reports.limits import limit_of
from reports.schema import SWEEP_SCHEMA, Point, Recommendation, RunFile, SlaResult, SweepFile, Value

SWEEP = "sweep.json"
NEAR_BEST = 0.95  # of the best throughput: what lies between is within the noise of one run each


def point_of(value: Value, folder: str, run: RunFile, config_sha256: str = "") -> Point:
    """The point a finished run gives. `folder` is relative to the sweep's. ValueError for a run without summary."""
    if run.summary is None:
        raise ValueError(f"{folder}: the run has no summary; rebuild it first")
    latency, throughput = run.summary.latency, run.summary.throughput
    ttft = latency.ttft_sched_ms if run.workload.pacing.open_loop else latency.ttft_ms
    return Point(
        value=value,
        folder=folder,
        config_sha256=config_sha256,
        output_token_per_s=throughput.output_token_per_s,
        request_per_s=throughput.request_per_s,
        p50_ttft_ms=ttft.p50,
        p99_ttft_ms=ttft.p99,
        p50_tpot_ms=latency.tpot_ms.p50,
        p99_tpot_ms=latency.tpot_ms.p99,
        attainment=run.summary.goodput.attainment,
        signals=run.summary.signals,
        sla=run.sla,
        validity=run.validity,
        prediction=run.engine.prediction,
    )


def recommend(param: str, points: Sequence[Point], sla: Sequence[str] = ()) -> Recommendation:
    """The largest output throughput within the SLA; without one, the smallest value within 5 % of the best.

    By point estimate: an SLA that is inconclusive at a point counts as met there, and the reason says so.
    """
    measured = in_order([one for one in points if one.error is None and one.output_token_per_s])
    fit = [one for one in measured if _qualifies(one, bool(sla))]
    if not fit:
        return Recommendation(None, _why_none(measured), limit="sla" if measured and sla else "unknown", proven=False)
    best = max(fit, key=_throughput)  # of equals the first, so the smallest value
    if sla:
        chosen = best
        reason = f"{param} {chosen.value} has the largest throughput within the SLA, which {len(fit)} of "
        reason += f"{len(measured)} values meet: {_numbers(chosen)}."
    else:
        chosen = next(one for one in fit if _throughput(one) >= NEAR_BEST * _throughput(best))
        reason = f"{param} {chosen.value} is the smallest value within 5 % of the best throughput: {_numbers(chosen)}"
        reason += "." if chosen is best else f", against {_throughput(best):,.0f} tok/s at {best.value}."
    at = measured.index(chosen)
    before = measured[at - 1] if at else None
    beyond = measured[at + 1] if at + 1 < len(measured) else None
    limit = limit_of(chosen, before, beyond)
    unproven = [one for one in chosen.sla if one.verdict != "pass"]
    return Recommendation(
        value=chosen.value,
        reason=" ".join([reason, limit.sentence, _unproven(unproven) if sla else ""]).strip(),
        limit=limit.name,
        proven=bool(sla) and not unproven,
        evidence=limit.evidence,
    )


def in_order(points: Sequence[Point]) -> list[Point]:
    """By value where the values are numbers, else as they were given."""
    if any(isinstance(one.value, str) for one in points):
        return list(points)
    return sorted(points, key=lambda one: float(one.value))


def _throughput(point: Point) -> float:
    return point.output_token_per_s or 0.0


def _qualifies(point: Point, judged: bool) -> bool:
    """Percentiles of an overloaded run only measure how long it was, so no SLA is met there."""
    verdict = point.validity.verdict if point.validity else "ok"
    if verdict == "invalid" or (judged and verdict == "overloaded"):
        return False
    return not judged or all(one.verdict != "fail" and one.value is not None for one in point.sla)


def _numbers(point: Point) -> str:
    parts = [f"{_throughput(point):,.0f} tok/s"]
    for name, value in (("TTFT", point.p99_ttft_ms), ("TPOT", point.p99_tpot_ms)):
        if value is not None:
            parts.append(f"P99 {name} {value:,.4g} ms")
    return ", ".join(parts)


def _unproven(results: Sequence[SlaResult]) -> str:
    if not results:
        return ""
    needs = [f"{one.expr} ({f'at least {one.needed} needed' if one.needed else one.reason})" for one in results]
    return f"Unproven, as too few requests were measured: {'; '.join(needs)}."


def _why_none(measured: Sequence[Point]) -> str:
    if not measured:
        return "No value gave a throughput."
    if all(one.validity and one.validity.verdict == "invalid" for one in measured):
        return "Every run was invalid: " + "; ".join(measured[0].validity.reasons if measured[0].validity else ())
    failing = [(one, worst) for one in measured if (worst := _worst_miss(one)) is not None]
    if not failing:
        return "No value meets the SLA: the runs are overloaded, or the metric was not measured."
    point, miss = min(failing, key=lambda pair: _excess(pair[1]))
    shown = "too many requests failed" if miss.value is None else f"{miss.metric} is {miss.value:,.4g} there"
    return f"No value meets the SLA; {point.value} comes closest to {miss.expr}: {shown}."


def _worst_miss(point: Point) -> SlaResult | None:
    return max((one for one in point.sla if one.verdict == "fail"), key=_excess, default=None)


def _excess(result: SlaResult) -> float:
    """How far off, as a factor above 1, whichever side of the bound is the right one."""
    if result.value is None or result.value <= 0 or result.bound <= 0:
        return float("inf")
    return max(result.value / result.bound, result.bound / result.value)


def write_sweep(folder: Path, sweep: SweepFile) -> None:
    """Write sweep.json at once. FolderError when the disk will not take it."""
    write_atomic(folder / SWEEP, sweep)


def read_sweep(folder: Path) -> SweepFile:
    """sweep.json, typed. FolderError if it is missing, broken or of another schema."""
    return read_json(folder / SWEEP, SweepFile, SWEEP_SCHEMA)
