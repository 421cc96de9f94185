"""The report of a sweep: the recommendation, its curves, and every point."""

from __future__ import annotations

from collections.abc import Sequence

from reports.curves import CurvePoint, label_of, merge, short_label, tenants_of
from reports.devices import note_of_sweep
from reports.document import Block, Figure, Figures, Report, Section, Table, Text, Tone
from reports.limits import unused_slots
from reports.pages.details import capital, configuration, definition_section, environment, workload_title
from reports.pages.evidence import evidence
from reports.pages.sweep_charts import curve_charts, gain_charts
from reports.render.formatting import MISSING, number, share
from reports.reported_run import ReportedRun
from reports.sweep_schema import Point, SweepFile

POINT_COLUMNS = (
    "tok/s", "arrived/s", "requests/s", "P50 TTFT", "P99 TTFT", "P50 TPOT", "P99 TPOT", "P99 E2EL", "busy", "KV peak",
    "preempted", "SLA", "limit",
)  # fmt: skip


def sweep_report(sweep: SweepFile, shown: ReportedRun | None) -> Report:
    """shown: the run of the recommended point, or of another where none is recommended, for evidence and settings; None
    where no run folder is left."""
    curve = merge(sweep.points)
    word, tone = verdict_of(sweep)
    sections = [
        Section("Recommendation", recommendation_blocks(sweep, curve), leads=True),
        Section("Curves", list(curve_charts(sweep, curve))),
        Section("Static and continuous", list(gain_charts(sweep))),
        Section("Points", point_blocks(sweep, curve), leads=True),
        Section("By tenant", tenant_blocks(sweep, curve), leads=True),
    ]
    where, what = "", ""
    if shown is not None:
        advice, run = sweep.recommendation, shown.run
        place = shown.label if advice and advice.values else f"{shown.label}, as an example"
        alone = shown._replace(label="")
        sections += [Section(f"{one.title} at {place}", one.blocks) for one in evidence([alone])]
        sections += [configuration([("", run)]), environment([("", run)])]
        device = run.engine.device if "disaggregate" in sweep.params else run.engine.hardware
        where = " on ".join(one for one in (run.engine.model, device) if one)
        what = workload_title(run.workload.spec)
    sections.append(definition_section(shown.run if shown else None))
    title = f"Sweep of {' and '.join(sweep.params)}{': ' if where else ''}{where}"
    return Report("cbbench · sweep", title, what, word, tone, [one for one in sections if one.blocks])


def verdict_of(sweep: SweepFile) -> tuple[str, Tone]:
    advice = sweep.recommendation
    if advice is None or advice.values is None:
        return "NO RECOMMENDATION", "bad"
    chosen = label_of(sweep.params, advice.values)
    if sweep.sla and not advice.proven:
        return f"{chosen}: unproven", "unsure"
    return chosen, "good"


def recommendation_blocks(sweep: SweepFile, curve: Sequence[CurvePoint]) -> list[Block]:
    predictions = list(
        dict.fromkeys(f"{one.prediction[0].upper()}{one.prediction[1:]}" for one in sweep.points if one.prediction)
    )
    blocks: list[Block] = [Text(one, "unsure") for one in predictions]
    advice = sweep.recommendation
    if advice is None:
        return [*blocks, Text("No point has been measured yet.")]
    blocks.append(Text(advice.reason, lead=True))
    chosen = next((one.point for one in curve if one.values == advice.values), None)
    if chosen is not None:
        blocks.append(_figures(sweep, chosen))
    if sweep.sla:
        blocks.append(Text(f"SLA: {', '.join(sweep.sla)}."))
    if sweep.ended:
        blocks.append(Text(f"{capital(sweep.ended.rstrip('.'))}."))
    if sweep.skipped:
        blocks.append(Text(f"Not measured: {'; '.join(short_label(one) for one in sweep.skipped)}."))
    return blocks


def _figures(sweep: SweepFile, point: Point) -> Figures:
    shown = [Figure("Recommended", short_label(point.values), "", ", ".join(sweep.params))]
    shown.append(Figure("Output throughput", number(point.output_token_per_s), "tok/s"))
    for name, p99, p50 in (
        ("TTFT", point.p99_ttft_ms, point.p50_ttft_ms), ("TPOT", point.p99_tpot_ms, point.p50_tpot_ms),
        ("E2EL", point.p99_e2el_ms, None),
    ):  # fmt: skip
        detail = f"median {number(p50)} ms" if p50 is not None else ""
        shown.append(Figure(f"P99 {name}", number(p99), "ms", detail))
    if point.goodput_per_s is not None:
        shown.append(Figure("Goodput", number(point.goodput_per_s), "requests/s", f"{share(point.attainment)} within"))
    return Figures(shown)


def point_blocks(sweep: SweepFile, curve: Sequence[CurvePoint]) -> list[Block]:
    advice = sweep.recommendation
    marked = next((at for at, one in enumerate(curve) if advice and one.values == advice.values), None)
    rows = [(one.label, *_cells(one)) for one in curve]
    last = len(POINT_COLUMNS)
    caption = "Latencies in ms." + (f" Medians of {sweep.repeats} runs each." if sweep.repeats > 1 else "")
    table = Table(
        (", ".join(sweep.params), *POINT_COLUMNS),
        rows,
        marked,
        frozenset({last - 1, last}),
        caption=caption,
    )
    reasons = [(one.label, one.point.error or one.point.why or "") for one in curve]
    blocks: list[Block] = [table]
    if (note := note_of_sweep(sweep.params, sweep.points)) is not None:
        blocks.append(Text(note, "unsure"))
    if (idle := unused_slots(sweep)) is not None:
        blocks.append(Text(idle))
    if any(why for _, why in reasons):
        blocks.append(Table((", ".join(sweep.params), "limit of this point"), reasons, marked, frozenset({1})))
    return blocks


def _cells(one: CurvePoint) -> tuple[str, ...]:
    point, signals = one.point, one.point.signals
    if not one.runs:
        return (*[MISSING] * (len(POINT_COLUMNS) - 2), "failed", MISSING)
    numbers = (
        point.output_token_per_s, point.arrivals_per_s, point.request_per_s, point.p50_ttft_ms, point.p99_ttft_ms,
        point.p50_tpot_ms, point.p99_tpot_ms, point.p99_e2el_ms,
    )  # fmt: skip
    return (
        *map(number, numbers), share(signals.device_busy), share(signals.kv_usage_peak), number(signals.preemptions),
        sla_word(point), (point.limit or MISSING).replace("_", " "),
    )  # fmt: skip


def sla_word(point: Point) -> str:
    """The verdict of the SLAs, and before it that of the run's validity unless it is ok."""
    words = []
    if point.validity is not None and point.validity.verdict != "ok":
        words.append(point.validity.verdict.replace("_", " "))
    verdicts = {one.verdict for one in point.sla}
    words += [word for word in ("fail", "inconclusive", "pass") if word in verdicts][:1]
    return ", ".join(words) or MISSING


def tenant_blocks(sweep: SweepFile, curve: Sequence[CurvePoint]) -> list[Block]:
    """P99 TTFT and P99 TPOT of each tenant, a row for each setting; [] where no run has two tenants."""
    names, rows = tenants_of(curve)
    if not names:
        return []
    advice = sweep.recommendation
    marked = next((at for at, row in enumerate(rows) if advice and row.values == advice.values), None)
    columns = [f"{name}, P99 {word}" for name in names for word in ("TTFT", "TPOT")]
    cells = [
        (short_label(row.values), *(number(t) for one in row.tenants for t in (one.p99_ttft_ms, one.p99_tpot_ms)))
        for row in rows
    ]
    return [Table((", ".join(sweep.params), *columns), cells, marked, caption="Latencies in ms.")]
