"""cbbench workload: look at workloads. NumPy and Rich load inside the commands, so that help is instant."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from workloads.plan import IntColumn, RequestPlan
    from workloads.spec import Workload
    from workloads.texts import Texts

HISTOGRAM_ROWS = 12
HISTOGRAM_WIDTH = 20
SHOWN_CHARACTERS = 50  # of a prompt

app = typer.Typer(help="List, describe and sample workloads.", no_args_is_help=True)


class Format(StrEnum):
    table = "table"
    csv = "csv"
    jsonl = "jsonl"


Spec = Annotated[str, typer.Argument(help="A preset, 'prompt=LAW;output=LAW', or a file of lengths or prompts.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the draws.")]
Context = Annotated[int | None, typer.Option(min=2, help="Draw again what needs more tokens, prompt + output.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]


@app.command("list")
def list_presets(as_json: AsJson = False) -> None:
    """The presets: what they are and where they come from."""
    from workloads.presets import PRESETS
    from workloads.spec import open_workload

    rows: list[dict[str, Any]] = []
    for name in PRESETS:
        workload = open_workload(name)
        own = _own(workload)
        means = {side: own[side]["mean"] for side in ("prompt_tokens", "output_tokens")}
        rows.append({"name": name, "mean": means, "suggests": workload.suggests, "arrivals": workload.gaps is not None})
        rows[-1] |= {"description": "", "licence": ""} | workload.notes
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        prompt, output = row["mean"].values()
        facts = [f"{prompt:,.0f} in and {output:,.0f} out on average", "own arrivals" * row["arrivals"], row["licence"]]
        _print(f"{row['name']:12}{'; '.join(filter(None, facts))}", f"{'':12}{row['description']}")


@app.command("describe")
def describe(
    spec: Spec,
    pairs: Annotated[
        int, typer.Option("--pairs", "-n", min=1, help="Pairs to draw; a file is always taken whole.")
    ] = 10_000,
    seed: Seed = 0,
    max_model_len: Context = None,
    as_json: AsJson = False,
) -> None:
    """Where a workload comes from, and a sample's percentiles beside its own."""
    from workloads.pairs import Listed
    from workloads.spec import open_workload

    workload = open_workload(spec)
    count = len(workload.pairs) if isinstance(workload.pairs, Listed) else pairs
    plan = workload.plan(num_requests=count, seed=seed, arrival="constant", max_model_len=max_model_len)
    own = _own(workload)
    sample = {"pairs": count, "seed": seed, "max_model_len": max_model_len, "outside_context": plan.outside_context}
    sample |= _numbers(plan.prompt_tokens, plan.output_tokens)
    if as_json:
        about = {"spec": workload.spec, "kind": workload.kind, "notes": workload.notes, "suggests": workload.suggests}
        _print_json(about | {"arrivals": _arrivals(workload), "own": own, "sample": sample})
        return
    _print_provenance(workload)
    _print(_comparison(own, sample), *_remarks(own, sample))
    _print("", _histograms(plan))


@app.command("sample")
def sample(
    spec: Spec,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Requests to show.")] = 10,
    seed: Seed = 0,
    max_model_len: Context = None,
    form: Annotated[
        Format, typer.Option("--format", help="csv and jsonl are workload files themselves.")
    ] = Format.table,
) -> None:
    """The first requests of a plan."""
    import json

    from workloads.errors import WorkloadError
    from workloads.spec import build_plan

    plan = build_plan(spec, num_requests=count, seed=seed, arrival="constant", max_model_len=max_model_len)
    if plan.texts is not None and form is Format.csv:
        raise WorkloadError(f"--format csv: a CSV has lengths, and {spec} has prompts; jsonl holds them")
    rows = _rows(plan, shorten=form is Format.table)
    if form is Format.table:
        table = _table("request", *rows[0])
        for index, row in enumerate(rows):
            table.add_row(str(index), *(str(value) for value in row.values()))
        _print(table)
    elif form is Format.csv:
        _print_csv(rows)
    else:
        for row in rows:
            typer.echo(json.dumps(row))


def _rows(plan: RequestPlan, *, shorten: bool) -> list[dict[str, Any]]:
    """The requests as rows of a workload file; tenant and priority only where they say something."""
    columns: dict[str, list[Any]] = {"output_tokens": plan.output_tokens.tolist()}
    if plan.texts is None:
        columns = {"prompt_tokens": plan.prompt_tokens.tolist()} | columns
    if plan.tenants != ("default",):
        columns["tenant"] = [plan.tenants[index] for index in plan.tenant]
    if plan.priority.any():
        columns["priority"] = plan.priority.tolist()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows if plan.texts is None else [_said(plan.texts, at, shorten=shorten) | row for at, row in enumerate(rows)]


def _said(texts: Texts, index: int, *, shorten: bool) -> dict[str, Any]:
    """What a request says, as a file has it; or in few words under one name, as a table has it."""
    content = texts.content(index)
    if not shorten:
        return {"prompt": content} if isinstance(content, str) else {"messages": content}
    said = content if isinstance(content, str) else f"{len(content)} messages: {content[-1].get('content')}"
    words = " ".join("".join(one if one.isprintable() else " " for one in said).split())  # for a terminal
    return {"prompt": words if len(words) <= SHOWN_CHARACTERS else words[: SHOWN_CHARACTERS - 1] + "…"}


def _own(workload: Workload) -> dict[str, Any]:
    """The workload's own numbers: those of the trace behind a preset, of the two laws, or of all rows."""
    from workloads.pairs import Listed, TwoLaws

    pairs, preset = workload.pairs, workload.preset
    if preset is not None and preset.own is not None:
        own = preset.own
        numbers: dict[str, Any] = {"prompt_tokens": own.prompt_tokens, "output_tokens": own.output_tokens}
        return numbers | {"correlation": own.correlation, "max_over_mean": own.max_over_mean}
    if isinstance(pairs, Listed):
        return _numbers(pairs.prompt_tokens, pairs.output_tokens)
    assert isinstance(pairs, TwoLaws)
    independent = {"pearson": 0.0, "spearman": 0.0}
    return _numbers(pairs.prompt.grid, pairs.output.grid) | {"correlation": independent}


def _numbers(prompt_tokens: IntColumn, output_tokens: IntColumn) -> dict[str, Any]:
    from workloads.statistics import BATCHES, correlation, max_over_mean, percentiles

    return {
        "prompt_tokens": percentiles(prompt_tokens),
        "output_tokens": percentiles(output_tokens),
        "correlation": correlation(prompt_tokens, output_tokens),
        "max_over_mean": {str(batch): max_over_mean(output_tokens, batch) for batch in BATCHES},
    }


def _comparison(own: dict[str, Any], sample: dict[str, Any]) -> Table:
    table = _table("", "prompt: own", "sample", "output: own", "sample")
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


def _print_provenance(workload: Workload) -> None:
    lines = [f"{workload.spec} ({workload.kind})"]
    lines += [f"  {key}: {text}" for key, text in workload.notes.items()]
    if workload.preset is not None and workload.preset.origin is not None:
        lines += [f"  made by: {step}" for step in workload.preset.origin.transformations]
    if workload.suggests:
        lines.append("  suggests: " + ", ".join(f"{key} = {value}" for key, value in workload.suggests.items()))
    if workload.trace is not None and workload.trace.counted_by == "server":
        lines.append(
            f"  prompts: {len(workload.trace.listed):,}, sent as text. Their lengths here are guesses, a token for 4 "
            "bytes; a run takes those of the model's tokenizer or of the server"
        )
    if arrivals := _arrivals(workload):
        rate, cv = arrivals["rate_per_s"], arrivals["gap_cv"]
        lines.append(
            f"  arrivals: {rate:.3g} requests/s, CV of the gaps {cv:.2f} (1: Poisson); --arrival trace keeps them"
        )
    _print(*lines, "")


def _arrivals(workload: Workload) -> dict[str, float] | None:
    """Mean rate and coefficient of variation of the workload's own gaps; None where it has none."""
    gaps = workload.gaps
    return {"rate_per_s": gaps.rate_per_s, "gap_cv": gaps.cv} if gaps is not None and gaps.rate_per_s else None


def _histograms(plan: RequestPlan) -> Table:
    """Two bar charts side by side; both stop at their own p99.5, and the last bar holds what lies beyond."""
    table = _table("prompt tokens", "", "output tokens", "")
    for left, right in zip(_bars(plan.prompt_tokens), _bars(plan.output_tokens), strict=True):
        table.add_row(*left, *right)
    for column in (1, 3):
        table.columns[column].justify = "left"
    return table


def _bars(tokens: IntColumn) -> list[tuple[str, str]]:
    """(range of lengths, bar) per row, HISTOGRAM_ROWS of them; blank rows at the end where lengths are few."""
    import numpy as np

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


def _table(*headers: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, header in enumerate(headers):
        table.add_column(header, justify="right" if index else "left", no_wrap=True)
    return table


def _print(*lines: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))


def _print_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _print_csv(rows: list[dict[str, Any]]) -> None:
    import csv
    import sys

    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
