"""RecordBacklog: requests that have ended and are not recorded yet.

A record takes some 100 us, so it waits for a moment without sends and reads. A client that is busy has no such moment:
there a record becomes due after RECORD_WITHIN_NS, and then the event loop writes one after every read. An answer takes
at least one read, so that the records keep up with the ends, and a killed run has all but those of its last moment.
"""

from __future__ import annotations

import time
from collections import deque

from engines.remote.answer import Failure
from engines.remote.load_recorder import Exchange, LoadRecorder

RECORD_WITHIN_NS = 5_000_000
NEVER = 2**63 - 1


class RecordBacklog:
    """Times are of time.monotonic_ns()."""

    def __init__(self, recorder: LoadRecorder) -> None:
        self._recorder = recorder
        self._ended: deque[tuple[int, Exchange, Failure | None, int]] = deque()  # since when they wait is first
        self.due_ns = NEVER  # when the oldest must be recorded

    def __bool__(self) -> bool:
        return bool(self._ended)

    def add(self, exchange: Exchange, failure: Failure | None, end_ns: int) -> None:
        now_ns = time.monotonic_ns()
        if not self._ended:
            self.due_ns = now_ns + RECORD_WITHIN_NS
        self._ended.append((now_ns, exchange, failure, end_ns))

    def record_one(self) -> None:
        """The oldest. Call it only if there is one."""
        stats = self._recorder.stats
        stats.record_backlog_peak = max(stats.record_backlog_peak, len(self._ended))
        _, exchange, failure, end_ns = self._ended.popleft()
        self._recorder.ended(exchange, failure, end_ns)
        self.due_ns = self._ended[0][0] + RECORD_WITHIN_NS if self._ended else NEVER

    def record_all(self) -> None:
        while self._ended:
            self.record_one()
