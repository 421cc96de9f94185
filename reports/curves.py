"""A sweep: the points of its curve, the setting to choose, and what stops the next step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reports.schema import Point, Recommendation, RunFile, SweepFile, Value


def point_of(value: Value, folder: str, run: RunFile, config_sha256: str = "") -> Point:
    """The point a finished run gives. `folder` is relative to the sweep's."""
    raise NotImplementedError


def recommend(param: str, points: Sequence[Point], sla: Sequence[str] = ()) -> Recommendation:
    """The largest output throughput within the SLA; without one, the smallest value within 5 % of the best."""
    raise NotImplementedError


def write_sweep(folder: Path, sweep: SweepFile) -> None:
    """Write sweep.json at once. FolderError when the disk will not take it."""
    raise NotImplementedError


def read_sweep(folder: Path) -> SweepFile:
    """sweep.json, typed. FolderError if it is missing, broken or of another schema."""
    raise NotImplementedError
