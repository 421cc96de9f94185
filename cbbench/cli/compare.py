"""cbbench compare: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cbbench.cli.options import DEBUG, takes


@takes(DEBUG)
def command(
    runs: Annotated[list[Path], typer.Argument(metavar="A B", help="Folders of two or more runs.")],
    **given: Any,
) -> int:
    """Show two or more runs side by side."""
    from cbbench.experiment.report import compare

    return compare(runs)
