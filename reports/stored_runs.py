"""Finished runs, judged again from their raw files, which stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engines.base import RunRecord
from reports.folder import RUN, load, read_run
from reports.schema import RunFile
from reports.sla import Sla, expressions
from reports.summary import completed_run
from workloads.errors import CbbenchError


@dataclass(frozen=True, eq=False)
class StoredRun:
    name: str  # as it was given
    run: RunFile  # with summary and verdicts
    record: RunRecord | None  # None: another tool's file, which has no single requests
    notes: tuple[str, ...] = ()  # what the files do not show
    failures_known: bool = True  # False: the file does not say how many requests failed


@dataclass(frozen=True)
class Judgement:
    """SLAs and confidence that replace a run's own; None keeps them."""

    sla: tuple[Sla, ...] | None = None
    confidence: float | None = None


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The folders and files of runs. A folder of runs stands for all in it, by name. CbbenchError where there is
    none."""
    found: list[Path] = []
    for path in paths:
        if path.is_file() or (path / RUN).exists():
            found.append(path)
            continue
        inside = sorted(one.parent for one in path.glob(f"*/{RUN}"))
        if not inside:
            raise CbbenchError(None, f"{path}: no run in it" if path.is_dir() else f"{path}: no such run")
        found += inside
    return found


def read_stored(folder: Path, judgement: Judgement) -> StoredRun:
    """One run folder, judged again. CbbenchError where there is none."""
    header = read_run(folder)
    criteria = header.criteria
    if judgement.sla is not None:
        criteria = msgspec.structs.replace(criteria, sla=expressions(judgement.sla))
    if judgement.confidence is not None:
        criteria = msgspec.structs.replace(criteria, confidence=judgement.confidence)
    record, notes = load(folder)
    run = completed_run(record, msgspec.structs.replace(header, criteria=criteria), notes)
    return StoredRun(str(folder), run, record, tuple(f"{folder}: {note}" for note in notes))
