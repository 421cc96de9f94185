"""A run split by tenant, priority, prompt length and stage of its rate: tables, and marks in charts over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from reports.document import Block, Chart, Lines, Rule, Section, Table, Text
from reports.render.formatting import number
from reports.render.splits import SERVICE, stage_columns, stage_legend, stage_rows
from reports.reported_run import ReportedRun
from reports.stages import Span, Stages
from reports.summary_schema import Group, first_failed_stage
from workloads.rates import NS

GROUP_COLUMNS = (
    "requests", "completed", "P50 TTFT", "P99 TTFT", "P99 TPOT", "P99 E2EL", "longest wait", "tok/s", "preempted",
    "service",
)  # fmt: skip


def group_section(runs: Sequence[ReportedRun]) -> Section:
    blocks: list[Block] = []
    for one in runs:
        summary = one.summary
        if summary.by_stage:
            blocks.append(stage_table(one))
        for name, groups in summary.splits.items():
            blocks.append(_group_table(f"{one.label}, {name}" if one.label else name, groups, one.open_loop))
        if summary.service_gap_tokens is not None:
            gap = f"Service gap between tenants: {number(summary.service_gap_tokens)} tokens, the largest lead of"
            blocks.append(Text(one.labelled(f"{gap} one over another while both had requests waiting.")))
    return Section("Tenants, priorities, prompts, stages", blocks)


def _group_table(name: str, groups: Mapping[str, Group], open_loop: bool) -> Table:
    rows = []
    for label, one in groups.items():
        ttft, e2el = one.latency.ttft_ms, one.latency.e2el_ms
        if open_loop:
            ttft, e2el = one.latency.ttft_sched_ms, one.latency.e2el_sched_ms
        times = (ttft.p50, ttft.p99, one.latency.tpot_ms.p99, e2el.p99, one.max_wait_ms, one.output_token_per_s)
        counts = (f"{one.requests:,}", f"{one.completed:,}")
        rows.append((label, *counts, *map(number, times), f"{one.preemptions:,}", f"{one.service_tokens:,}"))
    schedule = ", TTFT and E2EL from the scheduled time" if open_loop else ""
    caption = f"Times in ms{schedule}; the wait is for a first slot; {SERVICE}."
    return Table((name, *GROUP_COLUMNS), rows, caption=caption)


LEAST_LABELLED = 0.08  # share of a chart's width below which the mark of a stage has no label


def stage_table(one: ReportedRun) -> Table:
    stages = one.summary.by_stage
    columns, first = stage_columns(stages), first_failed_stage(stages)
    return Table(
        (one.named("stage"), *columns[1:]),
        stage_rows(stages, one.open_loop),
        marked=None if first is None else list(stages).index(first),
        texts=frozenset({columns.index("SLA")} if "SLA" in columns else ()),
        caption=stage_legend(stages, one.open_loop),
    )


def with_stages(chart: Chart, runs: Sequence[ReportedRun]) -> Chart:
    """The chart over time with a mark where each stage begins; unchanged where the runs have different stages."""
    schedules = {one.run.workload.pacing.rate_schedule for one in runs}
    stages = Stages.of(schedules.pop()) if len(schedules) == 1 else None
    ends_s = [int(one.times.end_ns.max()) / NS for one in runs if len(one.times)]
    if stages is None or not ends_s or not isinstance(chart.plot, Lines):
        return chart
    marks = [_mark(span, max(ends_s)) for span in stages.spans if span.start_s < max(ends_s)]
    return replace(chart, plot=replace(chart.plot, rules=[*chart.plot.rules, *marks]))


def _mark(span: Span, until_s: float) -> Rule:
    """ "8/s", of a ramp "4..24/s"; no label after the last stage, where its rate goes on."""
    low, high = span.stage.from_per_s, span.stage.to_per_s
    rate = f"{low:.4g}/s" if low == high else f"{low:.4g}..{high:.4g}/s"
    room = span.key != "then" and span.lasted_s(until_s) >= LEAST_LABELLED * until_s
    return Rule(span.start_s, rate if room else "", "x", quiet=True)
