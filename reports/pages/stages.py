"""The stages of a rate that changes: their table, and where they begin in a chart over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reports.document import Chart, Lines, Rule, Table
from reports.pages.reported import Reported
from reports.render.stages import stage_columns, stage_legend, stage_rows
from reports.staged import first_beyond
from reports.stages import Span, Stages
from workloads.rates import NS

LEAST_LABELLED = 0.08  # of a chart's width, under which a stage has a mark without a label


def stage_table(one: Reported) -> Table:
    stages = one.summary.by_stage
    columns, first = stage_columns(stages), first_beyond(stages)
    return Table(
        (one.named("stage"), *columns[1:]),
        stage_rows(stages, one.open_loop),
        marked=None if first is None else list(stages).index(first),
        texts=frozenset({columns.index("SLA")} if "SLA" in columns else ()),
        caption=stage_legend(stages, one.open_loop),
    )


def with_stages(chart: Chart, runs: Sequence[Reported]) -> Chart:
    """The chart over time with a mark where each stage begins; as it is, where the runs have not the same stages."""
    schedules = {one.run.workload.pacing.rate_schedule for one in runs}
    stages = Stages.of(schedules.pop()) if len(schedules) == 1 else None
    ends_s = [int(one.times.end_ns.max()) / NS for one in runs if len(one.times)]
    if stages is None or not ends_s or not isinstance(chart.plot, Lines):
        return chart
    marks = [_mark(span, max(ends_s)) for span in stages.spans if span.start_s < max(ends_s)]
    return replace(chart, plot=replace(chart.plot, rules=[*chart.plot.rules, *marks]))


def _mark(span: Span, until_s: float) -> Rule:
    """ "8/s", of a ramp "4..24/s". What comes after the last end goes on with the rate before it: a mark alone."""
    low, high = span.stage.from_per_s, span.stage.to_per_s
    rate = f"{low:.4g}/s" if low == high else f"{low:.4g}..{high:.4g}/s"
    room = span.key != "then" and span.lasted_s(until_s) >= LEAST_LABELLED * until_s
    return Rule(span.start_s, rate if room else "", "x", quiet=True)
