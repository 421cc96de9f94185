"""The curves of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reports.curves import CurvePoint, knee, numeric, pareto, series, short_label
from reports.document import Chart, Curve, Rule, Spot
from reports.gate import parse
from reports.pages.axes import fitted
from reports.render.modes import pairs_of_modes
from reports.render.words import number, share
from reports.schema import SweepFile, Value

INTERVALS = "Bars are 95 % intervals."
RATES = ("output tok/s", "offered requests/s", "tok/s per user")
LATENCIES = (("TTFT", "p99_ttft_ms"), ("TPOT", "p99_tpot_ms"), ("E2EL", "p99_e2el_ms"))


def curve_charts(sweep: SweepFile, curve: Sequence[CurvePoint]) -> list[Chart]:
    """Those that the sweep's points have numbers for."""
    charts = [_throughput_against(sweep, curve, word, field) for word, field in LATENCIES]
    if any(one.point.rate_per_s for one in curve):
        charts += [_latency_against_rate(sweep, curve, word, field) for word, field in LATENCIES[:2]]
    charts.append(_goodput(sweep, curve))
    charts.append(_per_user(sweep, curve))
    return [one for one in charts if one is not None]


def _throughput_against(sweep: SweepFile, curve: Sequence[CurvePoint], word: str, field: str) -> Chart | None:
    spots = _spots(sweep, curve, "output_token_per_s", field)
    if not spots:
        return None
    rules = _sla_rules(sweep, field)
    plot = _plot("output tok/s", f"P99 {word}, ms", spots, rules)
    said = ["Right and low is good."]
    said += ["The ring is the recommended setting."] if any(one.mark for one in spots) else []
    said += [INTERVALS] if any(one.y_interval for one in spots) else []
    return Chart(f"throughput-p99-{word.lower()}", f"Throughput against P99 {word}", plot, " ".join(said))


def _latency_against_rate(sweep: SweepFile, curve: Sequence[CurvePoint], word: str, field: str) -> Chart | None:
    bends = {bend.values for cut in series(curve).values() if (bend := _bend(cut, field)) is not None}
    spots = _spots(sweep, curve, "rate_per_s", field, marks=dict.fromkeys(bends, "knee"), labelled=False)
    if not spots:
        return None
    rules = _sla_rules(sweep, field)
    plot = _plot("offered requests/s", f"P99 {word}, ms", spots, rules)
    caption = f"{INTERVALS if any(one.y_interval for one in spots) else ''} "
    caption += "The ring is the knee: the most throughput per latency." if bends else "No knee between the ends."
    return Chart(f"rate-p99-{word.lower()}", f"P99 {word} against offered rate", plot, caption.strip())


def _bend(cut: Sequence[CurvePoint], field: str) -> CurvePoint | None:
    """The knee, unless it is at an end: there it only says that the sweep did not go far enough."""
    found = knee(cut, field)
    return None if found is None or found in (cut[0], cut[-1]) else found


def _goodput(sweep: SweepFile, curve: Sequence[CurvePoint]) -> Chart | None:
    if not all(numeric([one.values[0]]) for one in curve):
        return None
    spots = _spots(sweep, curve, None, "goodput_per_s", labelled=False)
    if not spots:
        return None
    plot = _plot(sweep.params[0], "requests/s within the SLA", spots)
    plot = replace(plot, x=replace(plot.x, ticks=sorted({one.x for one in spots})))
    return Chart("goodput", f"Goodput against {sweep.params[0]}", plot, f"Requests that met {', '.join(sweep.sla)}.")


def _per_user(sweep: SweepFile, curve: Sequence[CurvePoint]) -> Chart | None:
    spots = _spots(sweep, curve, "tokens_per_s_per_user", "output_token_per_s")
    edge = [(one.point.tokens_per_s_per_user or 0.0, one.point.output_token_per_s or 0.0) for one in pareto(curve)]
    if not spots:
        return None
    plot = replace(_plot("tok/s per user", "output tok/s in total", spots), frontier=edge)
    caption = "What one user sees (1000 / median TPOT) against what all get together. The line is the Pareto frontier."
    return Chart("per-user", "Speed per user against throughput", plot, caption)


def gain_charts(sweep: SweepFile) -> list[Chart]:
    """Continuous over static batching, measured and predicted, where a sweep has both modes at the same settings."""
    others = [param for param in sweep.params if param != "mode"]
    measured: list[Spot] = []
    predicted: list[Spot] = []
    for rest, static, continuous in pairs_of_modes(sweep):
        slow, fast = static.point.output_token_per_s, continuous.point.output_token_per_s
        if not slow or not fast or not numeric(rest[:1]) or not rest:
            continue
        at, gain, expected = float(rest[0]), fast / slow, static.point.max_over_mean
        said = {others[0]: short_label(rest[:1]), "measured": f"{gain:.2f}x"}
        if expected:
            said["predicted"] = f"{expected:.2f}x"
            predicted.append(Spot(at, expected, "", "predicted: E[longest of a batch] / mean", said))
        measured.append(Spot(at, gain, f"{gain:.2f}x", "measured", said))
    if not measured:
        return []
    both = [*measured, *predicted]
    x = replace(fitted(others[0], [one.x for one in both]), ticks=[one.x for one in measured])
    plot = Curve(x, fitted("continuous / static", [one.y for one in both]), both)
    caption = (
        "Output tok/s of continuous over static batching. A static batch lasts as long as its longest output, so "
        "theory expects E[longest] / mean: for a queue that never empties and steps that take equally long."
    )
    return [Chart("static-continuous", "What continuous batching gains", plot, caption, wide=True)]


def _plot(x: str, y: str, spots: Sequence[Spot], rules: Sequence[Rule] = ()) -> Curve:
    """With room for points, intervals and rules. Rates are never logarithmic: twice as far is twice as much."""
    across = [value for one in spots for value in (one.x, *(one.x_interval or ()))]
    up = [value for one in spots for value in (one.y, *(one.y_interval or ()))]
    y_axis = fitted(y, [*up, *(one.value for one in rules)], may_be_log=y.endswith("ms"))
    return Curve(fitted(x, across, may_be_log=x not in RATES), y_axis, spots, rules)


def _spots(
    sweep: SweepFile,
    curve: Sequence[CurvePoint],
    x_field: str | None,
    y_field: str,
    *,
    marks: dict[tuple[Value, ...], str] | None = None,
    labelled: bool = True,
) -> list[Spot]:
    """One per setting that has both numbers. `x_field` None: the first parameter itself."""
    advice = sweep.recommendation
    chosen = {advice.values: "recommended"} if advice and advice.values else {}
    names: dict[tuple[Value, ...], str] = chosen if marks is None else marks
    spots = []
    for cut, points in series(curve).items():
        for one in points:
            x = one.values[0] if x_field is None else getattr(one.point, x_field)
            y = getattr(one.point, y_field)
            if x is None or y is None or (x_field is not None and not x):
                continue
            label = short_label(one.values[:1])
            mark = names.get(one.values, "")
            spots.append(
                Spot(
                    x=float(x),
                    y=float(y),
                    label=f"{label} ({mark})" if mark and marks is not None else label if labelled else "",
                    series=", ".join(_named(sweep.params[1:], cut)),
                    details=details(sweep, one),
                    y_interval=one.intervals.get(y_field),
                    x_interval=one.intervals.get(x_field) if x_field else None,
                    mark=mark,
                )
            )
    return spots


def _named(params: Sequence[str], values: Sequence[Value]) -> list[str]:
    return [str(value) if param == "mode" else f"{param} {value}" for param, value in zip(params, values, strict=True)]


def details(sweep: SweepFile, one: CurvePoint) -> dict[str, str]:
    """What a point says when it is pointed at; why it is where it is comes last."""
    point, signals = one.point, one.point.signals
    said = {param: short_label([value]) for param, value in zip(sweep.params, one.values, strict=True)}
    said |= {"output tok/s": number(point.output_token_per_s), "requests/s": number(point.request_per_s)}
    for word, field in LATENCIES:
        interval = one.intervals.get(field)
        span = f" ({number(interval[0])} – {number(interval[1])})" if interval else ""
        said[f"P99 {word}, ms"] = f"{number(getattr(point, field))}{span}"
    said |= {"device busy": share(signals.device_busy), "KV peak": share(signals.kv_usage_peak)}
    if len(one.runs) > 1:
        said["runs"] = str(len(one.runs))
    said["limit"] = (point.limit or "unknown").replace("_", " ")
    if point.why:
        said["why"] = point.why
    return said


def _sla_rules(sweep: SweepFile, field: str) -> list[Rule]:
    """SLAs on this number. In open loop TTFT and E2EL of a point are from the schedule, and so are they."""
    parsed = [one for one in map(parse, sweep.sla) if one.scope is None]
    return [Rule(one.bound, one.expr) for one in parsed if one.metric.replace("_sched_ms", "_ms") == field]
