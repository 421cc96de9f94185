"""Step times and small runs for the simulator's tests."""

from __future__ import annotations

from collections.abc import Callable

from engines.base import Observer, RunRecord, SilentObserver
from engines.loop import Executor, Instance, VirtualClock
from engines.recorded_loop import run_loop
from engines.scheduling.config import SchedulerConfig
from engines.simulated.cost import CostExecutor
from engines.simulated.engine import PROMPT_IDS, make_request
from engines.simulated.step_time import DecodeTerms, FittedStepTimes, GapTerms, MixedTerms, Origin
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import PlanSource

# An 8B model on a small GPU, in ns; none of the numbers is round, so that every term shows in the last digit.
STEP_TIMES = FittedStepTimes(
    calibrated=True,
    decode=DecodeTerms(step=16_880_123.4, row=41_613.7, kv=153.31),
    mixed=MixedTerms(
        step=15_912_345.6, token=31_234.5, beyond_knee=61_234.7, knee_tokens=192,
        row=41_613.7, kv=153.31, pair=9.13, prefill_kv=77.7,
    ),
    gap=GapTerms(step=812_345.6, row=10_123.4),
    origin=Origin(source="a test"),
)  # fmt: skip


def run_step_by_step(
    plan: RequestPlan,
    config: SchedulerConfig,
    executor: Callable[[VirtualClock], Executor] = lambda clock: CostExecutor(STEP_TIMES, clock),
    observer: Observer | None = None,
    depth: int = 0,
    **pacing: object,
) -> RunRecord:
    """What SimulatedEngine must equal: the loop of every engine, one step at a time."""
    clock = VirtualClock()
    return run_loop(
        Instance(config.build(), executor(clock), depth),
        PlanSource(
            plan,
            Pacing(plan.arrivals_ugap, **pacing),  # type: ignore[arg-type]
            Prompts(plan, PROMPT_IDS) if config.prefix_caching else None,
        ),
        clock,
        observer or SilentObserver(),
        planned=len(plan),
        make_request=make_request,
    )


def assert_same_record(left: RunRecord, right: RunRecord) -> None:
    """Bit for bit, the ledger column by column so that a difference has a name."""
    assert len(left.steps) == len(right.steps)
    for name in left.steps.dtype.names or ():
        assert left.steps[name].tolist() == right.steps[name].tolist(), name
    assert list(left.rows) == list(right.rows)
    assert left.event_values.tolist() == right.event_values.tolist()
    assert list(left.signals) == list(right.signals)
    assert (left.planned, left.interrupted) == (right.planned, right.interrupted)
