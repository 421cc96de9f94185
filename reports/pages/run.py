"""The report of one run."""

from __future__ import annotations

from reports.document import Block, Figure, Figures, Report, Section, Table, Text, Tone
from reports.pages.details import (
    TONES,
    configuration,
    definition_section,
    environment,
    sla_table,
    warnings_of,
    workload_title,
)
from reports.pages.evidence import evidence
from reports.render.formatting import number, rates_text, share
from reports.render.splits import stage_sentences
from reports.reported_run import ReportedRun
from reports.schema import RunFile
from reports.sla import exit_code, failed_and_open


def run_report(one: ReportedRun) -> Report:
    run = one.run
    word, tone = verdict_of(run)
    sections = [
        Section("Result", result_blocks(one), leads=True),
        *evidence([one]),
        configuration([("", run)]),
        environment([("", run)]),
        definition_section(run),
    ]
    return Report(
        "cbbench · one run",
        title_of(run),
        " · ".join([workload_title(run.workload.spec), *([rates_text(run)] if run.workload.pacing.open_loop else [])]),
        word,
        tone,
        [one for one in sections if one.blocks],
    )


def title_of(run: RunFile) -> str:
    engine = run.engine
    where = " on ".join(word for word in (engine.model or engine.name, engine.hardware) if word)
    return f"{where}, {engine.batching} batching" if engine.batching else where


def verdict_of(run: RunFile) -> tuple[str, Tone]:
    """(the word, its tone), the word as in the terminal."""
    validity = run.validity.verdict if run.validity else "ok"
    if run.interrupted:
        return "INTERRUPTED", "unsure"
    judged = [one.verdict for one in run.sla]
    code = exit_code(interrupted=False, validity=validity, sla=judged)
    word = validity if code == 0 and not judged else {0: "pass", 3: "fail", 5: "inconclusive", 7: "invalid"}[code]
    return word.replace("_", " ").upper(), TONES[word]


def result_blocks(one: ReportedRun) -> list[Block]:
    mixed = failed_and_open((result.expr, result.verdict) for result in one.run.sla)
    blocks: list[Block] = [*([Text(mixed, lead=True)] if mixed else []), *warnings_of(one.run), figures(one)]
    if one.run.sla:
        blocks += [sla_table(one.run.sla), *map(Text, stage_sentences(one.summary.by_stage))]
    counts = one.summary.requests
    if counts.errors:
        rows = [(error, f"{count:,}") for error, count in counts.errors.items()]
        blocks.append(Table(("why requests failed", "requests"), rows))
    said = [(message, f"{count:,}") for message, count in counts.messages.items() if message not in counts.errors]
    if said:
        blocks.append(Table(("what the error said", "requests"), said))
    return blocks


def figures(one: ReportedRun) -> Figures:
    speed, counts, goodput = one.summary.throughput, one.summary.requests, one.summary.goodput
    steady = f"{number(speed.steady.output_token_per_s)} while steady" if speed.steady else ""
    rest = [
        f"{count:,} {word}" for word, count in (("failed", counts.failed), ("cancelled", counts.cancelled)) if count
    ]
    shown = [Figure("Output throughput", number(speed.output_token_per_s), "tok/s", steady)]
    for name, values in one.judged_latencies().items():
        shown.append(Figure(f"P99 {name}", number(values.p99), "ms", f"median {number(values.p50)} ms"))
    if goodput.request_per_s is not None:
        within = f"{share(goodput.attainment)} within the SLA"
        shown.append(Figure("Goodput", number(goodput.request_per_s), "requests/s", within))
    of = f"of {counts.planned:,}"
    if counts.sent < counts.planned:
        of, rest = f"of {counts.sent:,} sent", [*rest, f"{counts.planned:,} planned"]
    shown.append(Figure("Completed", f"{counts.completed:,}", of, ", ".join(rest)))
    return Figures(shown)
