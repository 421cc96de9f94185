"""Runs side by side: their metrics, their tenants and priorities, and in detail what changed between two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from engines.request_table import RequestRow
from reports.devices import note_of_runs
from reports.percentiles import Percentiles
from reports.record_differences import Changed, most_changed, took_ns
from reports.regression import Measured
from reports.render.breakdown import waste_sentence
from reports.render.checks import change_text
from reports.render.formatting import MISSING, number
from reports.render.table import Table
from reports.scenarios import ComparedRuns, setting_differences
from reports.schema import RunFile
from reports.summary_schema import Group as GroupSummary
from reports.summary_schema import Summary

DIFFERENT_WORK = "Different work: the workload hashes differ, so the numbers cannot be compared."
DIFFERENT_PROMPTS = "The prompts have the same lengths but different texts."
Reader = Callable[[Summary], float | None]


def _waste(name: str) -> Reader:
    return lambda one: None if one.waste is None else float(getattr(one.waste, name))


SPEED: tuple[tuple[str, Reader], ...] = (
    ("output tok/s", lambda one: one.throughput.output_token_per_s),
    ("output tok/s, steady", lambda one: one.throughput.steady.output_token_per_s if one.throughput.steady else None),
    ("arrived requests/s", lambda one: one.throughput.arrivals_per_s),
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
    """(title, a number per run), without the rows in which every number is missing or 0.

    chosen: the percentiles of these runs to show in place of the usual ones.
    """

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
    """A column for each run and one with the ratio of the last run to the first; then a sentence for each run on its
    wasted slots and tokens. Labels default to the modes. chosen: percentiles in place of the usual ones.

    ValueError without at least two runs, or when one has no summary.
    """
    if len(runs) < 2:
        raise ValueError("side_by_side needs at least two runs")
    if any(run.summary is None for run in runs):
        raise ValueError("a run has no summary; rebuild it first")
    names = list(labels) if labels is not None else [run.engine.mode or run.engine.name for run in runs]
    summaries = [run.summary for run in runs if run.summary is not None]
    parts: list[RenderableType] = []
    hashes = {run.workload.sha256 for run in runs}
    if "" in hashes:
        parts.append(
            Text(
                "Result files of other tools do not say which requests were sent: make sure that it was the same work.",
                "bold yellow",
            )
        )
    elif len(hashes) > 1:
        parts.append(Text(DIFFERENT_WORK, "bold red"))
    elif len({run.workload.prompts_sha256 for run in runs}) > 1:
        parts.append(Text(DIFFERENT_PROMPTS, "bold yellow"))
    if (note := note_of_runs([run.engine for run in runs])) is not None:
        parts.append(Text(note, "yellow"))
    parts += [
        Text(f"{name}: {run.engine.prediction}", "yellow")
        for name, run in zip(names, runs, strict=True)
        if run.engine.prediction
    ]
    parts += [_metric_table(names, rows_of(summaries, chosen)), *compared_groups(names, runs), Text()]
    parts += [
        Text(f"{name}: {sentence}")
        for name, one in zip(names, summaries, strict=True)
        if one.waste is not None and (sentence := waste_sentence(one.waste))
    ]
    return Group(*parts)


def _metric_table(names: Sequence[str], rows: Sequence[tuple[str, list[float | None]]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for name in [*names, f"{names[-1]} / {names[0]}"]:
        table.add_column(name, justify="right")
    for title, values in rows:
        first, last = values[0], values[-1]
        ratio = f"{last / first:.2f}x" if first and last is not None else MISSING
        table.add_row(title, *map(number, values), ratio)
    return table


def compared_groups(names: Sequence[str], runs: Sequence[RunFile]) -> list[RenderableType]:
    """A table for tenants and one for priorities, with a section for each that all runs have. names: of the runs."""
    summaries = [run.summary for run in runs if run.summary is not None]
    opened = [run.workload.pacing.open_loop for run in runs]
    views: list[RenderableType] = []
    for word, splits in (
        ("tenant", [one.by_tenant for one in summaries]),
        ("priority", [one.by_priority for one in summaries]),
    ):
        shared = [label for label in splits[0] if all(label in one for one in splits)]
        if shared:
            views += [Text(), _group_table(word, names, shared, splits, opened)]
    if not views:
        return []
    start = "; TTFT from the scheduled time" if any(opened) else ""
    return [*views, Text(f"Times in ms{start}; the wait is for a first slot.", "dim")]


def _group_table(
    word: str,
    names: Sequence[str],
    labels: Sequence[str],
    splits: Sequence[Mapping[str, GroupSummary]],
    opened: Sequence[bool],
) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"by {word}")
    for name in [*names, f"{names[-1]} / {names[0]}"]:
        table.add_column(Text(name), justify="right")
    for label in labels:
        table.add_row(Text(f"{word} {label}", "bold"))
        cells = [_group_cells(split[label], one) for split, one in zip(splits, opened, strict=True)]
        for title in cells[0]:
            values = [one[title] for one in cells]
            first, last = values[0], values[-1]
            ratio = f"{last / first:.2f}x" if first and last is not None else MISSING
            table.add_row(f"  {title}", *map(number, values), ratio)
    return table


def _group_cells(one: GroupSummary, opened: bool) -> dict[str, float | None]:
    ttft = one.latency.ttft_sched_ms if opened else one.latency.ttft_ms
    return {
        "requests": one.requests,
        "TTFT P50": ttft.p50,
        "TTFT P99": ttft.p99,
        "TPOT P99": one.latency.tpot_ms.p99,
        "longest wait": one.max_wait_ms,
        "output tok/s": one.output_token_per_s,
    }


ENVIRONMENT_FIELDS = ("cpu", "cores", "platform", "cbbench", "git_commit", "torch", "numpy")  # of the environment


def changes_view(pair: ComparedRuns, measured: Sequence[Measured], names: tuple[str, str]) -> RenderableType:
    """The settings that differ, the metrics, and the requests that changed most. Of different work the settings alone;
    where the work is unknown (a file of another tool), the settings and the metrics."""
    parts: list[RenderableType] = [Text(), _changed_settings(pair)]
    if pair.differences and not pair.unsaid:
        return Group(*parts)
    parts += [Text(), _changed_metrics(measured, names)]
    if pair.unsaid or pair.baseline.record is None or pair.candidate.record is None:
        return Group(*parts)
    if changed := most_changed(pair.baseline.record, pair.candidate.record):
        parts += [Text(), Text("Requests that changed most", "bold"), _changed_requests(changed)]
    return Group(*parts)


def _changed_settings(pair: ComparedRuns) -> Text:
    before, after = pair.baseline.run, pair.candidate.run
    lines = (
        ("settings", setting_differences(_engine_settings(before), _engine_settings(after))),
        ("machine and versions", setting_differences(*({name: run.environment.get(name) for name in ENVIRONMENT_FIELDS}
                                                       for run in (before, after)))),
        ("work", [pair.differences] if pair.differences else []),
    )  # fmt: skip
    text = Text()
    for name, found in lines:
        text.append(f"{name}: ", "bold").append(("; ".join(found) or "the same") + "\n")
    text.rstrip()
    return text


def _engine_settings(run: RunFile) -> dict[str, object]:
    """Settings by name; without the numbers of a step-time model, whose label is among them."""
    fields = {name: value for name, value in msgspec.structs.asdict(run.engine).items() if name != "config"}
    return fields | {name: value for name, value in run.engine.settings.items() if name != "law"}


def _changed_metrics(measured: Sequence[Measured], names: tuple[str, str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for at, name in enumerate(("metric", *names, "change (95 % interval of these requests)")):
        table.add_column(name, justify="left" if at == 0 else "right", no_wrap=True)
    for one in measured:
        interval = one.spread.interval(0.05) if one.spread is not None else None
        check = one.check("", "regression", "pass", "", "", interval)
        table.add_row(one.budget.name, number(one.before), number(one.after), change_text(check))
    return table


def _changed_requests(changed: Sequence[Changed]) -> Table:
    table = Table(spare=[-1, -2], box=None, header_style="bold", pad_edge=False)
    for name in ("request", "prompt", "output", "TTFT, ms", "E2EL, ms", "preempted", "end"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in changed:
        before, after = one.before, one.after
        table.add_row(
            str(before.i),
            str(before.prompt_tokens),
            _both(str(before.output_tokens), str(after.output_tokens)),
            _both(number(_ttft_ms(before)), number(_ttft_ms(after))),
            _both(number(took_ns(before) / 1e6), number(took_ns(after) / 1e6)),
            _both(str(before.preemptions), str(after.preemptions)),
            _both(before.finish_reason or MISSING, after.finish_reason or MISSING),
        )
    return table


def _both(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _ttft_ms(row: RequestRow) -> float | None:
    return None if row.first is None else (row.first - row.scheduled) / 1e6
