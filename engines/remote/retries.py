"""Retries: requests that the server refused with 429 and that are sent again when it said, or after growing waits.

sent ──► 429 ──► waits (Retry-After, else 1, 2, 4, ... s) ──► sent again      at most so many times; then it fails
"""

from __future__ import annotations

import heapq
from itertools import count

from engines.remote.load_recorder import Exchange
from engines.remote.record_backlog import NEVER

TOO_MANY_REQUESTS = 429
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # without a Retry-After


class Retries:
    """Times are of time.monotonic_ns()."""

    def __init__(self, most: int) -> None:
        """most: how often one request is sent again."""
        self._most = most
        self._waiting: list[tuple[int, int, Exchange]] = []  # a heap; by when they are due, then in order
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> list[Exchange]:
        return [exchange for _, _, exchange in self._waiting]

    @property
    def next_due_ns(self) -> int:
        return self._waiting[0][0] if self._waiting else NEVER

    def accepts(self, exchange: Exchange) -> bool:
        """Whether the request is to be sent again after the answer it got."""
        return exchange.answer.status == TOO_MANY_REQUESTS and exchange.refusals < self._most

    def add(self, exchange: Exchange, now_ns: int) -> int:
        """Keep the request until it is due; returns its wait in ns."""
        said_s = exchange.answer.retry_after_s
        wait_s = min(FIRST_WAIT_S * 2**exchange.refusals, LONGEST_WAIT_S) if said_s is None else said_s
        wait_ns = round(wait_s * 1e9)
        exchange.refusals += 1
        heapq.heappush(self._waiting, (now_ns + wait_ns, next(self._order), exchange))
        return wait_ns

    def due(self, now_ns: int) -> list[tuple[int, Exchange]]:
        """(when it was due, the request) of those that are to be sent now."""
        due = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            at_ns, _, exchange = heapq.heappop(self._waiting)
            due.append((at_ns, exchange))
        return due
