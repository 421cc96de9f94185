"""A run in the terminal: the verdict first, then throughput, latencies, and where the launched work went."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from reports.schema import RunFile


def run_view(run: RunFile) -> RenderableType:
    """One finished run."""
    raise NotImplementedError


def side_by_side(runs: Sequence[RunFile], labels: Sequence[str] | None = None) -> RenderableType:
    """Runs of one plan in columns; the last column is the last run over the first. Labels default to the modes."""
    raise NotImplementedError
