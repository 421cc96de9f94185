"""The engine's loop, fed from an inbox: schedule -> execute -> update until the inbox is closed and all has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from engines.loop import NAP_NS, Executor, WallClock
from engines.scheduling.scheduler import Outcome, Scheduler
from engines.serve.inbox import Inbox
from engines.serve.stream import Stream


class WakeableClock(WallClock):
    """A wall clock whose wait another thread can end."""

    def __init__(self) -> None:
        super().__init__()
        self._woken = threading.Event()

    def wait_until(self, when_ns: int) -> None:
        remaining_ns = min(when_ns - self.now_ns(), NAP_NS)
        if remaining_ns > 0:
            self._woken.wait(remaining_ns / 1e9)
            self._woken.clear()  # what woke us is found by the poll that follows

    def wake(self) -> None:
        self._woken.set()


@dataclass(frozen=True)
class Runtime:
    """What a loop runs on."""

    scheduler: Scheduler
    executor: Executor
    clock: WakeableClock
    depth: int = 0  # steps in flight while the next is planned


def drive(
    runtime: Runtime,
    inbox: Inbox,
    accept: Callable[[Stream], None],
    take: Callable[[Outcome, int], None],
    stopping: Callable[[], bool],
) -> None:
    """accept: told of a request before the scheduler; take: of each outcome and its time. Both must return quickly."""
    scheduler, executor, clock = runtime.scheduler, runtime.executor, runtime.clock
    in_flight = 0
    while True:
        now_ns = clock.now_ns()
        new, aborted = inbox.poll(now_ns)
        for stream in new:
            accept(stream)
            take(scheduler.submit(stream.request, now_ns), now_ns)
        for index in scheduler.live_indices() if stopping() else aborted:
            take(scheduler.abort(index), now_ns)

        plan = scheduler.schedule(clock.now_ns())
        if plan is not None:
            executor.submit(plan)
            in_flight += 1
        if in_flight > runtime.depth or (in_flight and plan is None):
            result = executor.collect()
            in_flight -= 1
            take(scheduler.update(result), result.end_ns)
        elif in_flight == 0:
            if scheduler.idle and inbox.exhausted:
                return
            wake_at_ns = scheduler.wake_at_ns
            clock.wait_until(inbox.next_due_ns() if wake_at_ns is None else wake_at_ns)
