"""SimulatedEngine: the scheduler on a virtual clock, where a step-time model gives the length of each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from engines.base import Observer, RunRecord
from engines.loop import VirtualClock, run_loop
from engines.recorder import StepRecorder
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Scheduler
from engines.simulated.compiled_run import run_compiled, why_not
from engines.simulated.cost import CostExecutor
from engines.simulated.fast_forward import advance, growth_of, quiet_steps
from engines.simulated.front_end import FrontEnd
from engines.simulated.step_time import StepTimeModel
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import Incoming, PlanSource, Source

PROMPT_IDS = np.arange(1, 32_768, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class SimulatedEngine:
    """Every run starts from an idle scheduler at time 0. The same input gives the same record, bit for bit."""

    config: SchedulerConfig
    step_times: StepTimeModel
    client: None = None  # nothing stands between the plan and the scheduler

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        tables = self.step_times.tables(self.config.max_num_seqs, self.config.max_num_batched_tokens)
        if tables is not None and why_not(self.config, self.step_times, plan, pacing) is None:
            front_end_ns = self.step_times.front_end_ns
            return run_compiled(self.config, tables, plan, pacing, observer, front_end_ns=front_end_ns)
        return self.run_on_scheduler(plan, pacing, observer)

    def run_on_scheduler(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        """The same, on the scheduler itself: what the compiled core must equal."""
        clock = VirtualClock()
        executor = CostExecutor(self.step_times, clock)
        scheduler = self.config.build()
        # Which blocks can be shared depends on what is in them; nothing else depends on what a prompt says.
        prompts = Prompts(plan, PROMPT_IDS) if self.config.prefix_caching else None
        source: Source[Incoming] = PlanSource(plan, pacing, prompts)
        if self.step_times.front_end_ns:
            source = FrontEnd(source, self.step_times.front_end_ns)
        loop = partial(run_loop, depth=1) if self.step_times.overlapped else run_in_stretches
        return loop(scheduler, executor, source, clock, observer, planned=len(plan), make_request=make_request)

    def describe(self) -> dict[str, Any]:
        """The `config` of run.json's engine: the pool, and the step-time model with its origin."""
        return {
            "kv_blocks": self.config.kv_blocks,
            "block_size": self.config.block_size,
            "law": msgspec.to_builtins(self.step_times),  # the key that reports read, also in old runs
            "law_label": self.step_times.label,
        }


def make_request(one: Incoming) -> Request:
    """No sampled token has a value here, so nothing ends before its length."""
    return Request(
        one.index,
        one.prompt_tokens,
        one.output_tokens,
        prompt=one.prompt,
        tenant=one.tenant,
        priority=one.priority,
        scheduled_ns=one.scheduled_ns,
        sent_ns=one.sent_ns,
    )


def run_in_stretches(
    scheduler: Scheduler,
    executor: CostExecutor,
    source: Source[Incoming],
    clock: VirtualClock,
    observer: Observer,
    *,
    planned: int,
    make_request: Callable[[Incoming], Request],
) -> RunRecord:
    """engines.loop.run_loop at depth 0, with decode-only steps taken together where that changes nothing."""
    recorder = StepRecorder(observer, planned, scheduler.kv.num_blocks, thinned=True)
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

        if not observer.stopping and _take_stretch(scheduler, executor, source, clock, recorder):
            continue
        if (plan := scheduler.schedule(now_ns)) is not None:
            executor.submit(plan)
            result = executor.collect()
            clock.wait_until(result.end_ns)
            outcome = scheduler.update(result)
            for request in outcome.finished:
                source.completed(request.index, result.end_ns)
            recorder.take(outcome, result.end_ns)
        elif scheduler.idle and (stopping or source.exhausted):
            return recorder.record(interrupted=stopping)
        else:
            wakes = [ns for ns in (source.next_due_ns(), scheduler.wake_at_ns) if ns is not None]
            assert wakes, "nothing runs, nothing is due, and the source is not exhausted"
            clock.wait_until(min(wakes))


def _take_stretch(
    scheduler: Scheduler, executor: CostExecutor, source: Source[Incoming], clock: VirtualClock, recorder: StepRecorder
) -> bool:
    """Take all decode-only steps up to the first in which something may happen; False: there is no such stretch."""
    quiet = quiet_steps(scheduler)
    if quiet is None:
        return False
    starts_ns, ends_ns = executor.decode_stretch(quiet, source.next_due_ns())
    growth = growth_of(scheduler, quiet, len(ends_ns))
    if not (steps := len(growth.free)):
        return False
    starts_ns, ends_ns = starts_ns[:steps], ends_ns[:steps]
    stretch = advance(scheduler, quiet, growth, starts_ns, ends_ns)
    stretch.ledger["now_ns"][0] = clock.now_ns()
    stretch.ledger["now_ns"][1:] = ends_ns[:-1]
    end_ns = int(ends_ns[-1])
    clock.wait_until(end_ns)
    executor.ran_until(end_ns)
    for request in stretch.finished:
        source.completed(request.index, end_ns)
    recorder.take_stretch(stretch.ledger, stretch.finished)
    return True
