"""Replay: a recorded run's requests and step times fed back into a fresh scheduler. Same policy, same record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engines.base import RunRecord, SilentObserver
from engines.ledger import StepArray
from engines.loop import Clock, Executor, Instance
from engines.recorded_loop import run_loop
from engines.request_table import RequestRow
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepPlan, StepResult
from engines.simulated.engine import make_request
from workloads.source import Incoming


class RecordedClock:
    """Shows, at every turn of the loop, the time that the recorded run's next step was planned at."""

    def __init__(self, steps: StepArray) -> None:
        self._planned_ns = steps["now_ns"].tolist()
        self._next = 0
        self._now_ns = self._planned_ns[0]

    def now_ns(self) -> int:
        return self._now_ns

    def wait_until(self, when_ns: int) -> None:
        planned_ns = self._planned_ns[self._next] if self._next < len(self._planned_ns) else 0
        self._now_ns = max(when_ns, planned_ns)

    def step_done(self) -> None:
        self._next += 1


class RecordedExecutor:
    def __init__(self, steps: StepArray, clock: RecordedClock) -> None:
        self._steps = steps
        self._clock = clock
        self._submitted: list[int] = []

    def submit(self, plan: StepPlan) -> None:
        self._submitted.append(plan.step)
        self._clock.step_done()

    def collect(self) -> StepResult:
        step = self._submitted.pop(0)
        row = self._steps[step - 1]
        return StepResult(step, None, int(row["start_ns"]), int(row["end_ns"]), int(row["busy_ns"]))


class RecordedSource:
    """Every request at the turn that took it in the recorded run; that is after it was due, never before."""

    def __init__(self, rows: Sequence[RequestRow]) -> None:
        self._rows = sorted(rows, key=lambda row: row.i)

    def poll(self, now_ns: int) -> tuple[list[Incoming], list[int]]:
        due = [row for row in self._rows if row.submitted is not None and row.submitted <= now_ns]
        self._rows = self._rows[len(due) :]
        return [_incoming(row) for row in due], []

    def next_due_ns(self) -> int | None:
        return self._rows[0].submitted if self._rows else None

    def completed(self, index: int, now_ns: int) -> None: ...

    @property
    def exhausted(self) -> bool:
        return not self._rows


def _incoming(row: RequestRow) -> Incoming:
    assert row.sent is not None
    return Incoming(row.i, row.scheduled, row.sent, row.prompt_tokens, row.output_tokens, row.tenant, row.priority)


def replay(record: RunRecord, config: SchedulerConfig) -> RunRecord:
    clock = RecordedClock(record.steps)
    return run_loop(
        Instance(config.build(), RecordedExecutor(record.steps, clock)),
        RecordedSource(record.rows),
        clock,
        SilentObserver(),
        planned=record.planned,
        make_request=make_request,
    )


@dataclass
class PlanLog:
    """An executor that notes every plan it passes on, as plain numbers."""

    inner: Executor
    plans: list[tuple[object, ...]] = field(default_factory=list)

    def submit(self, plan: StepPlan) -> None:
        columns = (plan.slots, plan.starts, plan.counts, plan.padding, plan.samples, plan.dead_slots, plan.dead_lengths)
        requests = [request.index for request in plan.requests]
        self.plans.append((plan.step, requests, *(column.tolist() for column in columns), plan.dead_tokens))
        self.inner.submit(plan)

    def collect(self) -> StepResult:
        return self.inner.collect()


class JitterExecutor:
    """Steps of pseudo-random length, as a disturbed machine has them, with some idle time before each."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self._clock = clock
        self._random = np.random.default_rng(seed)
        self._submitted: list[int] = []

    def submit(self, plan: StepPlan) -> None:
        self._submitted.append(plan.step)

    def collect(self) -> StepResult:
        gap_ns, duration_ns = self._random.integers(1, [2_000_000, 40_000_000]).tolist()
        start_ns = self._clock.now_ns() + gap_ns
        return StepResult(self._submitted.pop(0), None, start_ns, start_ns + duration_ns, duration_ns)
