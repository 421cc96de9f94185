"""Workloads that were opened: a file is read once, as long as it is the same file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from cbbench.settings.workload import WorkloadSettings
from workloads.selection import Selection
from workloads.spec import Workload, open_workload
from workloads.workload_files import Reading

Version = tuple[str, int, int]


def opened_workload(settings: WorkloadSettings) -> Workload:
    """The workload that is asked for, and of a file the rows that are. CbbenchError as from `open_workload`."""
    try:
        path = Path(settings.spec.strip()).resolve()
        found = path.stat()
        version = (str(path), found.st_mtime_ns, found.st_size)
    except (OSError, ValueError):  # not a file
        version = None
    how = Reading(settings.column, settings.time_unit)
    selection = Selection(settings.window, settings.sample, settings.thin)
    if not selection:
        return _opened(settings.spec, version, how)
    return _taken(settings.spec, version, how, selection, settings.seed)


@lru_cache(maxsize=4)
def _opened(spec: str, version: Version | None, how: Reading) -> Workload:
    return open_workload(spec, how)


@lru_cache(maxsize=4)
def _taken(spec: str, version: Version | None, how: Reading, selection: Selection, seed: int) -> Workload:
    return _opened(spec, version, how).taken(selection, seed)
