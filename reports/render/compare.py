"""Runs of one plan beside each other, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from reports.percentiles import Percentiles
from reports.render.compared_groups import compared_groups
from reports.render.fitting import Table
from reports.render.words import MISSING, number
from reports.schema import RunFile
from reports.summary_schema import Summary, Waste

DIFFERENT_WORK = "These runs did different work (workload hashes differ): do not compare them."
DIFFERENT_PROMPTS = "These prompts have the same lengths, but say different things."
Reader = Callable[[Summary], float | None]


def _waste(name: str) -> Reader:
    return lambda one: None if one.waste is None else float(getattr(one.waste, name))


SPEED: tuple[tuple[str, Reader], ...] = (
    ("output tok/s", lambda one: one.throughput.output_token_per_s),
    ("output tok/s, steady", lambda one: one.throughput.steady.output_token_per_s if one.throughput.steady else None),
    ("requests/s", lambda one: one.throughput.request_per_s),
    ("duration, s", lambda one: one.throughput.window_s),
)
LATENCY: tuple[tuple[str, Reader], ...] = (
    ("TTFT P50, ms", lambda one: one.latency.ttft_ms.p50),
    ("TTFT P99, ms", lambda one: one.latency.ttft_ms.p99),
    ("TPOT P50, ms", lambda one: one.latency.tpot_ms.p50),
    ("TPOT P99, ms", lambda one: one.latency.tpot_ms.p99),
    ("ITL P99, ms", lambda one: one.latency.itl_ms.p99),
    ("E2EL P99, ms", lambda one: one.latency.e2el_ms.p99),
)
WORK: tuple[tuple[str, Reader], ...] = (
    ("goodput, requests/s", lambda one: one.goodput.request_per_s),
    ("requests completed", lambda one: one.requests.completed),
    ("steps", lambda one: one.signals.steps),
    ("launched tokens", _waste("launched_tokens")),
    ("  useful", _waste("useful_tokens")),
    ("  prompt padding", _waste("prompt_padding_tokens")),
    ("  dead rows", _waste("dead_row_tokens")),
    ("  recomputed", _waste("recomputed_tokens")),
    ("slot-steps", _waste("slot_steps")),
    ("  active", _waste("active_slot_steps")),
    ("  dead", _waste("dead_slot_steps")),
    ("  idle", _waste("idle_slot_steps")),
)


def rows_of(
    summaries: Sequence[Summary], chosen: Sequence[Percentiles] | None = None
) -> list[tuple[str, list[float | None]]]:
    """(title, a number per run); percentiles are the chosen ones, which are of the same runs. Rows without any number
    that is not 0 are left out."""

    def read(rows: Sequence[tuple[str, Reader]]) -> list[tuple[str, list[float | None]]]:
        return [(title, [of(one) for one in summaries]) for title, of in rows]

    latency = read(LATENCY)
    if chosen is not None:
        latency = [
            (f"{name.removesuffix('_ms').upper()} {percentile.upper()}, ms", [one.values[name][at] for one in chosen])
            for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
            for at, percentile in enumerate(chosen[0].names)
        ]
    return [(title, values) for title, values in (*read(SPEED), *latency, *read(WORK)) if any(values)]


def side_by_side(
    runs: Sequence[RunFile], labels: Sequence[str] | None = None, chosen: Sequence[Percentiles] | None = None
) -> RenderableType:
    """Runs of one plan in columns, the last column being the last run over the first, and a sentence per run that says
    what became of its seats and tokens. Labels default to the modes. `chosen`: in place of the usual percentiles.

    ValueError without at least two runs, or when one has no summary.
    """
    if len(runs) < 2:
        raise ValueError("side by side takes two runs or more")
    if any(run.summary is None for run in runs):
        raise ValueError("a run has no summary; rebuild it first")
    names = list(labels) if labels is not None else [run.engine.mode or run.engine.kind for run in runs]
    summaries = [run.summary for run in runs if run.summary is not None]
    parts: list[RenderableType] = []
    hashes = {run.workload.sha256 for run in runs}
    if "" in hashes:
        parts.append(
            Text("Another tool's file does not say which requests it sent: compare the same work.", "bold yellow")
        )
    elif len(hashes) > 1:
        parts.append(Text(DIFFERENT_WORK, "bold red"))
    elif len({run.workload.prompts_sha256 for run in runs}) > 1:
        parts.append(Text(DIFFERENT_PROMPTS, "bold yellow"))
    parts += [
        Text(f"{name}: {run.engine.prediction}", "yellow")
        for name, run in zip(names, runs, strict=True)
        if run.engine.prediction
    ]
    parts += [_table(names, rows_of(summaries, chosen)), *compared_groups(names, runs), Text()]
    parts += [
        Text(f"{name}: {sentence}")
        for name, one in zip(names, summaries, strict=True)
        if one.waste is not None and (sentence := reason(one.waste))
    ]
    return Group(*parts)


def _table(names: Sequence[str], rows: Sequence[tuple[str, list[float | None]]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for name in [*names, f"{names[-1]} / {names[0]}"]:
        table.add_column(name, justify="right")
    for title, values in rows:
        first, last = values[0], values[-1]
        ratio = f"{last / first:.2f}x" if first and last is not None else MISSING
        table.add_row(title, *map(number, values), ratio)
    return table


def reason(waste: Waste) -> str:
    """Where the seats and the tokens went, in words."""
    if not waste.slot_steps or not waste.launched_tokens:
        return ""
    lost = waste.dead_slot_steps + waste.idle_slot_steps
    parts = [
        f"{count:,} {words}"
        for count, words in (
            (waste.dead_slot_steps, "with a finished request kept in its batch"),
            (waste.idle_slot_steps, "with nobody at work in the seat"),
        )
        if count
    ]
    seats = f"{lost:,} of {waste.slot_steps:,} slot-steps did no work ({lost / waste.slot_steps:.0%})"
    useless = waste.launched_tokens - waste.useful_tokens
    kinds = (
        (waste.dead_row_tokens, "dead rows"),
        (waste.prompt_padding_tokens, "prompt padding"),
        (waste.bucket_padding_tokens, "bucket padding"),
        (waste.recomputed_tokens, "recomputed"),
        (waste.discarded_tokens, "discarded"),
    )
    tokens = (
        f"{useless:,} of {waste.launched_tokens:,} launched tokens were useless ({useless / waste.launched_tokens:.0%})"
    )
    detail = ", ".join(f"{count:,} {name}" for count, name in kinds if count)
    return f"{seats}{': ' + ', '.join(parts) if parts else ''}; {tokens}{': ' + detail if detail else ''}."
