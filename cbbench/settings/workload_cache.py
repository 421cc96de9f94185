"""Workloads that were opened: a file is read once, as long as it is the same file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from workloads.spec import Workload, open_workload


def opened_workload(spec: str) -> Workload:
    """The workload that SPEC means. CbbenchError as from `open_workload`."""
    try:
        path = Path(spec.strip()).resolve()
        found = path.stat()
        version = (str(path), found.st_mtime_ns, found.st_size)
    except (OSError, ValueError):  # not a file
        version = None
    return _opened(spec, version)


@lru_cache(maxsize=4)
def _opened(spec: str, version: tuple[str, int, int] | None) -> Workload:
    return open_workload(spec)
