"""The report that compares two runs: what changed in the second one, and why."""

from __future__ import annotations

from reports.devices import note_of_runs
from reports.document import Block, Figure, Figures, Report, Section, Table, Text, Tone
from reports.pages.details import (
    capital,
    configuration,
    definition_section,
    environment,
    sla_table,
    warnings_of,
    workload_title,
)
from reports.pages.evidence import evidence, slot_sections
from reports.pages.run import title_of
from reports.percentiles import SHOWN
from reports.render.compare import DIFFERENT_PROMPTS, DIFFERENT_WORK, rows_of
from reports.render.formatting import MISSING, number
from reports.render.sweep_tables import MODES
from reports.reported_run import ReportedRun
from reports.schema import RunFile
from workloads.length_pairs import max_over_mean


def comparison_report(first: ReportedRun, second: ReportedRun) -> Report:
    """Both runs side by side. Of runs with different work the first sentence says that they differ."""
    runs = [first, second]
    labelled = [(one.label, one.run) for one in runs]
    same = first.run.workload.sha256 == second.run.workload.sha256
    sections = [
        Section("Result", result_blocks(first, second, same), leads=True),
        *slot_sections(runs),
        *evidence(runs, slots=False),
        configuration(labelled),
        environment(labelled),
        definition_section(second.run),
    ]
    word, tone = verdict_of(same)
    title = f"{opening(second.label)} against {first.label}"
    workloads = [workload_title(one.run.workload.spec) for one in runs]
    subtitle = " · ".join(dict.fromkeys([title_of(first.run), title_of(second.run), *workloads]))
    return Report("cbbench · two runs", title, subtitle, word, tone, sections)


def verdict_of(same: bool) -> tuple[str, Tone]:
    return ("SAME WORK", "plain") if same else ("DIFFERENT WORK", "bad")


def opening(label: str) -> str:
    """The label at the start of a sentence: a mode with a capital, the name of a folder unchanged."""
    return capital(label) if label in MODES else label


def labels_of(first: RunFile, second: RunFile, names: tuple[str, str]) -> tuple[str, str]:
    """The modes where they differ, else the names of the folders."""
    modes = (first.engine.mode, second.engine.mode)
    if modes[0] and modes[1] and modes[0] != modes[1]:
        return modes[0], modes[1]
    return names if names[0] != names[1] else (f"A: {names[0]}", f"B: {names[1]}")


def result_blocks(first: ReportedRun, second: ReportedRun, same: bool) -> list[Block]:
    blocks: list[Block] = []
    if not same:
        blocks.append(Text(DIFFERENT_WORK, "bad"))
    elif first.run.workload.prompts_sha256 != second.run.workload.prompts_sha256:
        blocks.append(Text(DIFFERENT_PROMPTS, "unsure"))
    if (note := note_of_runs([first.run.engine, second.run.engine])) is not None:
        blocks.append(Text(note, "unsure"))
    for one in (first, second):
        blocks += warnings_of(one.run, one.label)
    blocks += [Text(lead(first, second), lead=True), ratio_figures(first, second)]
    sentence = predicted_gain(first, second) if same else None
    if sentence:
        blocks.append(Text(sentence))
    blocks.append(side_by_side(first, second))
    for one in (first, second):
        if one.run.sla:
            blocks += [Text(f"SLA, {one.label}"), sla_table(one.run.sla)]
    return blocks


def lead(first: ReportedRun, second: ReportedRun) -> str:
    """The change of throughput and P99 latencies in one sentence."""
    before, after = (one.summary.throughput.output_token_per_s for one in (first, second))
    parts = []
    if before and after:
        parts.append(f"{after / before:.2f}x the output throughput of {first.label}")
    for name, old in first.judged_latencies().items():
        new = second.judged_latencies()[name]
        if old.p99 and new.p99:
            parts.append(f"{new.p99 / old.p99:.2f}x its P99 {name}")
    return (
        f"{capital(second.label)} has {', '.join(parts)}."
        if parts
        else f"{first.label} and {second.label} have no numbers."
    )


def ratio_figures(first: ReportedRun, second: ReportedRun) -> Figures:
    def ratio(old: float | None, new: float | None) -> str:
        return f"{new / old:.2f}x" if old and new else MISSING

    speeds = [one.summary.throughput.output_token_per_s for one in (first, second)]
    shown = [Figure("Output throughput", ratio(*speeds), "", f"{number(speeds[0])} → {number(speeds[1])} tok/s")]
    for name, old in first.judged_latencies().items():
        new = second.judged_latencies()[name]
        detail = f"{number(old.p99)} → {number(new.p99)} ms"
        shown.append(Figure(f"P99 {name}", ratio(old.p99, new.p99), "", detail))
    return Figures(shown)


def predicted_gain(first: ReportedRun, second: ReportedRun) -> str | None:
    """The gain of continuous over static batching, measured and predicted: E[longest of a batch] / mean output."""
    sides = {one.run.engine.mode: one for one in (first, second)}
    if set(sides) != {"static", "continuous"}:
        return None
    slots = sides["static"].run.engine.config.get("max_num_seqs")
    outputs = first.times.output_tokens[first.times.completed]
    slow, fast = (sides[mode].summary.throughput.output_token_per_s for mode in ("static", "continuous"))
    if not slots or not outputs.size or not slow or not fast:
        return None
    predicted = max_over_mean(outputs, int(slots))
    return (
        f"Continuous over static batching: {fast / slow:.2f}x measured, {predicted:.2f}x predicted. The prediction is "
        f"E[longest output of {int(slots):,}] / mean output: a static batch lasts as long as its longest request. It "
        "holds for a queue that never empties and steps of equal length."
    )


def side_by_side(first: ReportedRun, second: ReportedRun) -> Table:
    chosen = None if first.asked == SHOWN else [first.percentiles, second.percentiles]
    rows = []
    for title, (old, new) in rows_of([first.summary, second.summary], chosen):
        ratio = f"{new / old:.2f}x" if old and new is not None else MISSING
        rows.append((title.replace("  ", "\u2003"), number(old), number(new), ratio))
    return Table(("", first.label, second.label, f"{second.label} / {first.label}"), rows)
