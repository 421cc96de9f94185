"""The loop every engine of ours runs: schedule -> execute -> update, on a real or a virtual clock."""

from __future__ import annotations

import time
from typing import Protocol

from engines.scheduling.plan import StepPlan, StepResult


class Clock(Protocol):
    def now_ns(self) -> int:
        """ns since the run began."""
        ...

    def wait_until(self, when_ns: int) -> None:
        """Return at `when_ns` or a little later; may return earlier."""
        ...


class WallClock:
    """Monotonic time since it was made."""

    def __init__(self) -> None:
        self._zero_ns = time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._zero_ns

    def wait_until(self, when_ns: int) -> None:
        remaining_ns = when_ns - self.now_ns()
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
    """Computes plans. `submit` may return before the step has run; `collect` returns the oldest result not yet taken."""

    def submit(self, plan: StepPlan) -> None: ...

    def collect(self) -> StepResult: ...
