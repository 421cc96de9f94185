"""The curves of a sweep."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from reports.curves import CurvePoint, bend, numeric, pareto, short_label
from reports.document import Chart, Curve, Mark, Rule, Spot
from reports.render.axis_limits import fitted
from reports.render.formatting import number, share
from reports.render.sweep_tables import pairs_of_modes
from reports.sla import parse_sla
from reports.sweep_schema import SweepFile, Value

INTERVALS = "Bars are 95 % intervals."
MARKS: dict[Mark, str] = {
    "recommended": "The ring is the recommended setting.",
    "knee": "The diamond is the knee: the most throughput per latency.",
}
RATES = ("output tok/s", "offered requests/s", "tok/s per user")
LATENCIES = (("TTFT", "p99_ttft_ms"), ("TPOT", "p99_tpot_ms"), ("E2EL", "p99_e2el_ms"))

Values = tuple[Value, ...]


def curve_charts(sweep: SweepFile, curve: Sequence[CurvePoint]) -> list[Chart]:
    """The charts for which the points have numbers."""
    charts = [_throughput_against(sweep, curve, word, field) for word, field in LATENCIES]
    if len({one.point.rate_per_s for one in curve if one.point.rate_per_s}) > 1:
        charts += [_latency_against_rate(sweep, curve, word, field) for word, field in LATENCIES[:2]]
    charts.append(_goodput(sweep, curve))
    charts.append(_per_user(sweep, curve))
    return [one for one in charts if one is not None]


def _throughput_against(sweep: SweepFile, curve: Sequence[CurvePoint], word: str, field: str) -> Chart | None:
    along = _along(curve)
    spots = _spots(sweep, curve, along, "output_token_per_s", field)
    if not spots:
        return None
    plot = _plot("output tok/s", f"P99 {word}, ms", spots, _sla_rules(sweep, field))
    caption = _caption("Lower right is better.", spots)
    return Chart(
        f"throughput-p99-{word.lower()}",
        f"Throughput against P99 {word}",
        _over(plot, sweep, curve, along),
        caption,
    )


def _latency_against_rate(sweep: SweepFile, curve: Sequence[CurvePoint], word: str, field: str) -> Chart | None:
    along = sweep.params.index("rate") if "rate" in sweep.params else _along(curve)
    bends = {top.values for cut in _cuts(curve, along).values() if (top := bend(cut, field)) is not None}
    spots = _spots(sweep, curve, along, "rate_per_s", field, knees=bends, labelled=False)
    if not spots:
        return None
    plot = _plot("offered requests/s", f"P99 {word}, ms", spots, _sla_rules(sweep, field))
    caption = _caption("" if bends else "No knee between the ends.", spots)
    return Chart(
        f"rate-p99-{word.lower()}", f"P99 {word} against offered rate", _over(plot, sweep, curve, along), caption
    )


def _goodput(sweep: SweepFile, curve: Sequence[CurvePoint]) -> Chart | None:
    along = _along(curve)
    if not numeric(one.values[along] for one in curve):
        return None
    spots = _spots(sweep, curve, along, None, "goodput_per_s", labelled=False)
    if not spots:
        return None
    plot = _plot(sweep.params[along], "requests/s within the SLA", spots)
    plot = replace(plot, x=replace(plot.x, ticks=sorted({one.x for one in spots})))
    caption = _caption(f"Requests that met {', '.join(sweep.sla)}.", spots)
    return Chart("goodput", f"Goodput against {sweep.params[along]}", _over(plot, sweep, curve, along), caption)


def _per_user(sweep: SweepFile, curve: Sequence[CurvePoint]) -> Chart | None:
    along = _along(curve)
    spots = _spots(sweep, curve, along, "tokens_per_s_per_user", "output_token_per_s")
    if not spots:
        return None
    plot = _over(_plot("tok/s per user", "output tok/s in total", spots), sweep, curve, along)
    caption = "Speed of one request (1000 / median TPOT) against the throughput of all."
    if plot.joined:
        edge = [(one.point.tokens_per_s_per_user or 0.0, one.point.output_token_per_s or 0.0) for one in pareto(curve)]
        plot = replace(plot, frontier=edge)
        caption += " The line is the Pareto frontier."
    return Chart("per-user", "Speed per user against throughput", plot, _caption(caption, spots))


def _caption(caption: str, spots: Sequence[Spot]) -> str:
    """The caption with the meaning of the marks and bars that occur."""
    parts = [caption] + [text for mark, text in MARKS.items() if any(mark in one.marks for one in spots)]
    parts += [INTERVALS] if any(one.y_interval or one.x_interval for one in spots) else []
    return " ".join(one for one in parts if one)


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
        tooltip = {others[0]: short_label(rest[:1]), "measured": f"{gain:.2f}x"}
        if expected:
            tooltip["predicted"] = f"{expected:.2f}x"
            predicted.append(Spot(at, expected, "", "predicted: E[longest of a batch] / mean", tooltip))
        measured.append(Spot(at, gain, f"{gain:.2f}x", "measured", tooltip))
    if not measured:
        return []
    both = [*measured, *predicted]
    x = replace(fitted(others[0], [one.x for one in both]), ticks=[one.x for one in measured])
    plot = Curve(x, fitted("continuous / static", [one.y for one in both]), both)
    caption = (
        "Output tok/s of continuous over static batching. A static batch lasts as long as its longest output, so the "
        "prediction is E[longest] / mean, for a queue that never empties and steps of equal length."
    )
    return [Chart("static-continuous", "What continuous batching gains", plot, caption, wide=True)]


def _plot(x: str, y: str, spots: Sequence[Spot], rules: Sequence[Rule] = ()) -> Curve:
    """Axes with room for points, intervals and rules. Rates are never logarithmic, so that distances compare."""
    across = [value for one in spots for value in (one.x, *(one.x_interval or ()))]
    up = [value for one in spots for value in (one.y, *(one.y_interval or ()))]
    y_axis = fitted(y, [*up, *(one.value for one in rules)], may_be_log=y.endswith("ms"))
    return Curve(fitted(x, across, may_be_log=x not in RATES), y_axis, spots, rules)


def _along(curve: Sequence[CurvePoint]) -> int:
    """The index of the parameter along which points are joined: the first with numeric values."""
    columns = list(zip(*(one.values for one in curve), strict=True))
    return next((at for at, column in enumerate(columns) if numeric(column)), 0)


def _cuts(curve: Sequence[CurvePoint], along: int) -> dict[Values, list[CurvePoint]]:
    """The points of each line by the values of the other parameter; {(): all} without another."""
    cuts: dict[Values, list[CurvePoint]] = {}
    for one in curve:
        cuts.setdefault(one.values[:along] + one.values[along + 1 :], []).append(one)
    return cuts


def _over(plot: Curve, sweep: SweepFile, curve: Sequence[CurvePoint], along: int) -> Curve:
    """The plot with the other parameter as title of the legend, joined only along numbers."""
    others = sweep.params[:along] + sweep.params[along + 1 :]
    return replace(plot, legend=", ".join(others), joined=numeric(one.values[along] for one in curve))


def _spots(
    sweep: SweepFile,
    curve: Sequence[CurvePoint],
    along: int,
    x_field: str | None,
    y_field: str,
    *,
    knees: Collection[Values] = (),
    labelled: bool = True,
) -> list[Spot]:
    """A spot for each setting with both numbers. x_field None: the value of the parameter `along`."""
    advice = sweep.recommendation
    marked: dict[Mark, Collection[Values]] = {
        "recommended": [advice.values] if advice and advice.values else [],
        "knee": knees,
    }
    spots = []
    for cut, points in _cuts(curve, along).items():
        for one in points:
            x = one.values[along] if x_field is None else getattr(one.point, x_field)
            y = getattr(one.point, y_field)
            if x is None or y is None or (x_field is not None and not x):
                continue
            marks = [mark for mark, settings in marked.items() if one.values in settings]
            spots.append(
                Spot(
                    x=float(x),
                    y=float(y),
                    label=short_label([one.values[along]]) if labelled else "knee" if "knee" in marks else "",
                    series=short_label(cut),
                    details=details(sweep, one),
                    y_interval=one.intervals.get(y_field),
                    x_interval=one.intervals.get(x_field) if x_field else None,
                    marks=marks,
                )
            )
    return spots


def details(sweep: SweepFile, one: CurvePoint) -> dict[str, str]:
    """The lines of a point's tooltip; what limits it comes last."""
    point, signals = one.point, one.point.signals
    lines = {param: short_label([value]) for param, value in zip(sweep.params, one.values, strict=True)}
    lines |= {"output tok/s": number(point.output_token_per_s), "requests/s": number(point.request_per_s)}
    for word, field in LATENCIES:
        interval = one.intervals.get(field)
        span = f" ({number(interval[0])} – {number(interval[1])})" if interval else ""
        lines[f"P99 {word}, ms"] = f"{number(getattr(point, field))}{span}"
    lines |= {"device busy": share(signals.device_busy), "KV peak": share(signals.kv_usage_peak)}
    if signals.launch_bound is not None:
        lines["launch-bound"] = share(signals.launch_bound)
    if len(one.runs) > 1:
        lines["runs"] = str(len(one.runs))
    lines["limit"] = (point.limit or "unknown").replace("_", " ")
    if point.why:
        lines["why"] = point.why
    return lines


def _sla_rules(sweep: SweepFile, field: str) -> list[Rule]:
    """The SLAs on this field. In open loop both are from the scheduled time."""
    parsed = [one for one in map(parse_sla, sweep.sla) if one.scope is None]
    return [Rule(one.bound, one.expr) for one in parsed if one.metric.replace("_sched_ms", "_ms") == field]
