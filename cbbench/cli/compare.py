"""cbbench compare: runs side by side, or two settings measured in turns."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from cbbench.cli import run
from cbbench.cli.options import DEBUG, complete, takes


@takes(DEBUG)
def command(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="A B", help="Folders of two or more runs, or result files.")
    ] = None,
    ab: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--ab",
            metavar="CONFIG CONFIG",
            help="Instead of runs: measure two settings in turns, A B B A, and test the difference. A CONFIG is the "
            "flags of one cbbench run, in quotes.",
        ),
    ] = None,
    aa: Annotated[
        str | None,
        typer.Option(
            "--aa",
            metavar="CONFIG",
            help="Measure one setting against itself: exit code 5 where the machine is unsteady.",
        ),
    ] = None,
    pairs: Annotated[int | None, typer.Option(metavar="N", min=2, help="Pairs of runs to measure. Default: 6.")] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=PCT", help="How much worse B may be, as in tpot=3%; as for cbbench gate."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="New folder for the runs. Default: runs/TIME-ab."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="With --ab and --aa: write JUnit XML.")] = None,
    github: Annotated[
        bool, typer.Option("--github", help="With --ab and --aa: annotate the GitHub job, and add to its step summary.")
    ] = False,
    benchmark_json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --ab and --aa: write the runs of B for github-action-benchmark."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="With --ab and --aa: print only JSON on stdout.")] = False,
    **given: Any,
) -> int:
    """Show runs side by side: settings, work, every change, and the requests that changed most."""
    from workloads.errors import CbbenchError

    if sum(one is not None for one in (runs or None, ab, aa)) != 1:
        raise CbbenchError(None, "compare takes two or more runs, or --ab with two CONFIGs, or --aa with one")
    if runs:
        from cbbench.experiment.compare import compare

        if pairs or budget or output or json or junit or github or benchmark_json:
            raise CbbenchError(
                None,
                "--pairs, --budget, --output, --junit, --github, --benchmark-json and --json belong to --ab and --aa; "
                "stored runs are judged by cbbench gate",
            )
        return compare(runs)

    from cbbench.experiment.ab import Series, measure_series
    from cbbench.experiment.judge_runs import Outputs

    configs = [settings_of(text) for text in ab or (aa or "",)]
    series = Series(configs[0], configs[-1], pairs=pairs or 6, budget=tuple(budget or ()), same=ab is None)
    return measure_series(series, output, Outputs(junit=junit, github=github, benchmark_json=benchmark_json, json=json))


def settings_of(text: str) -> dict[str, Any]:
    """The settings of a CONFIG, by field name, read as `cbbench run` would read them."""
    from workloads.errors import CbbenchError

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CbbenchError(None, f"CONFIG: {str(error).lower()}; its flags are quoted as in a shell") from None
    app = typer.Typer(add_completion=False)
    app.command()(complete(run.command))
    context = typer.main.get_command(app).make_context("CONFIG", words)
    given = {name: value for name, value in context.params.items() if value is not None and value != ()}
    for name in ("percentiles", "until_decided", "max_requests", "max_duration"):  # what `run` has beside settings
        if name in given:
            raise CbbenchError(name, "does not belong into a CONFIG of cbbench compare")
    return given
