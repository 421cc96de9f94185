"""Source: what an engine loop reads requests from. A plan with its pacing is one; a server's inbox is another."""

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
    """One request as it reaches an engine. `prompt` is None where only lengths matter (virtual runs)."""

    index: int
    scheduled_ns: int
    sent_ns: int
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    priority: int = 0
    prompt: TokenIds | None = None


Asked = TypeVar("Asked")


class Source(Protocol[Asked]):
    """Of a plan, it holds Incoming; a server's inbox holds what the server needs to answer."""

    def poll(self, now_ns: int) -> tuple[list[Asked], list[int]]:
        """Requests that have come due, and the indices of requests to abort."""
        ...

    def next_due_ns(self) -> int | None:
        """When poll may next return something by the passing of time alone, or None."""
        ...

    def completed(self, index: int, now_ns: int) -> None:
        """Request `index` has ended, in whatever way. Once for each request that poll gave."""
        ...

    @property
    def exhausted(self) -> bool:
        """Nothing new will ever come."""
        ...


class PlanSource:
    """The plan, at its pacing. At the pacing's deadline it aborts what is still running, once."""

    def __init__(self, plan: RequestPlan, pacing: Pacing, prompts: Prompts | None = None) -> None:
        self._plan = plan
        self._pacing = pacing
        self._prompts = prompts
        self._deadline_ns = pacing.deadline_ns  # None once its aborts are out

    def poll(self, now_ns: int) -> tuple[list[Incoming], list[int]]:
        """What has come due, and what to abort; a request that came due only now that all is over is in both."""
        new = [self._incoming(due) for due in self._pacing.due(now_ns)]
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return new, []
        self._deadline_ns = None
        return new, self._pacing.unfinished()

    def next_due_ns(self) -> int | None:
        """When the next request can be sent or, with requests in flight and none to send, the deadline."""
        due_ns = self._pacing.next_due_ns()
        return self._deadline_ns if due_ns is None and self._pacing.in_flight else due_ns

    def completed(self, index: int, now_ns: int) -> None:
        """Request `index` has ended, in whatever way: finished, rejected or aborted. Once per request."""
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
