"""The loop every engine of ours runs: schedule -> execute -> update, on a real or a virtual clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from engines.base import Observer, RunRecord
from engines.recorder import Recorder
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Scheduler
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
    """Monotonic time since it was made, or since the last restart."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._zero_ns = time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._zero_ns

    def wait_until(self, when_ns: int) -> None:
        remaining_ns = min(when_ns - self.now_ns(), NAP_NS)
        if remaining_ns > 0:
            time.sleep(remaining_ns / 1e9)


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


def run_loop(
    scheduler: Scheduler,
    executor: Executor,
    source: Source,
    clock: Clock,
    observer: Observer,
    *,
    planned: int,
    make_request: Callable[[Incoming], Request],
    depth: int = 0,
) -> RunRecord:
    """Run until the source is exhausted and every request has ended, or until the observer asks to stop.

    depth: steps that may be in flight while the next is planned (0, or 1 to overlap planning with execution).
    """
    recorder = Recorder(observer, planned, scheduler.kv.num_blocks)
    in_flight = 0
    stopping = False
    while True:
        now_ns = clock.now_ns()
        stopping = stopping or observer.stopping
        new, aborted = ([], scheduler.live_indices()) if stopping else source.poll(now_ns)
        outcomes = [scheduler.submit(make_request(one), now_ns) for one in new]
        outcomes += [scheduler.abort(index) for index in aborted]
        for outcome in outcomes:
            for request in outcome.finished:
                source.completed(request.index, now_ns)
            recorder.take(outcome, now_ns)

        plan = scheduler.schedule(clock.now_ns())
        if plan is not None:
            executor.submit(plan)
            in_flight += 1
        if in_flight > depth or (in_flight and plan is None):
            result = executor.collect()
            in_flight -= 1
            clock.wait_until(result.end_ns)
            outcome = scheduler.update(result)
            for request in outcome.finished:
                source.completed(request.index, result.end_ns)
            recorder.take(outcome, result.end_ns)
        elif in_flight == 0:
            if scheduler.idle and (stopping or source.exhausted):
                return recorder.record(interrupted=stopping)
            # Nothing can run until something comes; the scheduler never leaves a request waiting for nothing.
            wakes = [ns for ns in (source.next_due_ns(), scheduler.wake_at_ns) if ns is not None]
            assert wakes, "nothing runs, nothing is due, and the source is not exhausted"
            clock.wait_until(min(wakes))
