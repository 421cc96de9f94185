"""SessionPacing: a pacing under which a turn waits for the answer before it and for its think time (turns.py)."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from workloads.columns import IntColumn
from workloads.pacing import Due, Pacing
from workloads.plan import RequestPlan
from workloads.turns import Turns


def pacing_of(plan: RequestPlan, **pacing: Any) -> Pacing:
    """The pacing of the plan's requests; the arguments are those of Pacing."""
    if plan.turns is None:
        return Pacing(plan.arrivals_ugap, **pacing)
    return SessionPacing(plan.arrivals_ugap, plan.turns, **pacing)


class SessionPacing(Pacing):
    """First turns come in plan order, as they arrive; later ones as they become due. Needs a rate."""

    def __init__(self, arrivals_ugap: IntColumn, turns: Turns, **pacing: Any) -> None:
        """The arguments are those of Pacing. Raises ValueError."""
        super().__init__(arrivals_ugap, **pacing)
        if self._schedule is None:
            raise ValueError("turns need a rate at which their sessions begin")
        self.turns = turns
        self._starts = np.flatnonzero(turns.after < 0)
        self._started = 0
        self._follower = {int(before): turn for turn, before in enumerate(turns.after) if before >= 0}
        self._turns: list[tuple[int, int]] = []  # a heap: when a turn is due, its index

    @property
    def issued(self) -> int:
        return self._next

    def due(self, now_ns: int) -> list[Due]:
        out: list[Due] = []
        while (when := self._peek()) is not None and when[1] <= now_ns:
            if self._permits is not None:
                heappop(self._permits)
            index = self._take()
            out.append(Due(index, *when))
            self._in_flight.add(index)
            self._next += 1
        return out

    def completed(self, index: int, now_ns: int) -> None:
        super().completed(index, now_ns)
        if (turn := self._follower.get(index)) is not None:
            heappush(self._turns, (max(self._arrival_ns(turn), now_ns + int(self.turns.think_ns[turn])), turn))

    @property
    def exhausted(self) -> bool:
        if any(index in self._follower for index in self._in_flight):
            return False  # its answer makes another turn due
        scheduled_ns = self._next_ns()
        if scheduled_ns is None or self._stop_ns is None:
            return scheduled_ns is None
        return scheduled_ns >= self._stop_ns or (bool(self._permits) and self._permits[0] >= self._stop_ns)  # type: ignore[index]

    def _peek(self) -> tuple[int, int] | None:
        scheduled_ns = self._next_ns()
        if scheduled_ns is None or (self._permits is not None and not self._permits):
            return None
        sent_ns = max(scheduled_ns, self._permits[0] if self._permits is not None else 0)
        return None if self._stop_ns is not None and sent_ns >= self._stop_ns else (scheduled_ns, sent_ns)

    def _next_ns(self) -> int | None:
        """When a session begins or a turn is due next; None where an answer must come first, or none is left."""
        times = [self._arrival_ns(int(self._starts[self._started]))] if self._started < len(self._starts) else []
        return min([*times, *(when for when, _ in self._turns[:1])], default=None)

    def _take(self) -> int:
        """The request that is due next; of two at the same time the one that begins a session."""
        begins = self._started < len(self._starts)
        if begins and (not self._turns or self._arrival_ns(int(self._starts[self._started])) <= self._turns[0][0]):
            self._started += 1
            return int(self._starts[self._started - 1])
        return heappop(self._turns)[1]

    def _arrival_ns(self, index: int) -> int:
        assert self._schedule is not None
        return int(self._schedule[index])
