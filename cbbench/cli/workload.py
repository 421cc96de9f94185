"""cbbench workload: look at workloads. NumPy and Rich load inside the commands, so that help is instant."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbbench.cli import workload_fit
from cbbench.cli.printing import print_json, print_lines

if TYPE_CHECKING:
    from workloads.plan import RequestPlan
    from workloads.prompt_texts import PromptTexts

SHOWN_CHARACTERS = 50  # of a prompt

app = typer.Typer(help="List, describe, sample, fit and compare workloads.", no_args_is_help=True)


class Format(StrEnum):
    table = "table"
    csv = "csv"
    jsonl = "jsonl"


Spec = Annotated[str, typer.Argument(help="A preset, 'prompt=DIST;output=DIST', or a file of lengths or prompts.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the draws.")]
Context = Annotated[int | None, typer.Option(min=2, help="Draw again what needs more tokens, prompt + output.")]
Column = Annotated[
    list[str] | None,
    typer.Option("--column", help="Of a file: the column of a part, as in prompt=NAME; repeat for more."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]


@app.command("list")
def list_presets(as_json: AsJson = False) -> None:
    """The presets: what they are and where they come from."""
    from cbbench.experiment.workload_description import presets

    rows = presets()
    if as_json:
        print_json(rows)
        return
    for row in rows:
        prompt, output = row["mean"].values()
        facts = [f"{prompt:,.0f} in and {output:,.0f} out on average", "own arrivals" * row["arrivals"], row["licence"]]
        print_lines(f"{row['name']:23}{'; '.join(filter(None, facts))}", f"{'':23}{row['description']}")


@app.command("describe")
def describe(
    spec: Spec,
    pairs: Annotated[
        int, typer.Option("--pairs", "-n", min=1, help="Pairs to draw; a file is always taken whole.")
    ] = 10_000,
    seed: Seed = 0,
    max_model_len: Context = None,
    column: Column = None,
    as_json: AsJson = False,
) -> None:
    """Where a workload comes from, and a sample's percentiles beside its own."""
    from cbbench.experiment.workload_description import description
    from cbbench.experiment.workload_view import description_view
    from cbbench.settings.build import value_of
    from cbbench.settings.run import RunSettings
    from workloads.length_pairs import ListedLengths
    from workloads.spec import open_workload
    from workloads.workload_files import Reading

    workload = open_workload(spec, Reading(value_of(RunSettings.all()["column"], column or [])))
    count = len(workload.lengths) if isinstance(workload.lengths, ListedLengths) else pairs
    plan = workload.plan(num_requests=count, seed=seed, arrival="constant", max_model_len=max_model_len)
    described = description(workload, plan, max_model_len)
    if as_json:
        print_json(described)
    else:
        print_lines(*description_view(workload, plan, described))


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

    from workloads.errors import CbbenchError
    from workloads.spec import build_plan

    plan = build_plan(spec, num_requests=count, seed=seed, arrival="constant", max_model_len=max_model_len)
    if plan.texts is not None and form is Format.csv:
        raise CbbenchError("format", f"csv holds lengths, and {spec} has prompts; use jsonl")
    rows = _rows(plan, shorten=form is Format.table)
    if form is Format.table:
        from cbbench.experiment.workload_view import number_table

        table = number_table("request", *rows[0])
        for index, row in enumerate(rows):
            table.add_row(str(index), *(str(value) for value in row.values()))
        print_lines(table)
    elif form is Format.csv:
        _print_csv(rows)
    else:
        for row in rows:
            typer.echo(json.dumps(row))


app.command("fit")(workload_fit.fit)
app.command("compare")(workload_fit.compare)


def _rows(plan: RequestPlan, *, shorten: bool) -> list[dict[str, Any]]:
    """The requests as rows of a workload file; tenant and priority only if some differ from the default."""
    columns: dict[str, list[Any]] = {"output_tokens": plan.output_tokens.tolist()}
    if plan.texts is None:
        columns = {"prompt_tokens": plan.prompt_tokens.tolist()} | columns
    if plan.tenants != ("default",):
        columns["tenant"] = [plan.tenants[index] for index in plan.tenant]
    if plan.priority.any():
        columns["priority"] = plan.priority.tolist()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows if plan.texts is None else [_said(plan.texts, at, shorten=shorten) | row for at, row in enumerate(rows)]


def _said(texts: PromptTexts, index: int, *, shorten: bool) -> dict[str, Any]:
    """The content of a request as in a file; or shortened and under one name, as in a table."""
    content = texts.content(index)
    if not shorten:
        return {"prompt": content} if isinstance(content, str) else {"messages": content}
    said = content if isinstance(content, str) else f"{len(content)} messages: {content[-1].get('content')}"
    words = " ".join("".join(one if one.isprintable() else " " for one in said).split())  # for a terminal
    return {"prompt": words if len(words) <= SHOWN_CHARACTERS else words[: SHOWN_CHARACTERS - 1] + "…"}


def _print_csv(rows: list[dict[str, Any]]) -> None:
    import csv
    import sys

    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
