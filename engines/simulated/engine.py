"""SimulatedEngine: the scheduler on a virtual clock, where a step-time model gives the length of each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from engines.base import Observer, RunRecord
from engines.loop import Instance, VirtualClock
from engines.recorded_loop import run_loop
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Request
from engines.simulated.compiled_run import MIN_REQUESTS, run_compiled, why_not
from engines.simulated.cost import CostExecutor
from engines.simulated.fast_forward import DecodeFastForward
from engines.simulated.front_end import behind_front_end
from engines.simulated.step_time import StepTimeModel
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import Incoming, PlanSource

PROMPT_IDS = np.arange(1, 32_768, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class SimulatedEngine:
    """Every run starts from an idle scheduler at time 0. The same input gives the same record, bit for bit."""

    config: SchedulerConfig
    step_times: StepTimeModel
    least_compiled_requests: int = MIN_REQUESTS  # 0 in a process of many runs, which loads the compiled core once
    client: None = None  # nothing stands between the plan and the scheduler

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        if self._why_not_compiled(plan, pacing.duration_s) is not None:
            return self.run_on_scheduler(plan, pacing, observer)
        tables = self.step_times.tables(self.config.max_num_seqs, self.config.max_num_batched_tokens)
        assert tables is not None
        return run_compiled(self.config, tables, plan, pacing, observer, front_end_ns=self.step_times.front_end_ns)

    def run_on_scheduler(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        """The same, on the scheduler itself: what the compiled core must equal."""
        clock = VirtualClock()
        executor = CostExecutor(self.step_times, clock)
        scheduler = self.config.build()
        # Which blocks can be shared depends on what is in them; nothing else depends on what a prompt says.
        prompts = Prompts(plan, PROMPT_IDS) if self.config.prefix_caching else None
        source = behind_front_end(PlanSource(plan, pacing, prompts), self.step_times)
        overlapped = self.step_times.overlapped
        return run_loop(
            Instance(scheduler, executor, depth=int(overlapped)),
            source,
            clock,
            observer,
            planned=len(plan),
            make_request=make_request,
            fast_forward=None if overlapped else DecodeFastForward(scheduler, executor, clock),
        )

    def _why_not_compiled(self, plan: RequestPlan, duration_s: float | None) -> str | None:
        return why_not(self.config, self.step_times, plan, duration_s, self.least_compiled_requests)

    def describe(self, plan: RequestPlan, duration_s: float | None) -> dict[str, Any]:
        """The `config` of run.json's engine: what a run of `plan` takes place on, the pool, and the step-time model
        with its origin."""
        reason = self._why_not_compiled(plan, duration_s)
        return {
            "core": "compiled" if reason is None else f"scheduler: {reason}",
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
