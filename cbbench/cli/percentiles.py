"""--percentiles of `run` and `report`: what of a result is shown, which changes no measurement."""

from __future__ import annotations

from collections.abc import Sequence

import typer

PERCENTILES = typer.Option(
    "--percentiles",
    metavar="P,P,...",
    help="Percentiles of the latencies to show, as in 50,90,99,99.9. Those in run.json stay as they are; with --json "
    "these are printed under a key of their own. Default: 50,90,99.",
    rich_help_panel="Output",
)


def read_percentiles(text: str | None) -> Sequence[float] | None:
    """UsageError for what are no percentiles; None where nobody asked."""
    if text is None:
        return None
    from cbbench.config import UsageError
    from reports.percentiles import parse_percentiles

    try:
        return parse_percentiles(text)
    except ValueError as error:
        raise UsageError(f"--percentiles: {error}") from None
