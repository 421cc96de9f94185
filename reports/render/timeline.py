"""The slot timeline: who sat in which seat in which step, and when it was empty."""

from __future__ import annotations

from rich.console import RenderableType

from engines.base import RunRecord
from reports.schema import RunFile


def timeline(
    record: RunRecord, run: RunFile, *, width: int = 100, until_step: int | None = None, max_slots: int = 16
) -> RenderableType:
    """A Gantt chart of slots over steps, with a legend and the sentence that sums it up."""
    raise NotImplementedError
