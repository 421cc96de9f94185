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
    """None where none were given. CbbenchError for a text that does not list percentiles."""
    if text is None:
        return None
    from reports.percentiles import parse_percentiles

    return parse_percentiles(text)
