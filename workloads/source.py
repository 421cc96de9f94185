"""Source: what an engine loop reads requests from. A plan with its pacing is one; a server's inbox is another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workloads.pacing import Pacing
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


class Source(Protocol):
    def poll(self, now_ns: int) -> tuple[list[Incoming], list[int]]:
        """Requests that have come due, and the indices of requests to abort."""
        ...

    def next_due_ns(self) -> int | None:
        """When poll may next return something by the passing of time alone, or None."""
        ...

    def completed(self, index: int, now_ns: int) -> None: ...

    @property
    def exhausted(self) -> bool:
        """Nothing new will ever come."""
        ...


class PlanSource:
    """The plan, at its pacing. At the pacing's deadline it aborts what is still running."""

    def __init__(self, plan: RequestPlan, pacing: Pacing, prompts: Prompts | None = None) -> None:
        self._plan = plan
        self._pacing = pacing
        self._prompts = prompts
        self._running: dict[int, None] = {}  # ordered: aborts go out in the order of issue

    def poll(self, now_ns: int) -> tuple[list[Incoming], list[int]]:
        new = [
            Incoming(
                index=due.index,
                scheduled_ns=due.scheduled_ns,
                sent_ns=due.sent_ns,
                prompt_tokens=int(self._plan.prompt_tokens[due.index]),
                output_tokens=int(self._plan.output_tokens[due.index]),
                tenant=self._plan.tenants[int(self._plan.tenant[due.index])],
                priority=int(self._plan.priority[due.index]),
                prompt=None if self._prompts is None else self._prompts.ids(due.index),
            )
            for due in self._pacing.due(now_ns)
        ]
        self._running.update((one.index, None) for one in new)
        deadline_ns = self._pacing.deadline_ns
        overdue = list(self._running) if deadline_ns is not None and now_ns >= deadline_ns else []
        return new, overdue

    def next_due_ns(self) -> int | None:
        return self._pacing.next_due_ns()

    def completed(self, index: int, now_ns: int) -> None:
        self._running.pop(index, None)
        self._pacing.completed(index, now_ns)

    @property
    def exhausted(self) -> bool:
        return self._pacing.exhausted
