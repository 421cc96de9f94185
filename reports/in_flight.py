"""How many requests ran and how many waited, over wall time, from the requests' own times.

A request is in flight from sending to its end, and runs during its stints; otherwise it waits, also while the step in
which it arrived still runs. So the mean number in flight is the rate of arrivals times the mean time in flight, which
is Little's law (Operations Research 9, 1961), on every engine. Over HTTP, where no slots are seen, a request waits
until its first token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from engines.request_table import MISSING
from reports.instances import ledger_slots
from workloads.columns import IntColumn

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of time in which one request each did the same."""

    begin_ns: IntColumn
    end_ns: IntColumn
    instance: IntColumn

    def mean(self, window_s: float, instance: int | None = None) -> float | None:
        """How many there were at a time, averaged over the window. None without one."""
        own = self._of(instance)
        return float((self.end_ns[own] - self.begin_ns[own]).sum() / 1e9 / window_s) if window_s > 0 else None

    def per_bin(self, edges_ns: FloatArray, instance: int | None = None) -> FloatArray:
        """How many there were at a time, averaged over each bin: float64[edges - 1]."""
        own = self._of(instance)
        begun, ended = (_time_since(column[own], edges_ns) for column in (self.begin_ns, self.end_ns))
        return np.asarray(np.diff(begun - ended) / np.maximum(np.diff(edges_ns), 1.0))

    def _of(self, instance: int | None) -> NDArray[np.bool_]:
        return np.ones(len(self.instance), np.bool_) if instance is None else self.instance == instance


def _time_since(events_ns: IntColumn, at_ns: FloatArray) -> FloatArray:
    """Of each time: the sum of what has passed since every event before it."""
    ordered = np.sort(events_ns).astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, at_ns)
    return np.asarray(before * at_ns - total[before])


@dataclass(frozen=True, eq=False)
class InFlight:
    running: Spans
    waiting: Spans

    @staticmethod
    def of(record: RunRecord) -> InFlight:
        """Of the requests that ended. A wait counts for the instance that ends it by admission."""
        sent_ns, end_ns = record.column_ns("sent"), record.column_ns("end")
        was_sent = sent_ns != MISSING
        if not record.steps.size:
            return _by_first_token(record, was_sent)
        of_row, stints = record.stints()
        known = (stints[:, 1] > 0) & (stints[:, 1] <= record.steps.size) & was_sent[of_row]
        of_row, stints = of_row[known], stints[known]
        first, last = _ends_of_groups(of_row)
        begin_ns = record.steps["now_ns"][stints[:, 1] - 1].astype(np.int64)
        left = np.clip(stints[:, 3], 1, record.steps.size)
        until_ns = np.where(last, end_ns[of_row], record.steps["end_ns"][left - 1])
        begin_ns = np.clip(begin_ns, sent_ns[of_row], end_ns[of_row])
        until_ns = np.clip(until_ns, begin_ns, end_ns[of_row])
        before_ns = np.where(first, sent_ns[of_row], np.concatenate([[0], until_ns[:-1]]))
        instance = _instances(record, stints)
        never = was_sent.copy()
        never[of_row] = False  # these never had a slot, and waited to their end
        return InFlight(
            running=Spans(begin_ns, until_ns, instance),
            waiting=Spans(
                np.concatenate([np.minimum(before_ns, begin_ns), sent_ns[never]]),
                np.concatenate([begin_ns, end_ns[never]]),
                np.concatenate([instance, np.zeros(int(never.sum()), np.int64)]),
            ),
        )


def _by_first_token(record: RunRecord, was_sent: NDArray[np.bool_]) -> InFlight:
    sent_ns, first_ns, end_ns = (record.column_ns(name)[was_sent] for name in ("sent", "first", "end"))
    first_ns = np.where(first_ns == MISSING, end_ns, first_ns)
    instance = np.zeros(len(sent_ns), np.int64)
    return InFlight(Spans(first_ns, end_ns, instance), Spans(sent_ns, first_ns, instance))


def _ends_of_groups(of_row: IntColumn) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(which stint is the first of its request, which is the last)."""
    changes = of_row[1:] != of_row[:-1]
    there = np.ones(min(1, len(of_row)), np.bool_)
    return np.concatenate([there, changes]), np.concatenate([changes, there])


def _instances(record: RunRecord, stints: NDArray[np.int64]) -> IntColumn:
    if not record.steps["instance"].any():
        return np.zeros(len(stints), np.int64)
    slots = ledger_slots(record.steps[record.steps["instance"] == 0])
    return (stints[:, 0] >= slots).astype(np.int64)
