"""Token events of a run, which may be hundreds of millions.

They are read some million at a time, and the gaps between them are kept as counted values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from reports.counted_values import CountedValues, FloatArray, IntArray

AT_ONCE = 1 << 22  # events
SPARSE = 4  # ratio of events between those of a batch to its own, above which requests are read one by one
BINS = 1 << 22  # gaps up to 4 s are counted in bins of a µs; longer ones individually


@dataclass(frozen=True, eq=False)
class Batch:
    """Events of some requests, request by request."""

    rows: IntArray  # of the record
    starts: IntArray  # [rows] where the events of each begin
    values: NDArray[np.uint32]  # [events] as in the record
    times_of: RunRecord

    def times_ns(self) -> IntArray:
        """ns[events]: the time of each event, as RunRecord.event_times_ns() has it."""
        record = self.times_of
        if record.event_unit == "step":
            ended: IntArray = record.steps["end_ns"][self.values.astype(np.int64) - 1]
            return ended
        since = np.cumsum(self.values, dtype=np.int64) * 1000
        first_ns = record.column_ns("first")[self.rows]
        return since + np.repeat(first_ns - since[self.starts], self.counts)

    @property
    def counts(self) -> IntArray:
        """int[rows]: events of each."""
        return np.diff(self.starts, append=self.values.shape[0])


class Events:
    """The events of one record. Rows without events are left out."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._at, self._count = record.column("events_at"), record.column("events")

    def batches(self, wanted: NDArray[np.bool_]) -> Iterator[Batch]:
        """The events of the wanted rows, in order of position in the file."""
        rows = np.flatnonzero(wanted & (self._count > 0))
        at = self._at[rows]
        if (at[1:] < at[:-1]).any():
            rows = rows[np.argsort(at, kind="stable")]
        ends = np.cumsum(self._count[rows])
        begin = 0
        while begin < rows.shape[0]:
            before = int(ends[begin] - self._count[rows[begin]])
            end = max(begin + 1, int(np.searchsorted(ends, before + AT_ONCE, side="right")))
            yield self._batch(rows[begin:end])
            begin = end

    def _batch(self, rows: IntArray) -> Batch:
        at, count = self._at[rows], self._count[rows]
        starts = np.cumsum(count) - count
        low, high = int(at[0]), int(at[-1] + count[-1])
        wanted = int(count.sum())
        if high - low > SPARSE * wanted:  # the events in between could be those of the whole run
            ends = zip(at.tolist(), (at + count).tolist(), strict=True)
            values = np.concatenate([self._record.event_values[begin:end] for begin, end in ends])
        else:
            values = np.asarray(self._record.event_values[low:high])
            if high - low != wanted:  # events of others lie between them
                values = values[np.arange(wanted) + np.repeat(at - low - starts, count)]
        return Batch(rows, starts, values, self._record)

    def gaps_ms(self, wanted: NDArray[np.bool_]) -> CountedValues:
        """Gaps between consecutive token events of the wanted rows."""
        return self._gaps_of_steps(wanted) if self._record.event_unit == "step" else self._gaps_in_us(wanted)

    def _gaps_in_us(self, wanted: NDArray[np.bool_]) -> CountedValues:
        bins = np.zeros(BINS, np.int64)
        longer: list[NDArray[np.uint32]] = []
        for batch in self.batches(wanted):
            values = batch.values
            if int(values.max()) < BINS:
                found = np.bincount(values)
                bins[: found.shape[0]] += found
                firsts = np.bincount(values[batch.starts])  # the first value of a request is not a gap
                bins[: firsts.shape[0]] -= firsts
            else:
                gaps = np.delete(values, batch.starts)
                short = gaps < BINS
                bins += np.bincount(gaps[short], minlength=BINS)
                longer.append(gaps[~short])
        at = np.flatnonzero(bins)
        above, counts = np.unique(np.concatenate([*longer, np.empty(0, np.uint32)]), return_counts=True)
        return CountedValues(np.concatenate([at, above]) * 1000 / 1e6, np.concatenate([bins[at], counts]))

    def _gaps_of_steps(self, wanted: NDArray[np.bool_]) -> CountedValues:
        """A run of consecutive steps with tokens adds one to the count of every step in it except the first, so only
        the ends of runs are kept. A gap over several steps is identified by its two steps."""
        ended_ns = np.concatenate([[0], self._record.steps["end_ns"]])  # [step]
        change = np.zeros(ended_ns.shape[0] + 1, np.int64)
        jumps, jumped = [np.empty(0, np.int64)], [np.empty(0, np.int64)]  # (before << 32 | after), and how many
        for batch in self.batches(wanted):
            values = batch.values
            jump = np.empty(values.shape[0], np.bool_)
            jump[1:] = values[1:] != values[:-1] + np.uint32(1)
            jump[batch.starts] = False
            inside = np.flatnonzero(jump)
            jump[batch.starts] = True
            begins = np.flatnonzero(jump)
            first = values[begins].astype(np.int64)
            behind = first + np.diff(begins, append=values.shape[0])
            change += np.bincount(first + 1, minlength=change.shape[0]) - np.bincount(behind, minlength=change.shape[0])
            pairs = values[inside - 1].astype(np.int64) << 32 | values[inside]
            pairs, counts = np.unique(pairs, return_counts=True)  # requests that paused in the same steps
            jumps.append(pairs)
            jumped.append(counts)
        pairs = np.concatenate(jumps)
        gaps_ns = np.concatenate([np.diff(ended_ns), ended_ns[pairs & 0xFFFFFFFF] - ended_ns[pairs >> 32]])
        return CountedValues.of(gaps_ns / 1e6, np.concatenate([np.cumsum(change)[1:-1], *jumped]))

    def gaps_in_time_ms(self, wanted: NDArray[np.bool_], most: int) -> FloatArray:
        """ms: gaps of requests from the middle of the wanted ones, in order of time: `most`, or a few more."""
        rows = wanted & (self._count > 1)
        ends = np.cumsum(np.where(rows, self._count - 1, 0))
        total = int(ends[-1]) if ends.shape[0] else 0
        begin = max(0, (total - most) // 2)
        rows &= (ends > begin) & (ends - (self._count - 1) < begin + most)
        gaps, came_ns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in self.batches(rows):
            at_ns = batch.times_ns()
            gaps.append(np.delete(np.diff(at_ns, prepend=0), batch.starts))
            came_ns.append(np.delete(at_ns, batch.starts))
        return np.concatenate(gaps)[np.argsort(np.concatenate(came_ns), kind="stable")] / 1e6

    def within(self, begin_ns: int, end_ns: int) -> FloatArray:
        """float[rows]: events of each row after begin_ns, up to end_ns."""
        first_ns, last_ns = self._record.column_ns("first"), self._record.column_ns("last")
        inside = np.where((first_ns > begin_ns) & (last_ns <= end_ns), self._count, 0).astype(np.float64)
        across = (first_ns <= end_ns) & (last_ns > begin_ns) & (inside == 0)
        for batch in self.batches(across):
            at_ns = batch.times_ns()
            inside[batch.rows] = np.add.reduceat((at_ns > begin_ns) & (at_ns <= end_ns), batch.starts, dtype=np.int64)
        return inside
