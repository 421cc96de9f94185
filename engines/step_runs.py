"""StepRuns: step numbers of token events, kept as runs of consecutive steps: a few bytes a request, not four a token.

A request that decodes gets a token in every step, so its events are one run; a preemption or a stall begins another.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.columns import IntColumn


class StepRuns:
    """Reads like the uint32 array it stands for: it has a length, a slice of it is an array, and np.asarray() spells
    all of it out."""

    def __init__(self) -> None:
        self._first = array("I")
        self._count = array("H")  # a longer run is written as several
        self._total = 0
        self._ends: IntColumn | None = None  # events up to the end of each run

    def append(self, runs: Iterable[Sequence[int]]) -> None:
        """The events of the next request, as (first step, number of consecutive steps)."""
        for first, count in runs:
            self._total += count
            while count > 0xFFFF:
                self._first.append(first)
                self._count.append(0xFFFF)
                first, count = first + 0xFFFF, count - 0xFFFF
            self._first.append(first)
            self._count.append(count)
        self._ends = None

    @property
    def first(self) -> IntColumn:
        """First step of every run."""
        return np.array(self._first, dtype=np.int64)

    @property
    def count(self) -> IntColumn:
        """Events of every run."""
        return np.array(self._count, dtype=np.int64)

    @property
    def shape(self) -> tuple[int]:
        return (self._total,)

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, part: slice) -> NDArray[np.uint32]:
        """The events begin:end, spelled out."""
        begin, end, stride = part.indices(self._total)
        if begin >= end:
            return np.empty(0, np.uint32)
        if self._ends is None:
            self._ends = np.cumsum(self.count)
        low, high = np.searchsorted(self._ends, (begin, end - 1), side="right").tolist()
        high += 1
        first = np.array(self._first[low:high], dtype=np.int64)
        count = np.array(self._count[low:high], dtype=np.int64)
        before = int(self._ends[low]) - int(count[0])  # events in front of run `low`
        spelled = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
        events: NDArray[np.uint32] = spelled[begin - before : end - before : stride].astype(np.uint32)
        return events

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.uint32, copy=False)

    def tolist(self) -> list[int]:
        events: list[int] = self[:].tolist()
        return events
