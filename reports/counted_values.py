"""Values with how often each occurs.

Two hundred million gaps between tokens have some thousand distinct values: all requests that decode in a step have the
same gap, and a gap over HTTP is a whole number of µs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CountedValues:
    """Reads like a sorted array of all values: it has a length, and [rank] is the value of a rank from 0 on.

    Nothing is rounded: a percentile is that of all values, not that of histogram bins.
    """

    values: FloatArray  # ascending; may be infinite
    counts: IntArray  # of each, at least 1

    @staticmethod
    def of(values: FloatArray, counts: IntArray) -> CountedValues:
        """values may be in any order, occur twice or have a count of 0."""
        kept = counts > 0
        distinct, which = np.unique(values[kept], return_inverse=True)
        summed = np.zeros(distinct.shape[0], np.int64)
        np.add.at(summed, which.reshape(-1), counts[kept])
        return CountedValues(distinct, summed)

    @cached_property
    def _ends(self) -> IntArray:
        """Ranks behind the last of each value."""
        return np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.shape[0] else 0

    def __getitem__(self, rank: int) -> float:
        """IndexError beyond the last; a negative rank counts from the end, as in an array."""
        if not -len(self) <= rank < len(self):
            raise IndexError(f"rank {rank} of {len(self)}")
        return float(self.values[np.searchsorted(self._ends, rank % len(self), side="right")])

    def mean(self) -> float:
        return float(self.values @ self.counts / len(self))

    def std(self, ddof: int = 0) -> float:
        deviations = self.values - self.mean()
        return math.sqrt(float(deviations * deviations @ self.counts) / (len(self) - ddof))

    def above(self, bound: float) -> int:
        """How many values are larger."""
        return int(self.counts[self.values > bound].sum())

    def with_infinite(self, count: int) -> CountedValues:
        """These and `count` infinite values, those of failed requests."""
        if not count:
            return self
        return CountedValues(np.append(self.values, np.inf), np.append(self.counts, count))

    def finite(self) -> CountedValues:
        known = np.isfinite(self.values)
        return CountedValues(self.values[known], self.counts[known])
