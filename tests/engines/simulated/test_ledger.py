"""The ledger holds what a calibration needs, without the plans of the steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from engines.loop import VirtualClock
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepPlan, StepResult
from engines.simulated.calibrate import measured_steps
from engines.simulated.cost import CostExecutor, shape_of
from engines.simulated.step_time import StepShape
from tests.engines.simulated.small_runs import STEP_TIMES, run_step_by_step
from workloads.plan import RequestPlan

CONFIG = SchedulerConfig(
    kv_blocks=60, block_size=4, max_model_len=200, max_num_seqs=6, max_num_batched_tokens=24,
    on_kv_pressure="swap", swap_blocks=40,
)  # fmt: skip


@dataclass
class ShapeLog:
    inner: CostExecutor
    shapes: list[StepShape] = field(default_factory=list)

    def submit(self, plan: StepPlan) -> None:
        self.shapes.append(shape_of(plan))
        self.inner.submit(plan)

    def collect(self) -> StepResult:
        return self.inner.collect()


@pytest.mark.parametrize("mode", ["continuous", "static"])
@pytest.mark.parametrize("depth", [0, 1])
def test_the_ledger_tells_the_shape_and_the_time_of_every_step(mode: str, depth: int) -> None:
    rng = np.random.default_rng(5)
    plan = RequestPlan.of(rng.integers(1, 90, 40), rng.integers(1, 50, 40))
    logs: list[ShapeLog] = []

    def executor(clock: VirtualClock) -> ShapeLog:
        logs.append(ShapeLog(CostExecutor(STEP_TIMES, clock)))
        return logs[-1]

    record = run_step_by_step(plan, replace(CONFIG, mode=mode), executor, depth=depth)  # type: ignore[arg-type]
    measured = measured_steps(record.steps)
    # How far a chunk fills a GPU is not in the ledger: step times that are fitted take no account of it.
    assert measured.shapes() == [shape._replace(narrow_pairs=0) for shape in logs[0].shapes]
    assert measured.duration_ns.tolist() == [STEP_TIMES.duration_ns(shape) for shape in logs[0].shapes]
    known = measured.gap_ns >= 0
    assert known.sum() > 0.8 * len(known)
    assert measured.gap_ns[known].tolist() == [STEP_TIMES.gap_ns(int(rows)) for rows in measured.rows[known]]
