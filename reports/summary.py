"""From a RunRecord to the numbers of run.json."""

from __future__ import annotations

from collections.abc import Sequence

from engines.base import RunRecord
from reports.schema import RunFile, Summary


def summarize(record: RunRecord, header: RunFile) -> Summary:
    """The summary of DESIGN §8. ValueError for a bad SLA expression in header.criteria."""
    raise NotImplementedError


def completed_run(record: RunRecord, header: RunFile, notes: Sequence[str] = ()) -> RunFile:
    """The header with summary, SLA verdicts, validity and definitions filled in."""
    raise NotImplementedError
