"""The evidence for a verdict: distributions, signals over time, slots, and where the work went."""

from __future__ import annotations

from collections.abc import Sequence

from reports.document import Axis, Bars, Block, Chart, Line, Lines, Rule, Section, Table, Text
from reports.instances import records_by_instance
from reports.over_time import distribution_curve, latency_over_time, requests_over_time, signals_over_time
from reports.pages.breakdown import breakdown_section
from reports.pages.details import latency_table
from reports.pages.slots import slot_charts, slot_states_chart
from reports.pages.splits import group_section, with_stages
from reports.render.axis_limits import fitted
from reports.render.breakdown import SLOT_KINDS, TOKEN_KINDS, waste_sentence
from reports.render.formatting import share
from reports.render.splits import INSTANCE_COLUMNS, instance_rows, transfer_sentence
from reports.reported_run import ReportedRun
from reports.sla import parse_sla
from reports.summary_schema import Waste


def evidence(runs: Sequence[ReportedRun], *, slots: bool = True) -> list[Section]:
    """The sections for one run, or for two side by side; empty ones are left out."""
    tables: list[Block] = [latency_table(one.summary, one.percentiles, one.open_loop, one.label) for one in runs]
    sections = [
        Section("Latency", [*latency_charts(runs), *tables]),
        Section("Instances", instance_blocks(runs)),
        Section("Over time", over_time_charts(runs)),
        *(slot_sections(runs) if slots else []),
        breakdown_section(runs),
        group_section(runs),
        *waste_sections(runs),
    ]
    return [one for one in sections if one.blocks]


def latency_charts(runs: Sequence[ReportedRun]) -> list[Chart]:
    """Distributions, with the SLAs on percentiles as lines."""
    charts = []
    for word in ("ttft", "tpot", "e2el"):
        lines: list[Line] = []
        rules: dict[str, float] = {}
        for at, one in enumerate(runs):
            metric = f"{word}_sched_ms" if one.open_loop and word != "tpot" else f"{word}_ms"
            xs, ys = distribution_curve(one.times.latency(metric))
            if xs:
                lines.append(Line(one.label or word.upper(), xs, ys, f"series-{at}"))
            rules |= {
                result.expr: result.bound
                for result in one.run.sla
                if result.scope is None and parse_sla(result.expr).latency in (f"{word}_ms", metric)
            }
        values = [x for line in lines for x in line.xs]
        if values:
            x = fitted(f"{word.upper()}, ms", [*values, *rules.values()])
            y = Axis("requests up to it", domain=(0, 1), percent=True)
            lines_of_sla = [Rule(bound, expr, "x") for expr, bound in rules.items()]
            charts.append(
                Chart(f"{word}-distribution", f"{word.upper()} of requests", Lines(x, y, lines, lines_of_sla))
            )
    return charts


def instance_blocks(runs: Sequence[ReportedRun]) -> list[Block]:
    """The instances and the KV transfers of disaggregated runs."""
    blocks: list[Block] = []
    for one in runs:
        if one.summary.instances:
            columns = (one.label or "instance", *(name.replace("\n", " ") for name in INSTANCE_COLUMNS))
            blocks.append(Table(columns, instance_rows(one.summary)))
        if one.summary.transfers is not None:
            blocks.append(Text(one.labelled(transfer_sentence(one.summary.transfers))))
    return blocks


def over_time_charts(runs: Sequence[ReportedRun]) -> list[Block]:
    found = [_requests_over_time(runs), *_signals_over_time(runs)]
    found += [_latency_over_time(word, runs) for word in ("ttft", "tpot")]
    return [with_stages(one, runs) for one in found if one is not None]


def _signals_over_time(runs: Sequence[ReportedRun]) -> list[Chart]:
    charts = []
    courses = [(one.named(name), course) for one in runs for name, course in signals_over_time(one.record).items()]
    for name, title, axis in (
        ("device_busy", "Device busy", Axis("device busy", domain=(0, 1), percent=True)),
        ("kv_usage", "KV cache in use", Axis("KV blocks in use", percent=True)),
        ("running", "Running", Axis("running requests", whole=True)),
        ("waiting", "Waiting", Axis("waiting requests")),
    ):
        lines = [
            Line(label or title, course.at_s.tolist(), course.values[name], f"series-{at}")
            for at, (label, course) in enumerate(courses)
            if name in course.values
        ]
        if lines:
            charts.append(Chart(f"{name.replace('_', '-')}-over-time", title, Lines(Axis("s"), axis, lines)))
    return charts


def _requests_over_time(runs: Sequence[ReportedRun]) -> Chart | None:
    """Requests per second due and completed, of runs in open loop."""
    lines = []
    for at, one in enumerate(runs):
        if not one.open_loop:
            continue
        course = requests_over_time(one.record)
        for half, (name, values) in enumerate(course.values.items()):
            lines.append(Line(one.named(name), course.at_s.tolist(), values, f"series-{2 * at + half}"))
    if not lines:
        return None
    caption = "Requests by when they were due, and by when they completed."
    return Chart("requests-over-time", "Requests per second", Lines(Axis("s"), Axis("requests/s"), lines), caption)


def _latency_over_time(word: str, runs: Sequence[ReportedRun]) -> Chart | None:
    """TTFT by the scheduled time in open loop; else, and TPOT always, by the time of the first token."""
    scheduled = word == "ttft" and all(one.open_loop for one in runs)
    lines = []
    for at, one in enumerate(runs):
        metric = "ttft_sched_ms" if word == "ttft" and one.open_loop else f"{word}_ms"
        course = latency_over_time(
            one.times.scheduled_ns if scheduled else one.times.first_ns, one.times.latency(metric)
        )
        for half, stat in enumerate(("p50", "p99")):
            label = one.named(stat.upper())
            lines.append(Line(label, course.at_s.tolist(), course.values[stat], f"series-{2 * at + half}"))
    if not any(line.xs for line in lines):
        return None
    caption = f"Of requests by {'their scheduled time' if scheduled else 'when they got their first token'}."
    return Chart(f"{word}-over-time", word.upper(), Lines(Axis("s"), Axis(f"{word.upper()}, ms"), lines), caption)


def slot_sections(runs: Sequence[ReportedRun]) -> list[Section]:
    parts = [
        (one.named(name), record, one.run) for one in runs for name, record in records_by_instance(one.record).items()
    ]
    charts: list[Block] = list(slot_charts(parts))
    for at, (label, record, run) in enumerate(parts, start=1):
        name = f"slot-states-{at}" if len(parts) > 1 else "slot-states"
        found = slot_states_chart(name, label, record, run)
        charts += [] if found is None else [found]
    if not charts:
        return []
    hint = Text("Shift and the mouse wheel zoom a slot timeline; dragging moves it.")
    return [Section("Slots", [*charts, hint])]


def waste_sections(runs: Sequence[ReportedRun]) -> list[Section]:
    seen = [(one, one.summary.waste) for one in runs if one.summary.waste is not None]
    if not seen:
        return []
    blocks: list[Block] = [Text(one.labelled(waste_sentence(waste))) for one, waste in seen]
    parts = [(one.label or "this run", waste) for one, waste in seen]
    blocks.append(_waste_chart("launched-tokens", "Launched tokens", TOKEN_KINDS, parts))
    blocks.append(_waste_chart("slot-steps", "Slot-steps (slots × steps)", SLOT_KINDS, parts))
    for one, waste in seen:
        blocks.append(_waste_table(one.label, waste))
    return [Section("Where the work went", blocks)]


WASTE_COLOURS = {
    "useful": "decode", "prompt padding": "padding", "bucket padding": "held", "dead rows": "dead",
    "recomputed": "preempted", "discarded": "other", "active": "decode", "dead": "dead", "idle": "idle",
}  # fmt: skip


def _waste_chart(
    name: str, title: str, kinds: tuple[tuple[str, str, str], ...], parts: list[tuple[str, Waste]]
) -> Chart:
    cut = [(label, word, float(getattr(waste, key))) for label, waste in parts for key, word, _ in kinds]
    seen = {word: WASTE_COLOURS[word] for _, word, _ in kinds if any(part == word and value for _, part, value in cut)}
    unit = title.split(" (")[0].lower()
    return Chart(name, title, Bars(Axis(unit), [one for one in cut if one[1] in seen], seen))


def _waste_table(label: str, waste: Waste) -> Table:
    rows = []
    for total, kinds in ((waste.launched_tokens, TOKEN_KINDS), (waste.slot_steps, SLOT_KINDS)):
        for key, word, means in kinds:
            count: int = getattr(waste, key)
            if count:
                unit = "tokens" if kinds is TOKEN_KINDS else "slot-steps"
                rows.append((f"{unit}: {word}", f"{count:,}", share(count / total), means))
    return Table((label or "work", "count", "share", "what it is"), rows, texts=frozenset({3}))
