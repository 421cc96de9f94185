"""cbbench report: show a finished run or sweep again, or rebuild what a crash left unfinished."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cbbench.cli.options import DEBUG, takes


@takes(DEBUG)
def command(
    folder: Annotated[Path, typer.Argument(metavar="RUN|SWEEP", help="Folder of a run or of a sweep.")],
    json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show who sat in which seat at which step. Default: off.")
    ] = False,
    **given: Any,
) -> int:
    """Show a run or a sweep; of a run that was killed, rebuild run.json from the raw files first."""
    from cbbench.experiment.report import report

    return report(folder, json=json, timeline=timeline)
