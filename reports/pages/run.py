"""The report of one run."""

from __future__ import annotations

from typing import NamedTuple

from engines.base import RunRecord
from reports.document import (
    Axis,
    Bars,
    Block,
    Chart,
    Figure,
    Figures,
    Line,
    Lines,
    Report,
    Rule,
    Section,
    Table,
    Text,
    Tone,
)
from reports.gate import exit_code, parse
from reports.metrics import RequestTimes, request_times
from reports.over_time import distribution_curve, latency_over_time, signals_over_time
from reports.pages.details import (
    TONES,
    configuration,
    definition_section,
    environment,
    latency_table,
    sla_table,
    warnings_of,
)
from reports.pages.slots import seats_chart, slot_charts
from reports.render.compare import reason
from reports.render.waste import SLOTS, TOKENS
from reports.render.words import number, share
from reports.schema import Distribution, RunFile, Summary, Waste


class Reported(NamedTuple):
    """A run as its report needs it. `label` tells it from the other run of a pair; empty where it is alone."""

    label: str
    run: RunFile
    record: RunRecord
    times: RequestTimes

    @property
    def summary(self) -> Summary:
        assert self.run.summary is not None
        return self.run.summary

    @property
    def open_loop(self) -> bool:
        return self.run.workload.pacing.open_loop


def reported(label: str, run: RunFile, record: RunRecord) -> Reported:
    """ValueError for a run without a summary."""
    if run.summary is None:
        raise ValueError("the run has no summary; rebuild it first")
    return Reported(label, run, record, request_times(record))


def run_report(run: RunFile, record: RunRecord) -> Report:
    """ValueError for a run without a summary."""
    one = reported("", run, record)
    word, tone = verdict_of(run)
    sections = [
        Section("Result", result_blocks(one)),
        Section("Latency", [*latency_charts([one]), latency_table(one.summary, one.open_loop)]),
        Section("Over time", over_time_charts([one])),
        *slot_sections([one]),
        *waste_sections([one]),
        configuration([("", run)]),
        environment([("", run)]),
        definition_section(),
    ]
    return Report(
        "cbbench · one run", title_of(run), run.workload.spec, word, tone, [one for one in sections if one.blocks]
    )


def title_of(run: RunFile) -> str:
    engine = run.engine
    where = " on ".join(word for word in (engine.model or engine.kind, engine.device) if word)
    return f"{where}, {engine.mode} batching" if engine.mode else where


def verdict_of(run: RunFile) -> tuple[str, Tone]:
    """(the word, its tone), as the terminal has it."""
    validity = run.validity.verdict if run.validity else "ok"
    if run.interrupted:
        return "interrupted", "unsure"
    judged = [one.verdict for one in run.sla]
    code = exit_code(interrupted=False, validity=validity, sla=judged)
    word = validity if code == 0 and not judged else {0: "pass", 3: "fail", 5: "inconclusive", 7: "invalid"}[code]
    return word.replace("_", " "), TONES[word]


def result_blocks(one: Reported) -> list[Block]:
    blocks: list[Block] = [*warnings_of(one.run), figures(one)]
    if one.run.sla:
        blocks.append(sla_table(one.run.sla))
    counts = one.summary.requests
    if counts.errors:
        rows = [(error, f"{count:,}") for error, count in counts.errors.items()]
        blocks.append(Table(("why requests failed", "requests"), rows))
    return blocks


def figures(one: Reported) -> Figures:
    speed, counts, goodput = one.summary.throughput, one.summary.requests, one.summary.goodput
    steady = f"{number(speed.steady.output_token_per_s)} while steady" if speed.steady else ""
    done = f"of {counts.planned:,} completed"
    rest = [
        f"{count:,} {word}" for word, count in (("failed", counts.failed), ("cancelled", counts.cancelled)) if count
    ]
    shown = [Figure("Output throughput", number(speed.output_token_per_s), "tok/s", steady)]
    for name, values in judged_latencies(one).items():
        shown.append(Figure(f"P99 {name}", number(values.p99), "ms", f"median {number(values.p50)} ms"))
    if goodput.request_per_s is not None:
        within = f"{share(goodput.attainment)} within the SLA"
        shown.append(Figure("Goodput", number(goodput.request_per_s), "requests/s", within))
    shown.append(Figure("Requests", f"{counts.completed:,}", done, ", ".join(rest)))
    return Figures(shown)


def judged_latencies(one: Reported) -> dict[str, Distribution]:
    """TTFT, TPOT and E2EL; in open loop from the scheduled time, as SLAs are judged."""
    latency = one.summary.latency
    if one.open_loop:
        return {"TTFT": latency.ttft_sched_ms, "TPOT": latency.tpot_ms, "E2EL": latency.e2el_sched_ms}
    return {"TTFT": latency.ttft_ms, "TPOT": latency.tpot_ms, "E2EL": latency.e2el_ms}


def latency_charts(runs: list[Reported]) -> list[Chart]:
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
                if parse(result.expr).latency in (f"{word}_ms", metric)
            }
        values = [x for line in lines for x in line.xs]
        if values:
            log = min(values) > 0 and max(values) > 10 * min(values)
            x = Axis(f"{word.upper()}, ms", log=log)
            y = Axis("requests up to it", domain=(0, 1), percent=True)
            lines_of_sla = [Rule(bound, expr, "x") for expr, bound in rules.items()]
            charts.append(
                Chart(f"{word}-distribution", f"{word.upper()} of requests", Lines(x, y, lines, lines_of_sla))
            )
    return charts


def over_time_charts(runs: list[Reported]) -> list[Block]:
    courses = [(one, signals_over_time(one.record)) for one in runs]
    charts: list[Block] = []
    for name, title, axis in (
        ("device_busy", "Device busy", Axis("device busy", domain=(0, 1), percent=True)),
        ("kv_usage", "KV cache in use", Axis("KV blocks in use", percent=True)),
        ("running", "Running", Axis("requests in a seat")),
        ("waiting", "Waiting", Axis("requests in the queue")),
    ):
        lines = [
            Line(one.label or title, course.at_s.tolist(), course.values[name], f"series-{at}")
            for at, (one, course) in enumerate(courses)
            if name in course.values
        ]
        if lines:
            charts.append(Chart(f"{name.replace('_', '-')}-over-time", title, Lines(Axis("s"), axis, lines)))
    for word, why in (("ttft", "by when they were to be sent"), ("tpot", "by when they got their first token")):
        lines = []
        for at, one in enumerate(runs):
            metric = "ttft_sched_ms" if word == "ttft" and one.open_loop else f"{word}_ms"
            course = latency_over_time(
                one.times.scheduled_ns if word == "ttft" else one.times.first_ns, one.times.latency(metric)
            )
            for half, stat in enumerate(("p50", "p99")):
                label = f"{one.label} {stat.upper()}".strip()
                lines.append(Line(label, course.at_s.tolist(), course.values[stat], f"series-{2 * at + half}"))
        if any(line.xs for line in lines):
            plot = Lines(Axis("s"), Axis(f"{word.upper()}, ms"), lines)
            charts.append(Chart(f"{word}-over-time", word.upper(), plot, caption=f"Of requests {why}."))
    return charts


def slot_sections(runs: list[Reported]) -> list[Section]:
    charts: list[Block] = list(slot_charts([(one.label, one.record, one.run) for one in runs]))
    charts += [found for one in runs if (found := seats_chart(one.label, one.record, one.run)) is not None]
    if not charts:
        return []
    hint = Text("Shift and wheel zoom into a slot timeline, dragging moves it.")
    return [Section("Slots", [*charts, hint])]


def waste_sections(runs: list[Reported]) -> list[Section]:
    seen = [(one, one.summary.waste) for one in runs if one.summary.waste is not None]
    if not seen:
        return []
    blocks: list[Block] = []
    for one, waste in seen:
        sentence = reason(waste)
        blocks.append(Text(f"{one.label}: {sentence}" if one.label else sentence))
    parts = [(one.label or "this run", waste) for one, waste in seen]
    blocks.append(_waste_chart("launched-tokens", "Launched tokens", TOKENS, parts))
    blocks.append(_waste_chart("slot-steps", "Slot-steps (seats times steps)", SLOTS, parts))
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
    for total, kinds in ((waste.launched_tokens, TOKENS), (waste.slot_steps, SLOTS)):
        for key, word, means in kinds:
            count: int = getattr(waste, key)
            if count:
                unit = "tokens" if kinds is TOKENS else "slot-steps"
                rows.append((f"{word} {unit}", f"{count:,}", share(count / total), means))
    return Table((label or "work", "count", "share", "what it is"), rows, texts=frozenset({3}))
