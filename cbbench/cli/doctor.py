"""cbbench doctor: what this machine can run, what is missing, and the command that installs it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cbbench.cli.options import DEBUG, takes


@takes(DEBUG)
def command(
    json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    **given: Any,
) -> int:
    """Show what this machine can run and what is missing; exit code 0 if cbbench's own engine runs here, else 2."""
    from cbbench.experiment.doctor import doctor

    return doctor(json=json)
