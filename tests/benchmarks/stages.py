"""Stages that do what a stage should not, for the supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from benchmarks.gpu.setting import Row, Skip, Task


def fine(task: Task) -> Iterator[Row]:
    yield "process", {"pid": os.getpid()}
    yield "before", {"number": task.number("first", "cell", "value")}


def first(task: Task) -> Iterator[Row]:
    yield "cell", {"value": 3.5}


def fails(task: Task) -> Iterator[Row]:
    yield "half", {"ok": True}
    raise ValueError("two\nlines")


def skips(task: Task) -> Iterator[Row]:
    raise Skip("not on a Monday")
    yield "never", {}


def lacks_a_package(task: Task) -> Iterator[Row]:
    import no_such_package_as_this  # noqa: F401

    yield "never", {}


def lacks_ours(task: Task) -> Iterator[Row]:
    import engines.no_such_module  # type: ignore[import-not-found]  # noqa: F401

    yield "never", {}


def dies(task: Task) -> Iterator[Row]:
    yield "half", {}
    os._exit(9)


def hangs(task: Task) -> Iterator[Row]:
    yield "half", {}
    time.sleep(60)


def goes_on(task: Task) -> Iterator[Row]:
    for number in range(10**6):
        yield f"row {number}", {}
        time.sleep(0.01)
