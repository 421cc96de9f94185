"""The recommended setting of a sweep, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from reports.curves import CurvePoint, bend, label_of, latency_of_knee, merge, neighbours, short_label, sized
from reports.devices import unequal_devices
from reports.limits import OUT_OF_KV, limit_of, milliseconds
from reports.schema import SlaResult
from reports.sweep_schema import Point, Recommendation

NEAR_BEST = 0.95  # of the best throughput: the difference is within the noise of single runs
ALIKE = 0.99  # of the best throughput: taken as equal
HARDLY = 0.001  # of the steps
# Why the head of the queue waits where the value of a parameter is too small, and what it waits for. A larger token
# budget is none of these: it costs TPOT.
HELD_BACK_BY = {
    "max-num-seqs": (("rows",), "a slot"),
    "kv-blocks": (OUT_OF_KV, "KV blocks"),
}


def recommend(
    params: Sequence[str], points: Sequence[Point], sla: Sequence[str] = (), *, work_params: Collection[str] = ()
) -> Recommendation:
    """The largest output throughput within the SLA; without one, the smallest setting within 5 % of the best. Rates
    that saturate are not recommended.

    By point estimate: an SLA that is inconclusive at a point counts as met there, and the reason says so.
    work_params: the parameters whose values are different workloads; points of such a sweep are not comparable.
    """
    if unlike := [param for param in params if param in work_params]:
        reason = f"Values of {unlike[0]} are different workloads, so they are not comparable."
        return Recommendation(None, reason, "unknown", proven=False)
    measured = [one for one in merge(points) if one.runs and one.point.output_token_per_s]
    fit = [one.point for one in measured if qualifies(one.point, bool(sla))]
    if not fit:
        reason = _why_none([one.point for one in measured])
        return Recommendation(None, reason, limit="sla" if measured and sla else "unknown", proven=False)
    best = max(fit, key=_throughput)  # of equals the first, so the smallest
    if sla:
        chosen, lead = _first_of_alike(params, fit, best, sized(measured))
        reason = (
            f"{label_of(params, chosen.values)} has the largest throughput{lead} within the SLA, which {len(fit)} of "
        )
        reason += f"{len(measured)} settings meet: {_numbers(chosen)}."
    elif "rate" in params and (kept_up := [one for one in fit if one.saturated is None]):
        chosen = max(kept_up, key=_throughput)
        reason = f"{label_of(params, chosen.values)} has the largest throughput of those at which completions keep up "
        reason += f"with arrivals: {_numbers(chosen)}.{_beyond_the_knee(params, measured, chosen)}"
    elif not sized(measured):
        chosen, lead = _first_of_alike(params, fit, best, has_size=False)
        reason = f"{label_of(params, chosen.values)} has the largest throughput{lead}: {_numbers(chosen)}."
    else:
        chosen = next(one for one in fit if _throughput(one) >= NEAR_BEST * _throughput(best))
        reason = f"{label_of(params, chosen.values)} is the smallest setting within 5 % of the best throughput: "
        reason += _numbers(chosen)
        better = f", against {_throughput(best):,.0f} tok/s at {short_label(best.values)}."
        reason += "." if chosen is best else better
    limit = limit_of(chosen, *neighbours(measured, chosen.values))
    unproven = [one for one in chosen.sla if one.verdict != "pass"]
    limited = ""
    if chosen.validity is not None and chosen.validity.verdict == "client_limited":
        limited = "But the load client was at its limit there, so the server may do better."
    unequal = "But true has two devices, and false one." if unequal_devices(params, points) else ""
    return Recommendation(
        values=chosen.values,
        reason=" ".join(filter(None, [reason, unequal, limit.sentence, limited, _unproven(unproven) if sla else ""])),
        limit=limit.name,
        proven=bool(sla) and not unproven,
        evidence=limit.evidence,
    )


def _first_of_alike(params: Sequence[str], fit: Sequence[Point], best: Point, has_size: bool) -> tuple[Point, str]:
    """(point, text): of the points with the best throughput the smallest setting at which hardly any request waits for
    what the parameter limits, as a little more load would fail there; or else the smallest, or the one with the lowest
    P99 TTFT where values have no size."""
    alike = [one for one in fit if _throughput(one) >= ALIKE * _throughput(best)]
    if len(alike) == 1:
        return best, ""
    if has_size:
        limits = [HELD_BACK_BY[param] for param in params if param in HELD_BACK_BY]
        reasons = [reason for some, _ in limits for reason in some]
        free = [one for one in alike if _share_blocked(one, reasons) <= HARDLY]
        if not limits or not free or free[0] is alike[0]:
            return alike[0], "" if alike[0] is best else " to within 1 %"
        awaited = " or ".join(what for _, what in limits)
        return free[0], f" to within 1 %, as the first at which hardly any request waits for {awaited},"
    chosen = min(alike, key=lambda one: inf if one.p99_ttft_ms is None else one.p99_ttft_ms)
    tied = [short_label(one.values) for one in alike if one is not chosen and same_p99_ttft(one, chosen)]
    if tied:
        return chosen, f" to within 1 %, a tie with {', '.join(tied)}, whose P99 TTFT is the same within noise,"
    return chosen, " to within 1 %, and the lowest P99 TTFT there,"


def _share_blocked(point: Point, reasons: Sequence[str]) -> float:
    """Share of the steps in which the head of the queue waited for one of these reasons."""
    return sum(point.signals.blocked.get(reason, 0.0) for reason in reasons)


def _beyond_the_knee(params: Sequence[str], measured: Sequence[CurvePoint], chosen: Point) -> str:
    """A sentence where the knee, which is shown above the recommendation, is at a smaller rate."""
    top = bend(measured, latency_of_knee(params)) if len(params) == 1 else None
    if top is None or _throughput(chosen) <= _throughput(top.point):
        return ""
    return f" That is beyond the knee at {top.label}, as no SLA says how much latency it is worth."


def same_p99_ttft(one: Point, other: Point) -> bool:
    """Whether two P99 TTFT differ by no more than noise: their intervals overlap, or without both of these they are
    within 5 %."""
    if one.p99_ttft_ms is None or other.p99_ttft_ms is None:
        return one.p99_ttft_ms is other.p99_ttft_ms
    if one.p99_ttft_ci_ms is not None and other.p99_ttft_ci_ms is not None:
        (low, high), (others_low, others_high) = one.p99_ttft_ci_ms, other.p99_ttft_ci_ms
        return low <= others_high and others_low <= high
    low, high = sorted((one.p99_ttft_ms, other.p99_ttft_ms))
    return low >= NEAR_BEST * high


def best_within_sla(curve: Sequence[CurvePoint]) -> CurvePoint | None:
    """The largest throughput among the points that meet the SLA, by point estimate."""
    fit = [one for one in curve if one.runs and one.point.output_token_per_s and qualifies(one.point, judged=True)]
    return max(fit, key=lambda one: _throughput(one.point), default=None)


def smallest_within_sla(curve: Sequence[CurvePoint]) -> CurvePoint | None:
    """The point that `recommend` chooses where values have a size: the first with the best throughput."""
    if (best := best_within_sla(curve)) is None:
        return None
    least = ALIKE * _throughput(best.point)
    return next(one for one in curve if qualifies(one.point, judged=True) and _throughput(one.point) >= least)


def _throughput(point: Point) -> float:
    return point.output_token_per_s or 0.0


def qualifies(point: Point, judged: bool) -> bool:
    """Whether it may be recommended. An overloaded run meets no SLA, as its percentiles depend on its length."""
    verdict = point.validity.verdict if point.validity else "ok"
    if verdict == "invalid" or (judged and verdict == "overloaded" and not kept_up(point)):
        return False
    return not judged or all(one.met for one in point.sla)


def kept_up(point: Point) -> bool:
    """Of an overloaded run: whether an SLA applies to a part of the requests whose own queue did not grow, and none is
    missed or without a verdict."""
    judged = all(one.verdict == "pass" or (one.needed is not None and not one.missed) for one in point.sla)
    return judged and any(one.scope is not None for one in point.sla)


def _numbers(point: Point) -> str:
    parts = [f"{_throughput(point):,.0f} tok/s"]
    for name, value in (("TTFT", point.p99_ttft_ms), ("TPOT", point.p99_tpot_ms)):
        if value is not None:
            parts.append(f"P99 {name} {milliseconds(value)} ms")
    return ", ".join(parts)


def _unproven(results: Sequence[SlaResult]) -> str:
    if not results:
        return ""
    needs = [f"{one.expr} ({f'at least {one.needed} needed' if one.needed else one.reason})" for one in results]
    return f"Unproven, as too few requests were measured: {'; '.join(needs)}."


def _why_none(measured: Sequence[Point]) -> str:
    if not measured:
        return "No setting gave a throughput."
    if all(one.validity and one.validity.verdict == "invalid" for one in measured):
        return "Every run was invalid: " + "; ".join(measured[0].validity.reasons if measured[0].validity else ())
    if unmeasured := unmeasured_bounds(measured):
        told = "; ".join(f"{one.name}: {one.reason}" for one in unmeasured)
        return f"Inconclusive whether a setting meets the SLA: {told}."
    failing = [(one, worst) for one in measured if (worst := _worst_miss(one)) is not None]
    if not failing:
        return "No setting meets the SLA: the runs are overloaded."
    point, miss = min(failing, key=lambda pair: _excess(pair[1]))
    shown = "too many requests failed" if miss.value is None else f"{miss.name} is {milliseconds(miss.value)} there"
    closest = f"{short_label(point.values)} comes closest to {miss.expr}: {shown}"
    if open_points(measured):
        return f"No setting meets the SLA by its measured values, but not every miss is proven; {closest}."
    return f"No setting meets the SLA; {closest}."


def unmeasured_bounds(points: Sequence[Point]) -> list[SlaResult]:
    """The SLAs that were not measured at points that miss no other SLA; each once."""
    not_failed = [one for one in points if all(result.verdict != "fail" for result in one.sla)]
    return list({result.expr: result for one in not_failed for result in one.sla if result.unmeasured}.values())


def open_points(points: Sequence[Point]) -> list[Point]:
    """The points at which no SLA has failed and one is inconclusive, so that more requests may show that they meet it.
    An overloaded run is none of them: its latencies grow with its length."""
    return [one for one in points if _is_open(one)]


def _is_open(point: Point) -> bool:
    if point.validity is not None and point.validity.verdict in ("invalid", "overloaded"):
        return False
    verdicts = [one.verdict for one in point.sla]
    return "inconclusive" in verdicts and "fail" not in verdicts


def _worst_miss(point: Point) -> SlaResult | None:
    return max((one for one in point.sla if one.missed), key=_excess, default=None)


def _excess(result: SlaResult) -> float:
    """How far the value is beyond its bound, as a factor above 1."""
    if result.value is None or result.value <= 0 or result.bound <= 0:
        return float("inf")
    return max(result.value / result.bound, result.bound / result.value)
