"""Pacing: when to ask. Pure and clock-free; the engine loop, the simulator and the HTTP client share this one class.

    no rate, no concurrency   everything is due at t = 0
    concurrency N             closed loop: a request is scheduled when its slot came free
    rate R                    open loop: request i is scheduled at arrivals[i] / R
    rate R + concurrency N    open loop with a cap: the schedule stands, sending may be late

Times are int64 ns since the run began.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from workloads.plan import IntColumn

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Due:
    """Request `index` was meant for `scheduled_ns` and could be sent from `sent_ns` on (later only behind a cap)."""

    index: int
    scheduled_ns: int
    sent_ns: int


class Pacing:
    """Hands out the plan's requests in order. The caller brings the time; nothing here sleeps or reads a clock."""

    def __init__(
        self,
        arrivals_ugap: IntColumn,
        *,
        rate_per_s: float | None = None,
        concurrency: int | None = None,
        duration_s: float | None = None,
        drain_s: float = 30.0,
    ) -> None:
        self.rate_per_s = rate_per_s
        self.concurrency = concurrency
        self.duration_s = duration_s
        self.drain_s = drain_s
        self._count = len(arrivals_ugap)
        if rate_per_s is None:
            self._schedule: list[int] | None = None
        else:
            self._schedule = [round(ugap * 1000 / rate_per_s) for ugap in arrivals_ugap.tolist()]
        self._stop_ns = None if duration_s is None else round(duration_s * NS)
        self._next = 0
        # Times at which the free seats came free, oldest first; None when there is no cap.
        self._free: deque[int] | None = None if concurrency is None else deque([0] * concurrency)

    @property
    def issued(self) -> int:
        return self._next

    @property
    def deadline_ns(self) -> int | None:
        """When what is still running must be cancelled: the end of the drain, or None without --duration."""
        return None if self._stop_ns is None else self._stop_ns + round(self.drain_s * NS)

    def due(self, now_ns: int) -> list[Due]:
        """The requests to send now, each at most once, in plan order."""
        out: list[Due] = []
        while (when := self._peek()) is not None and when[1] <= now_ns:
            if self._free is not None:
                self._free.popleft()
            out.append(Due(self._next, *when))
            self._next += 1
        return out

    def next_due_ns(self) -> int | None:
        """When the next request can be sent, or None if that needs a completion first or nothing is left."""
        when = self._peek()
        return None if when is None else when[1]

    def completed(self, index: int, now_ns: int) -> None:
        """Request `index` has ended (in whatever way), so its seat in the closed loop is free again."""
        if self._free is not None:
            self._free.append(now_ns)

    @property
    def exhausted(self) -> bool:
        """No further request will ever be handed out."""
        if self._next >= self._count:
            return True
        if self._stop_ns is None:
            return False
        if self._schedule is not None:
            return self._schedule[self._next] >= self._stop_ns
        return bool(self._free) and self._free[0] >= self._stop_ns  # type: ignore[index]

    def _peek(self) -> tuple[int, int] | None:
        """(scheduled_ns, sent_ns) of the next request, None if it is not determined yet or never comes."""
        if self._next >= self._count or (self._free is not None and not self._free):
            return None
        free_at = self._free[0] if self._free is not None else 0
        scheduled = free_at if self._schedule is None else self._schedule[self._next]
        if self._stop_ns is not None and scheduled >= self._stop_ns:
            return None
        return scheduled, max(scheduled, free_at)
