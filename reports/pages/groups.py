"""The splits of a run: by tenant, by priority, by the length of the prompt, by the stage of its rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.document import Block, Section, Table, Text
from reports.pages.reported import Reported
from reports.pages.stages import stage_table
from reports.render.groups import SERVICE
from reports.render.words import number
from reports.summary_schema import Group

COLUMNS = (
    "requests", "completed", "P50 TTFT", "P99 TTFT", "P99 TPOT", "P99 E2EL", "longest wait", "tok/s", "preempted",
    "service",
)  # fmt: skip


def group_section(runs: Sequence[Reported]) -> Section:
    blocks: list[Block] = []
    for one in runs:
        summary = one.summary
        if summary.by_stage:
            blocks.append(stage_table(one))
        for name, groups in summary.splits.items():
            blocks.append(_table(f"{one.label}, {name}" if one.label else name, groups, one.open_loop))
        if summary.service_gap_tokens is not None:
            gap = f"Service gap between tenants: {number(summary.service_gap_tokens)} tokens, the most by which one got"
            blocks.append(Text(one.told(f"{gap} ahead of another while both had requests waiting.")))
    return Section("Tenants, priorities, prompts, stages", blocks)


def _table(name: str, groups: Mapping[str, Group], open_loop: bool) -> Table:
    rows = []
    for label, one in groups.items():
        ttft, e2el = one.latency.ttft_ms, one.latency.e2el_ms
        if open_loop:
            ttft, e2el = one.latency.ttft_sched_ms, one.latency.e2el_sched_ms
        times = (ttft.p50, ttft.p99, one.latency.tpot_ms.p99, e2el.p99, one.max_wait_ms, one.output_token_per_s)
        counts = (f"{one.requests:,}", f"{one.completed:,}")
        rows.append((label, *counts, *map(number, times), f"{one.preemptions:,}", f"{one.service_tokens:,}"))
    schedule = ", TTFT and E2EL from the scheduled time" if open_loop else ""
    caption = f"Times in ms{schedule}; the wait is that for a first seat; {SERVICE}."
    return Table((name, *COLUMNS), rows, caption=caption)
