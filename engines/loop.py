"""The loop every engine of ours runs: schedule -> execute -> update, on a real or a virtual clock.

It drives one Instance, or the two of engines.disaggregated, and may fast-forward where that changes no record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from engines.scheduling.delivery import Outcome
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Scheduler

if TYPE_CHECKING:  # no more than torch, Triton and NumPy is needed to run steps on a bare machine
    from workloads.source import Source

NAP_NS = 50_000_000  # a wall clock waits no longer at a time, so that a request to stop is noticed


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
        """The result of the oldest step not yet collected; waits for it."""
        ...


Item = TypeVar("Item")  # what the source gives
Take = Callable[[Outcome, int], None]  # told of every outcome and its time, on the loop's thread
NextDue = Callable[[], int | None]  # when the source has something next, if that is known


class Instances(Protocol):
    """What the loop drives: one scheduler and its executor, or several that look like one."""

    @property
    def idle(self) -> bool:
        """No request and no step is left."""
        ...

    @property
    def kv_blocks(self) -> tuple[int, ...]:
        """Usable blocks of each pool."""
        ...

    def live_indices(self) -> list[int]: ...

    def submit(self, request: Request, now_ns: int) -> Outcome: ...

    def abort(self, index: int) -> Outcome: ...

    def launch(self, now_ns: int) -> bool:
        """Plan a step and launch it; False where none can be launched now."""
        ...

    def collect(self, clock: Clock, next_due: NextDue) -> Iterable[tuple[Outcome, int]]:
        """Wait until something may happen; the steps that have ended, and when."""
        ...


class Instance:
    """A scheduler and what computes its steps. depth: steps in flight while the next is planned; 1 overlaps the two."""

    def __init__(self, scheduler: Scheduler, executor: Executor, depth: int = 0) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._depth = depth
        self._in_flight = 0
        self._nothing_to_plan = False  # until the oldest step in flight has ended
        self.wake_at_ns: int | None = None  # when time alone will admit a request, if nothing could be launched

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    @property
    def kv_blocks(self) -> tuple[int, ...]:
        return (self.scheduler.kv.num_blocks,)

    @property
    def in_flight(self) -> bool:
        return self._in_flight > 0

    def live_indices(self) -> list[int]:
        return self.scheduler.live_indices()

    def submit(self, request: Request, now_ns: int) -> Outcome:
        return self.scheduler.submit(request, now_ns)

    def abort(self, index: int) -> Outcome:
        return self.scheduler.abort(index)

    def launch(self, now_ns: int) -> bool:
        self.wake_at_ns = None
        if self._in_flight > self._depth or self._nothing_to_plan:
            return False
        plan = self.scheduler.schedule(now_ns)
        if plan is None:
            self.wake_at_ns = self.scheduler.wake_at_ns
            self._nothing_to_plan = self._in_flight > 0
            return False
        self.executor.submit(plan)
        self._in_flight += 1
        return True

    def collect(self, clock: Clock, next_due: NextDue) -> Iterable[tuple[Outcome, int]]:
        if self._in_flight > self._depth or self._nothing_to_plan:
            return (self.collect_step(clock),)
        if self._in_flight:
            return ()  # one more may be launched, with what the source has by now
        # Nothing can run until something comes; the scheduler never leaves a request waiting for nothing.
        wakes = [ns for ns in (next_due(), self.wake_at_ns) if ns is not None]
        assert wakes, "nothing runs, nothing is due, and the source is not exhausted"
        clock.wait_until(min(wakes))
        return ()

    def collect_step(self, clock: Clock) -> tuple[Outcome, int]:
        """What the oldest step changed, and when it ended."""
        result = self.executor.collect()
        self._in_flight -= 1
        self._nothing_to_plan = False
        clock.wait_until(result.end_ns)
        return self.scheduler.update(result), result.end_ns


class FastForward(Protocol):
    """Takes many steps at once where nothing but decodes can happen. Called before a step is planned, at depth 0."""

    def __call__(self, next_due: NextDue) -> tuple[Outcome, int] | None:
        """The steps taken, and when the last of them ended; None: the next step must be planned."""
        ...


def drive(
    instances: Instances,
    source: Source[Item],
    clock: Clock,
    make_request: Callable[[Item], Request],
    take: Take,
    stop: Callable[[], bool],
    *,
    fast_forward: FastForward | None = None,
) -> bool:
    """The loop itself. True where it was told to stop, and has aborted what was left."""

    def record(outcome: Outcome, at_ns: int) -> None:
        for request in outcome.finished:
            source.completed(request.index, at_ns)
        take(outcome, at_ns)

    stopping = False
    while True:
        now_ns = clock.now_ns()
        stopping = stopping or stop()
        new, aborted = ([], instances.live_indices()) if stopping else source.poll(now_ns)
        for item in new:
            record(instances.submit(make_request(item), now_ns), now_ns)
        for index in aborted:
            record(instances.abort(index), now_ns)
        if fast_forward is not None and not stop() and (skipped := fast_forward(source.next_due_ns)) is not None:
            record(*skipped)
            continue
        instances.launch(clock.now_ns())
        if instances.idle and (stopping or source.exhausted):
            return stopping
        for outcome, end_ns in instances.collect(clock, _never_due if stopping else source.next_due_ns):
            record(outcome, end_ns)


def _never_due() -> None:
    """Of a source that is no longer polled."""
