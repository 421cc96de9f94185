"""Inbox: the Source of a server. Requests come in on the event loop's thread and are read at the top of each step."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engines.serve.stream import Stream

NEVER_NS = 2**63 - 1


class Inbox:
    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` ends the wait of an engine that has nothing to do."""
        self._wake = wake
        self._lock = threading.Lock()
        self._new: list[Stream] = []
        self._aborted: list[int] = []
        self._closed = False

    def put(self, stream: Stream) -> None:
        with self._lock:
            self._new.append(stream)
        self._wake()

    def abort(self, index: int) -> None:
        """The engine drops the request before it plans another step. Ended already: nothing happens."""
        with self._lock:
            self._aborted.append(index)
        self._wake()

    def close(self) -> None:
        """Nothing new will come."""
        with self._lock:
            self._closed = True
        self._wake()

    def poll(self, now_ns: int) -> tuple[list[Stream], list[int]]:
        """What came since the last time, and the indices to abort. One that came and went in between is in both."""
        with self._lock:
            new, self._new = self._new, []
            aborted, self._aborted = self._aborted, []
        return new, aborted

    def next_due_ns(self) -> int:
        """Nothing comes by the passing of time: whoever puts something in wakes the engine."""
        return NEVER_NS

    def completed(self, index: int, now_ns: int) -> None:
        """Whoever asked is told through the stream."""

    @property
    def exhausted(self) -> bool:
        with self._lock:
            return self._closed and not self._new
