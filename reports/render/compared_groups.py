"""Runs side by side for each tenant and each priority that all of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from reports.render.fitting import Table
from reports.render.words import MISSING, number
from reports.schema import RunFile
from reports.summary_schema import Group


def compared_groups(names: Sequence[str], runs: Sequence[RunFile]) -> list[RenderableType]:
    """A table for tenants and one for priorities, a section for each in it; nothing where a run has no such split, or
    no part is in all runs. names: of the runs."""
    summaries = [run.summary for run in runs if run.summary is not None]
    opened = [run.workload.pacing.open_loop for run in runs]
    views: list[RenderableType] = []
    for word, splits in (
        ("tenant", [one.by_tenant for one in summaries]),
        ("priority", [one.by_priority for one in summaries]),
    ):
        shared = [label for label in splits[0] if all(label in one for one in splits)]
        if shared:
            views += [Text(), _table(word, names, shared, splits, opened)]
    if not views:
        return []
    start = "; TTFT from the scheduled time" if any(opened) else ""
    return [*views, Text(f"Times in ms{start}; the wait is that for a first seat.", "dim")]


def _table(
    word: str,
    names: Sequence[str],
    labels: Sequence[str],
    splits: Sequence[Mapping[str, Group]],
    opened: Sequence[bool],
) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"by {word}")
    for name in [*names, f"{names[-1]} / {names[0]}"]:
        table.add_column(Text(name), justify="right")
    for label in labels:
        table.add_row(Text(f"{word} {label}", "bold"))
        cells = [_cells(split[label], one) for split, one in zip(splits, opened, strict=True)]
        for title in cells[0]:
            values = [one[title] for one in cells]
            first, last = values[0], values[-1]
            ratio = f"{last / first:.2f}x" if first and last is not None else MISSING
            table.add_row(f"  {title}", *map(number, values), ratio)
    return table


def _cells(one: Group, opened: bool) -> dict[str, float | None]:
    ttft = one.latency.ttft_sched_ms if opened else one.latency.ttft_ms
    return {
        "requests": one.requests,
        "TTFT P50": ttft.p50,
        "TTFT P99": ttft.p99,
        "TPOT P99": one.latency.tpot_ms.p99,
        "longest wait": one.max_wait_ms,
        "output tok/s": one.output_token_per_s,
    }
