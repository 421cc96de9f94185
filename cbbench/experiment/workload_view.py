"""The description of a workload in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from workloads.columns import IntColumn
from workloads.plan import RequestPlan
from workloads.spec import Workload

HISTOGRAM_ROWS = 12
HISTOGRAM_WIDTH = 20


def description_view(workload: Workload, plan: RequestPlan, described: dict[str, Any]) -> Iterator[RenderableType]:
    """Lines and tables. described: see description.py"""
    own, sample = described["own"], described["sample"]
    yield from _provenance(workload, described["arrivals"])
    yield _comparison(own, sample)
    yield from _remarks(own, sample)
    yield ""
    yield _histograms(plan)


def _provenance(workload: Workload, arrivals: dict[str, float] | None) -> list[str]:
    lines = [f"{workload.spec} ({workload.kind})"]
    lines += [f"  {key}: {text}" for key, text in workload.provenance.items()]
    if workload.preset is not None and workload.preset.origin is not None:
        lines += [f"  made by: {step}" for step in workload.preset.origin.transformations]
    if workload.preset is not None:
        lines += [f"  lacks: {what}" for what in workload.preset.lacks]
    if workload.suggests:
        lines.append("  suggests: " + ", ".join(f"{key} = {value}" for key, value in workload.suggests.items()))
    if workload.file is not None and workload.file.counted_by == "server":
        lines.append(
            f"  prompts: {len(workload.file.lengths):,}, sent as text. Their lengths here are estimates, a token for 4 "
            "bytes; a run takes those of the model's tokenizer or of the server"
        )
    if workload.file is not None:
        stamps = () if workload.file.stamps is None else workload.file.stamps.said
        lines += [f"  note: {text}" for text in (*workload.file.said, *stamps)]
        if workload.file.blocks is not None:
            lengths = workload.file.lengths.prompt_tokens
            share = workload.file.blocks.reusable_tokens(lengths).sum() / lengths.sum()
            lines.append(f"  shared prefixes: an infinite cache would have {share:.1%} of the prompt tokens")
    if arrivals is not None:
        rate, cv = arrivals["rate_per_s"], arrivals["gap_cv"]
        lines.append(
            f"  arrivals: {rate:.3g} requests/s, CV of the gaps {cv:.2f} (1: Poisson); `arrival` trace keeps them"
        )
    return [*lines, ""]


def _comparison(own: dict[str, Any], sample: dict[str, Any]) -> Table:
    table = number_table("", "prompt: own", "sample", "output: own", "sample")
    for key in own["prompt_tokens"]:
        cells = [numbers[side][key] for side in ("prompt_tokens", "output_tokens") for numbers in (own, sample)]
        table.add_row(key, *(f"{value:,.0f}" for value in cells))
    return table


def _remarks(own: dict[str, Any], sample: dict[str, Any]) -> list[str]:
    def pair(key: str, inner: str) -> str:
        return " and ".join("-" if (n := numbers[key][inner]) is None else f"{n:.2f}" for numbers in (own, sample))

    lines = [
        f"rank correlation of prompt and output, own and sample: {pair('correlation', 'spearman')}",
        *(
            f"longest of {batch} outputs over the mean output: {pair('max_over_mean', batch)}"
            for batch in sample["max_over_mean"]
        ),
        "(the last is about what continuous batching gains over static batching of that size)",
    ]
    if sample["outside_context"]:
        lines.append(
            f"{sample['outside_context']:.1%} of the pairs passed {sample['max_model_len']} tokens: drawn again"
        )
    return lines


def _histograms(plan: RequestPlan) -> Table:
    """Two bar charts side by side; both stop at their own p99.5, and the last bar holds what lies beyond."""
    table = number_table("prompt tokens", "", "output tokens", "")
    for left, right in zip(_bars(plan.prompt_tokens), _bars(plan.output_tokens), strict=True):
        table.add_row(*left, *right)
    for column in (1, 3):
        table.columns[column].justify = "left"
    return table


def _bars(tokens: IntColumn) -> list[tuple[str, str]]:
    """(range of lengths, bar) per row, HISTOGRAM_ROWS of them; blank rows at the end where lengths are few."""
    low, high = int(tokens.min()), int(np.percentile(tokens, 99.5))
    width = max(1, -(-(high - low + 1) // HISTOGRAM_ROWS))
    row = np.minimum((tokens - low) // width, HISTOGRAM_ROWS - 1)
    counts = np.bincount(row, minlength=HISTOGRAM_ROWS)
    used = int(row.max()) + 1
    bars = []
    for index in range(used):
        first = low + index * width
        last = int(tokens.max()) if index == used - 1 else first + width - 1
        bar = "█" * round(HISTOGRAM_WIDTH * counts[index] / counts.max()) or ("▏" if counts[index] else "")
        bars.append((f"{first:,}" if first == last else f"{first:,} to {last:,}", bar))
    return bars + [("", "")] * (HISTOGRAM_ROWS - used)


def number_table(*headers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index else "left", no_wrap=True)
    return table
