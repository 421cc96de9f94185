"""Source: where an engine loop gets its requests. A plan with its pacing is one; the inbox of a server is another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from workloads.pacing import Due, Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts

TokenIds = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request as it reaches an engine. `prompt` is None if only lengths matter (simulated runs)."""

    index: int
    scheduled_ns: int
    sent_ns: int
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    priority: int = 0
    prompt: TokenIds | None = None


RequestT = TypeVar("RequestT")


class Source(Protocol[RequestT]):
    """A plan gives Incoming; the inbox of a server gives its own type, with what it needs to answer."""

    def poll(self, now_ns: int) -> tuple[list[RequestT], list[int]]:
        """(requests that are due, indices of requests to abort)"""
        ...

    def next_due_ns(self) -> int | None:
        """When poll may next return something without a completion; None if never."""
        ...

    def completed(self, index: int, now_ns: int) -> None:
        """Request `index` has ended, for whatever reason. Call it once for each request that poll returned."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether poll will never return another request."""
        ...


class PlanSource:
    """The plan at its pacing. At the pacing's deadline it aborts the requests in flight, once."""

    def __init__(self, plan: RequestPlan, pacing: Pacing, prompts: Prompts | None = None) -> None:
        self._plan = plan
        self._pacing = pacing
        self._prompts = prompts
        self._deadline_ns = pacing.deadline_ns  # None after poll returned the aborts

    def poll(self, now_ns: int) -> tuple[list[Incoming], list[int]]:
        """(requests that are due, indices to abort); a request that is due at the deadline itself is in both."""
        new = [self._incoming(due) for due in self._pacing.due(now_ns)]
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return new, []
        self._deadline_ns = None
        return new, self._pacing.unfinished()

    def next_due_ns(self) -> int | None:
        """When the next request can be sent; the deadline if requests are in flight and none is left to send."""
        due_ns = self._pacing.next_due_ns()
        return self._deadline_ns if due_ns is None and self._pacing.in_flight else due_ns

    def completed(self, index: int, now_ns: int) -> None:
        """Request `index` has ended: finished, rejected or aborted. Call it once per request."""
        self._pacing.completed(index, now_ns)

    @property
    def exhausted(self) -> bool:
        return self._pacing.exhausted

    def _incoming(self, due: Due) -> Incoming:
        index, plan = due.index, self._plan
        return Incoming(
            index=index,
            scheduled_ns=due.scheduled_ns,
            sent_ns=due.sent_ns,
            prompt_tokens=int(plan.prompt_tokens[index]),
            output_tokens=int(plan.output_tokens[index]),
            tenant=plan.tenants[int(plan.tenant[index])],
            priority=int(plan.priority[index]),
            prompt=None if self._prompts is None else self._prompts.ids(index),
        )
