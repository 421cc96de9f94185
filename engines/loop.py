"""The loop every engine of ours runs: schedule -> execute -> update, on a real or a virtual clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from engines.base import Observer, RunRecord
from engines.recorder import StepRecorder
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Outcome, Scheduler
from workloads.source import Incoming, Source

NAP_NS = 50_000_000  # a wall clock sleeps no longer at a stretch, so that a request to stop is noticed


class Clock(Protocol):
    def now_ns(self) -> int:
        """ns since the run began."""
        ...

    def wait_until(self, when_ns: int) -> None:
        """Return at `when_ns` or a little later; may return earlier."""
        ...


class WallClock:
    """Monotonic time since it was made, or since the last restart. Another thread may end a wait."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.restart()

    def restart(self) -> None:
        self._zero_ns = time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._zero_ns

    def wait_until(self, when_ns: int) -> None:
        remaining_ns = min(when_ns - self.now_ns(), NAP_NS)
        if remaining_ns > 0:
            self._woken.wait(remaining_ns / 1e9)
            self._woken.clear()

    def wake(self) -> None:
        self._woken.set()


class VirtualClock:
    """Time that only moves when told."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def wait_until(self, when_ns: int) -> None:
        self._now_ns = max(self._now_ns, when_ns)


class Executor(Protocol):
    """Computes plans, oldest first."""

    def submit(self, plan: StepPlan) -> None:
        """Launch a step; may return before it has run."""
        ...

    def collect(self) -> StepResult:
        """The result of the oldest step not yet collected."""
        ...


Asked = TypeVar("Asked")  # what the source holds
Take = Callable[[Outcome, int], None]  # told of every outcome and its time, on the loop's thread


@dataclass(frozen=True)
class Runtime:
    """What a loop runs on. depth: steps in flight while the next is planned (0, or 1 to overlap the two)."""

    scheduler: Scheduler
    executor: Executor
    clock: Clock
    depth: int = 0


def run_loop(
    scheduler: Scheduler,
    executor: Executor,
    source: Source[Incoming],
    clock: Clock,
    observer: Observer,
    *,
    planned: int,
    make_request: Callable[[Incoming], Request],
    depth: int = 0,
) -> RunRecord:
    """Run until the source is exhausted and every request has ended, or until the observer asks to stop."""
    recorder = StepRecorder(observer, planned, scheduler.kv.num_blocks, thinned=isinstance(clock, VirtualClock))
    runtime = Runtime(scheduler, executor, clock, depth)
    stopped = drive(runtime, source, make_request, recorder.take, lambda: observer.stopping)
    return recorder.record(interrupted=stopped)


def drive(
    runtime: Runtime,
    source: Source[Asked],
    make_request: Callable[[Asked], Request],
    take: Take,
    stop: Callable[[], bool],
) -> bool:
    """The loop itself. True where it was told to stop, and has aborted what was left."""
    scheduler, executor, clock = runtime.scheduler, runtime.executor, runtime.clock
    in_flight = 0
    stopping = False
    while True:
        now_ns = clock.now_ns()
        stopping = stopping or stop()
        new, aborted = ([], scheduler.live_indices()) if stopping else source.poll(now_ns)
        outcomes = [scheduler.submit(make_request(one), now_ns) for one in new]
        outcomes += [scheduler.abort(index) for index in aborted]
        for outcome in outcomes:
            for request in outcome.finished:
                source.completed(request.index, now_ns)
            take(outcome, now_ns)

        plan = scheduler.schedule(clock.now_ns())
        if plan is not None:
            executor.submit(plan)
            in_flight += 1
        if in_flight > runtime.depth or (in_flight and plan is None):
            result = executor.collect()
            in_flight -= 1
            clock.wait_until(result.end_ns)
            outcome = scheduler.update(result)
            for request in outcome.finished:
                source.completed(request.index, result.end_ns)
            take(outcome, result.end_ns)
        elif in_flight == 0:
            if scheduler.idle and (stopping or source.exhausted):
                return stopping
            # Nothing can run until something comes; the scheduler never leaves a request waiting for nothing.
            wakes = [ns for ns in (source.next_due_ns(), scheduler.wake_at_ns) if ns is not None]
            assert wakes, "nothing runs, nothing is due, and the source is not exhausted"
            clock.wait_until(min(wakes))
