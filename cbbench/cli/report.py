"""cbbench report: show a finished run or sweep again, make a file of it, or rebuild what a crash left unfinished."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cbbench.cli.options import DEBUG, takes
from cbbench.cli.percentiles import PERCENTILES, read_percentiles


@takes(DEBUG)
def command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|SWEEP [RUN]",
            help="Folder of a run or of a sweep, or another tool's result file; or of two runs.",
        ),
    ],
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="WORD,...",
            help="Instead of the view in the terminal: html (one file, offline, with charts), md (for a pull request), "
            "csv (the requests of a run, the points of a sweep), png or svg (a picture per chart), vllm-json (a run as "
            "vllm bench serve would have written it).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File for one of html, md, csv and vllm-json, - for stdout; folder for several, and for png and svg, "
            "unless it ends in .png or .svg: then it is the first chart alone. Default: the folder of the run or "
            "sweep, for two runs report-A-B here; stdout for md, csv or vllm-json alone.",
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Title of the page, with html and md. Default: what ran where, or what a sweep varied."
        ),
    ] = None,
    no_charts: Annotated[
        bool,
        typer.Option(
            "--no-charts",
            help="An html page without charts, for which it takes no extra and a fortieth of the size; a sweep in the "
            "terminal without curves. Default: with.",
        ),
    ] = False,
    percentiles: Annotated[str | None, PERCENTILES] = None,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show which request had which slot at which step. Default: off.")
    ] = False,
    **given: Any,
) -> int:
    """Show a run, a sweep or two runs; of a run that was killed, rebuild run.json from the raw files first."""
    from cbbench.experiment.export import Wanted, export
    from cbbench.experiment.report import report
    from workloads.errors import CbbenchError

    asked = read_percentiles(percentiles)
    if formats is not None:
        wanted = Wanted(asked, title, not no_charts)
        return export(folders, formats, output, terminal_only=json or timeline, wanted=wanted)
    if title is not None:
        raise CbbenchError("title", "needs --format html or md")
    return report(folders, output, json=json, timeline=timeline, asked=asked, charts=not no_charts)
