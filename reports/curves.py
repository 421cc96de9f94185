"""The curve of a sweep: its points and their order, the knee, the Pareto frontier, and sweep.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from scipy.stats import t as student_t

from reports.files import read_json, write_atomic
from reports.repeats import merged_point
from reports.schema import RunFile
from reports.summary_schema import Group, Part
from reports.sweep_schema import SWEEP_SCHEMA, Interval, Point, SweepFile, TenantPoint, Value
from reports.validity import saturation
from workloads.errors import CbbenchError

SWEEP = "sweep.json"
ENOUGH_REPEATS = 3  # for an interval over repeats
OWN_INTERVALS = {  # of a run, by the number they belong to
    "p99_ttft_ms": "p99_ttft_ci_ms",
    "p99_tpot_ms": "p99_tpot_ci_ms",
    "p99_e2el_ms": "p99_e2el_ci_ms",
}
WITH_INTERVALS = ("output_token_per_s", "request_per_s", "goodput_per_s", "tokens_per_s_per_user", *OWN_INTERVALS)


@dataclass(frozen=True)
class CurvePoint:
    """One setting: medians over its repeats, with intervals."""

    point: Point  # the only run, or one whose numbers are medians over the runs
    runs: tuple[Point, ...]  # those with numbers; empty: none has, and point.error says why
    # By field of Point. Over repeats, from 3 on: Student's 95 % interval of their mean. Else the runs' own 95 %
    # intervals (of P99 latencies alone), from the lowest end to the highest.
    intervals: dict[str, Interval] = field(default_factory=dict)

    @property
    def values(self) -> tuple[Value, ...]:
        return self.point.values

    @property
    def label(self) -> str:
        return short_label(self.point.values)


def merge(points: Sequence[Point]) -> list[CurvePoint]:
    """The points of a sweep as a curve: one per setting, in the order of `in_order`."""
    repeats: dict[tuple[Value, ...], list[Point]] = {}
    for point in in_order(points):
        repeats.setdefault(point.values, []).append(point)
    return [_merged(runs) for runs in repeats.values()]


def _merged(points: Sequence[Point]) -> CurvePoint:
    runs = tuple(one for one in points if one.error is None)
    if not runs:
        return CurvePoint(points[0], ())
    intervals = {name: found for name in WITH_INTERVALS if (found := _interval(runs, name)) is not None}
    return CurvePoint(merged_point(runs), runs, intervals)


def _interval(runs: Sequence[Point], name: str) -> Interval | None:
    if len(runs) >= ENOUGH_REPEATS:
        found = [value for one in runs if (value := getattr(one, name)) is not None]
        return mean_interval(found) if len(found) >= ENOUGH_REPEATS else None
    if name not in OWN_INTERVALS:
        return None
    own: list[Interval | None] = [getattr(one, OWN_INTERVALS[name]) for one in runs]
    known = [one for one in own if one is not None]
    return (min(one[0] for one in known), max(one[1] for one in known)) if len(known) == len(runs) else None


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's interval of the mean of two independent values or more; cut at 0, as no value here is below it."""
    n, mean = len(values), statistics.fmean(values)
    half = float(student_t.ppf((1 + confidence) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return max(0.0, mean - half), mean + half


def short_label(values: Sequence[Value]) -> str:
    """8 · 8, 512 · true · 0.5, static"""
    return ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in values)


def label_of(params: Sequence[str], values: Sequence[Value]) -> str:
    """max-num-seqs 8, max-num-batched-tokens 512: parameters as the sweep names them."""
    return ", ".join(f"{param} {short_label([value])}" for param, value in zip(params, values, strict=True))


def in_order(points: Iterable[Point]) -> list[Point]:
    """Sorted by each parameter in turn, by size where its values are numbers, else in the order given; then by
    repeat."""
    listed = list(points)
    if not listed:
        return []
    ranks = []
    for column in zip(*(one.values for one in listed), strict=True):
        kinds = list(dict.fromkeys(column))
        ranks.append({one: at for at, one in enumerate(sorted(kinds, key=float) if numeric(kinds) else kinds)})
    return sorted(listed, key=lambda one: (*(rank[v] for rank, v in zip(ranks, one.values, strict=True)), one.repeat))


def numeric(values: Iterable[Value]) -> bool:
    return all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)


def sized(curve: Sequence[CurvePoint]) -> bool:
    """Whether the values of the first parameter are numbers, so that one point lies beyond another."""
    return numeric(one.values[0] for one in curve)


def series(curve: Sequence[CurvePoint]) -> dict[tuple[Value, ...], list[CurvePoint]]:
    """The curve cut into one for each value of the parameters after the first: {(): all} with a single parameter."""
    cut: dict[tuple[Value, ...], list[CurvePoint]] = {}
    for one in curve:
        cut.setdefault(one.values[1:], []).append(one)
    return cut


def neighbours(curve: Sequence[CurvePoint], values: Sequence[Value]) -> tuple[Point | None, Point | None]:
    """The points before and after a setting along the first parameter, with equal other values. None where the values
    of that parameter are not numbers."""
    if not sized(curve):
        return None, None
    line = [one.point for one in curve if one.values[1:] == tuple(values[1:])]
    at = next(at for at, one in enumerate(line) if one.values == tuple(values))
    return line[at - 1] if at else None, line[at + 1] if at + 1 < len(line) else None


def knee(curve: Sequence[CurvePoint], latency: str = "p99_tpot_ms") -> CurvePoint | None:
    """Where throughput over latency is largest: beyond it, a percent more throughput costs more than a percent of
    latency (Kleinrock's power; Proc. ICC 1979). None if no point has both, or values are not numbers. Invalid and
    overloaded points count too, as their latency shows that they lie beyond it."""
    if not sized(curve):
        return None
    known = [one for one in curve if one.point.output_token_per_s and getattr(one.point, latency)]
    return max(known, key=lambda one: power(one.point, latency), default=None)


def bend(curve: Sequence[CurvePoint], latency: str) -> CurvePoint | None:
    """The knee, or None where it means nothing: at an end of the curve, or where all points were offered one rate, so
    that their throughput is that of the load."""
    offered = {one.point.rate_per_s for one in curve}
    if len(offered) == 1 and None not in offered:
        return None
    top = knee(curve, latency)
    return top if top is not None and top not in (curve[0], curve[-1]) else None


def latency_of_knee(params: Sequence[str]) -> str:
    """The latency of the knee: TTFT for a rate, else TPOT."""
    return "p99_ttft_ms" if params[0] == "rate" else "p99_tpot_ms"


def power(point: Point, latency: str) -> float:
    return float((point.output_token_per_s or 0.0) / getattr(point, latency))


def pareto(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Points that no other beats in both tokens/s per user and output tokens/s, by falling tokens/s per user."""
    known = [one for one in curve if one.point.tokens_per_s_per_user and one.point.output_token_per_s]
    known.sort(key=lambda one: (one.point.tokens_per_s_per_user, one.point.output_token_per_s), reverse=True)
    frontier: list[CurvePoint] = []
    for one in known:
        best = frontier[-1].point.output_token_per_s if frontier else None
        if best is None or (one.point.output_token_per_s or 0.0) > best:
            frontier.append(one)
    return frontier


def point_of(
    values: Sequence[Value],
    folder: str,
    run: RunFile,
    config_sha256: str = "",
    *,
    repeat: int = 0,
    max_over_mean: float | None = None,
) -> Point:
    """The point of a finished run. folder: relative to the sweep's. CbbenchError for a run without summary."""
    if run.summary is None:
        raise CbbenchError(None, f"{folder}: the run has no summary; rebuild it first")
    latency, throughput = run.summary.latency, run.summary.throughput
    opened = run.workload.pacing.open_loop
    ttft, e2el = (latency.ttft_sched_ms, latency.e2el_sched_ms) if opened else (latency.ttft_ms, latency.e2el_ms)
    tpot = latency.tpot_ms
    return Point(
        values=tuple(values),
        repeat=repeat,
        folder=folder,
        config_sha256=config_sha256,
        mode=run.engine.mode,
        rate_per_s=run.workload.pacing.rate_per_s,
        arrivals_per_s=throughput.arrivals_per_s,
        concurrency=run.workload.pacing.concurrency,
        output_token_per_s=throughput.output_token_per_s,
        request_per_s=throughput.request_per_s,
        goodput_per_s=run.summary.goodput.request_per_s,
        tokens_per_s_per_user=1000 / tpot.p50 if tpot.p50 else None,
        p50_ttft_ms=ttft.p50,
        p99_ttft_ms=ttft.p99,
        p99_ttft_ci_ms=ttft.p99_ci,
        p50_tpot_ms=tpot.p50,
        p99_tpot_ms=tpot.p99,
        p99_tpot_ci_ms=tpot.p99_ci,
        p99_e2el_ms=e2el.p99,
        p99_e2el_ci_ms=e2el.p99_ci,
        attainment=run.summary.goodput.attainment,
        by_tenant={name: _tenant_point(one, opened) for name, one in run.summary.by_tenant.items()},
        max_over_mean=max_over_mean,
        signals=run.summary.signals,
        instances={name: one.signals for name, one in run.summary.instances.items()},
        sla=run.sla,
        validity=run.validity,
        saturated=saturation(run),
        slow_ttft=slow_parts(run, "ttft"),
        slow_e2el=slow_parts(run, "e2el"),
        prediction=run.engine.prediction,
    )


def _tenant_point(one: Group, opened: bool) -> TenantPoint:
    ttft = one.latency.ttft_sched_ms if opened else one.latency.ttft_ms
    return TenantPoint(p99_ttft_ms=ttft.p99, p99_tpot_ms=one.latency.tpot_ms.p99)


def slow_parts(run: RunFile, latency: Literal["ttft", "e2el"]) -> dict[str, float]:
    """The parts of TTFT (or E2EL) at or above its P99: share by part, the largest first."""
    found = run.summary.breakdown if run.summary is not None else None
    parts: dict[str, Part] = {} if found is None else getattr(found, latency)
    shares = {name: part.tail_share for name, part in parts.items() if part.tail_share}
    return dict(sorted(shares.items(), key=lambda one: -one[1]))


def write_sweep(folder: Path, sweep: SweepFile) -> None:
    """Replace sweep.json at once. CbbenchError where the disk refuses."""
    write_atomic(folder / SWEEP, sweep)


def read_sweep(folder: Path) -> SweepFile:
    """sweep.json, typed. CbbenchError if it is missing, broken or of another schema."""
    path = folder / SWEEP
    found = read_json(path, dict[str, msgspec.Raw]).get("schema")
    if found is not None and bytes(found) == b'"cbbench.sweep/1"':
        raise CbbenchError(
            None,
            f"{path}: an older cbbench wrote it (cbbench.sweep/1); sweep again into another folder. Its runs can still "
            "be read one by one",
        )
    sweep = read_json(path, SweepFile, SWEEP_SCHEMA)
    for values in (*sweep.settings, *(one.values for one in sweep.points), *sweep.skipped):
        if len(values) != len(sweep.params):
            raise CbbenchError(
                None, f"{path}: {short_label(values)} is not a value of each of {', '.join(sweep.params)}"
            )
    return sweep


class TenantRow(NamedTuple):
    values: tuple[Value, ...]  # of the setting
    tenants: tuple[TenantPoint, ...]  # one for each name, without numbers where it had no request


def tenants_of(curve: Sequence[CurvePoint]) -> tuple[list[str], list[TenantRow]]:
    """(names of all tenants, a row for each setting with numbers); empty where no run has two tenants."""
    names = list(dict.fromkeys(name for one in curve for name in one.point.by_tenant))
    if not names:
        return [], []
    absent = TenantPoint()
    return names, [
        TenantRow(one.values, tuple(one.point.by_tenant.get(name, absent) for name in names))
        for one in curve
        if one.runs
    ]
