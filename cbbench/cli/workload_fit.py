"""cbbench workload fit and compare."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cbbench.cli.printing import print_json, print_lines


class Lengths(StrEnum):
    grid = "grid"
    distributions = "distributions"


AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]


def fit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of requests, as of --workload.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The preset file, NAME.preset.json. Default: named after FILE, here."),
    ] = None,
    lengths: Annotated[
        Lengths | None,
        typer.Option(
            help="grid: quantiles of outputs by prompt; distributions: for each side the likeliest of lognormal "
            "mixture, gamma and Weibull. Default: grid from 512 requests on."
        ),
    ] = None,
    picture: Annotated[bool, typer.Option(help="Draw file and fit into NAME.svg.")] = True,
    as_json: AsJson = False,
) -> None:
    """Make a preset of a file, without any of its requests: a --workload to give away."""
    from cbbench.experiment.workload_fit import fit_file, fit_lines, fit_numbers

    fitted, written = fit_file(file, output, None if lengths is None else lengths.value, picture)
    if as_json:
        print_json(fit_numbers(fitted, written))
    else:
        print_lines(*fit_lines(fitted, written))


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A workload: a preset, distributions or a file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    count: Annotated[int, typer.Option("--count", "-n", min=2, max=100_000, help="Requests of each.")] = 640,
    slots: Annotated[int, typer.Option("--max-num-seqs", min=1, max=1024, help="Slots of the simulated engine.")] = 32,
    as_json: AsJson = False,
) -> None:
    """How two workloads differ, and what that does to the gain of continuous batching."""
    from cbbench.experiment.workload_compare import comparison, comparison_view

    compared = comparison((a, b), count, slots)
    if as_json:
        print_json(compared)
    else:
        print_lines(*comparison_view(compared))
