"""The splits of a run: a small table for each, and how evenly the tenants were served."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from reports.render.fitting import Table
from reports.render.words import number
from reports.summary_schema import Group, Summary

SERVICE = "service is how much was done for them, in tokens: prompt + 2 × output, as fair order counts it"


def group_views(summary: Summary, open_loop: bool) -> list[RenderableType]:
    """A table for each split that there is, and what its columns mean; nothing where there is none.

    In open loop, latencies are from the scheduled time, as they are judged there.
    """
    views: list[RenderableType] = [group_table(name, groups, open_loop) for name, groups in summary.splits.items()]
    if not views:
        return []
    start = ", TTFT from the scheduled time" if open_loop else ""
    words = f"Times in ms{start}; wait is the longest for a first seat; {SERVICE}."
    gap = summary.service_gap_tokens
    if gap is not None:
        words += (
            f"\nservice gap between tenants: {number(gap)} tokens, the most by which one got ahead of another while "
            "both had requests waiting"
        )
    return [*views, Text(words)]


def group_table(name: str, groups: Mapping[str, Group], open_loop: bool) -> Table:
    table = Table(spare=[-1, -2, -4, 2], box=None, header_style="bold", pad_edge=False)
    table.add_column(name)
    for column in ("done", "TTFT p50", "TTFT p99", "TPOT p99", "wait", "tok/s", "preempted", "service"):
        table.add_column(column, justify="right")
    for label, one in groups.items():
        latency = one.latency
        first = latency.ttft_sched_ms if open_loop else latency.ttft_ms
        times = (first.p50, first.p99, latency.tpot_ms.p99, one.max_wait_ms, one.output_token_per_s)
        done = f"{one.completed:,}" if one.completed == one.requests else f"{one.completed:,}/{one.requests:,}"
        table.add_row(Text(label), done, *map(number, times), f"{one.preemptions:,}", f"{one.service_tokens:,}")
    return table
