"""A sweep in the terminal: table, curves, recommendation."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from reports.schema import SweepFile


def sweep_table(sweep: SweepFile) -> Table:
    """One row per point; the recommended one is marked."""
    raise NotImplementedError


def sweep_view(sweep: SweepFile, *, width: int = 100) -> RenderableType:
    """The table, throughput against P99 TTFT and P99 TPOT, and the recommendation with its reason."""
    raise NotImplementedError
