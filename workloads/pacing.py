"""Pacing: when requests are sent. No clock is read here; the engine loop, the simulator and the HTTP client share it.

    no rate, no concurrency   all requests are due at t = 0
    concurrency N             closed loop: a request is scheduled when one of the N in flight ends
    rate R                    open loop: request i is scheduled at arrivals[i] / R; see rates.py for a rate that changes
    rate R + concurrency N    open loop with a cap: the schedule stays, sending may be late

With a duration S, a request is sent only if it can be sent before S: one that the cap held back until then is never
sent (`unsent` counts these). The caller cancels what is still in flight at S + drain.

Times are int64 ns since the run began.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.plan import UGAP
from workloads.rates import NS, RateSchedule

YEAR_S = 365.25 * 86_400
LATEST_NS = 1 << 61  # of a request; what follows it must stay within 64 bits


@dataclass(frozen=True, slots=True)
class Due:
    """Request `index` was scheduled at `scheduled_ns` and can be sent from `sent_ns` on (later only under a cap)."""

    index: int
    scheduled_ns: int
    sent_ns: int


class Pacing:
    """Hands out the plan's requests in order. The caller passes the time; nothing here sleeps or reads a clock."""

    def __init__(
        self,
        arrivals_ugap: IntColumn,
        *,
        rate_per_s: float | RateSchedule | None = None,
        concurrency: int | None = None,
        duration_s: float | None = None,
        drain_s: float = 30.0,
    ) -> None:
        """arrivals_ugap: see RequestPlan; without a rate only its length matters. Raises ValueError."""
        if isinstance(rate_per_s, float | int) and not 0 < rate_per_s < float("inf"):
            raise ValueError(f"rate must be above 0 requests per second, got {rate_per_s:g}")
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        if duration_s is not None and not 0 < duration_s < float("inf"):
            raise ValueError(f"duration must be above 0 s, got {duration_s:g}")
        if not 0 <= drain_s < float("inf"):
            raise ValueError(f"drain must be at least 0 s, got {drain_s:g}")
        self.rate_per_s = rate_per_s
        self.concurrency = concurrency
        self.duration_s = duration_s
        self.drain_s = drain_s
        self._count = len(arrivals_ugap)
        self._schedule = None if rate_per_s is None else _schedule_ns(arrivals_ugap, rate_per_s)
        self._stop_ns = None if duration_s is None else round(duration_s * NS)
        self._next = 0
        self._in_flight: set[int] = set()
        # Under a cap each request in flight holds a permit. A heap of the times at which the free ones became free.
        self._permits: list[int] | None = None if concurrency is None else [0] * min(concurrency, self._count)

    @property
    def issued(self) -> int:
        """Requests handed out so far."""
        return self._next

    @property
    def in_flight(self) -> int:
        """Requests handed out that have not ended."""
        return len(self._in_flight)

    @property
    def unsent(self) -> int:
        """Requests scheduled before the end of the duration and not handed out; after the end they never are."""
        if self._schedule is None or self._stop_ns is None:
            return 0
        return int(np.searchsorted(self._schedule, self._stop_ns)) - self._next

    @property
    def deadline_ns(self) -> int | None:
        """When requests in flight must be cancelled: the end of the drain, or None without a duration."""
        return None if self._stop_ns is None else self._stop_ns + round(self.drain_s * NS)

    def due(self, now_ns: int) -> list[Due]:
        """The requests to send now, in plan order. Each is returned by one call only."""
        out: list[Due] = []
        while (when := self._peek()) is not None and when[1] <= now_ns:
            if self._permits is not None:
                heappop(self._permits)
            out.append(Due(self._next, *when))
            self._in_flight.add(self._next)
            self._next += 1
        return out

    def next_due_ns(self) -> int | None:
        """When the next request can be sent; None if a completion must come first or no request is left."""
        when = self._peek()
        return None if when is None else when[1]

    def unfinished(self) -> list[int]:
        """The requests in flight, in plan order."""
        return sorted(self._in_flight)

    def completed(self, index: int, now_ns: int) -> None:
        """Request `index` has ended, for whatever reason, and returns its permit. Call it once per request handed out.

        Raises ValueError for any other index: a permit returned twice would break the cap.
        """
        if index not in self._in_flight:
            raise ValueError(f"request {index} is not in flight, so it cannot complete")
        self._in_flight.remove(index)
        if self._permits is not None:
            heappush(self._permits, now_ns)

    @property
    def schedule_ns(self) -> IntColumn | None:
        """When each request is meant to be sent, [requests]; None without a rate."""
        return self._schedule

    @property
    def exhausted(self) -> bool:
        """No further request will ever be handed out. In a closed loop this is known only when a permit is free."""
        if self._next >= self._count:
            return True
        if self._stop_ns is None:
            return False
        if self._schedule is not None and self._schedule[self._next] >= self._stop_ns:
            return True
        return bool(self._permits) and self._permits[0] >= self._stop_ns  # type: ignore[index]

    def _peek(self) -> tuple[int, int] | None:
        """(scheduled_ns, sent_ns) of the next request; None if not determined yet or never."""
        if self._next >= self._count or (self._permits is not None and not self._permits):
            return None
        free_ns = self._permits[0] if self._permits is not None else 0
        scheduled = free_ns if self._schedule is None else int(self._schedule[self._next])
        sent = max(scheduled, free_ns)
        return None if self._stop_ns is not None and sent >= self._stop_ns else (scheduled, sent)


def _schedule_ns(arrivals_ugap: IntColumn, rate_per_s: float | RateSchedule) -> IntColumn:
    """Raises CbbenchError where the last request would be due later than a count of ns can say."""
    if isinstance(rate_per_s, RateSchedule):
        due_ns = rate_per_s.due_ns(arrivals_ugap)
    else:
        due_ns = np.rint(arrivals_ugap.astype(np.float64) * (NS / UGAP) / rate_per_s)
    if len(due_ns) and not due_ns[-1] < LATEST_NS:
        raise CbbenchError(
            "rate",
            f"the last of {len(due_ns):,} requests would be due after {due_ns[-1] / NS / YEAR_S:,.0f} years; a run "
            f"lasts at most {LATEST_NS / NS / YEAR_S:.0f}: raise the rate or lower `num_requests`",
        )
    return due_ns.astype(np.int64)
