"""The simulator's scheduler is the engine's: given the same step times it makes the same plans and the same records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engines.base import RunRecord, SilentObserver
from engines.loop import Instance, VirtualClock
from engines.recorded_loop import run_loop
from engines.scheduling.config import SchedulerConfig
from engines.simulated.engine import make_request
from tests.engines.simulated.replaying import (
    JitterExecutor,
    PlanLog,
    RecordedClock,
    RecordedExecutor,
    RecordedSource,
    replay,
)
from tests.engines.simulated.small_runs import assert_same_record
from workloads.pacing import Pacing
from workloads.plan import UGAP, RequestPlan
from workloads.source import PlanSource

CONFIG = SchedulerConfig(kv_blocks=60, block_size=4, max_model_len=200, max_num_seqs=6, max_num_batched_tokens=24)


def _plan(n: int, seed: int = 3) -> RequestPlan:
    rng = np.random.default_rng(seed)
    return RequestPlan.of(
        rng.integers(1, 90, n), rng.integers(1, 50, n), arrivals_ugap=np.cumsum(rng.exponential(UGAP, n).astype(int))
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"chunked_prefill": False, "max_num_batched_tokens": 90}, {"prefill": "prefill-first"}, {"mode": "static"}],
    ids=["continuous", "whole-prompts", "prefill-first", "static"],
)
@pytest.mark.parametrize("pacing", [{}, {"rate_per_s": 3.0}, {"concurrency": 4}], ids=["at-once", "rate", "closed"])
def test_recorded_step_times_give_the_same_plans_and_request_times(
    options: dict[str, object], pacing: dict[str, object]
) -> None:
    config, plan = replace(CONFIG, **options), _plan(40)  # type: ignore[arg-type]
    clock = VirtualClock()
    first = PlanLog(JitterExecutor(clock, seed=1))
    source = PlanSource(plan, Pacing(plan.arrivals_ugap, **pacing))  # type: ignore[arg-type]
    common = {"planned": len(plan), "make_request": make_request}
    recorded = run_loop(Instance(config.build(), first), source, clock, SilentObserver(), **common)  # type: ignore[arg-type]

    recorded_clock = RecordedClock(recorded.steps)
    second = PlanLog(RecordedExecutor(recorded.steps, recorded_clock))
    source_again = RecordedSource(recorded.rows)
    replayed = run_loop(Instance(config.build(), second), source_again, recorded_clock, SilentObserver(), **common)  # type: ignore[arg-type]

    assert second.plans == first.plans
    assert_same_record(replayed, recorded)


def _reference_run(config: SchedulerConfig, plan: RequestPlan, rate_per_s: float | None) -> RunRecord:
    torch = pytest.importorskip("torch")
    from engines.reference import load_model
    from engines.reference.engine import ReferenceEngine

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a model this small only waits for more, and on a busy machine for long
    try:
        model = load_model("tiny", weights="random", device="cpu", dtype="fp32")
        pacing = Pacing(plan.arrivals_ugap, rate_per_s=rate_per_s)
        return ReferenceEngine(model, config).run(plan, pacing, SilentObserver())
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("rate_per_s", [None, 40.0])
@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_a_real_run_replays_into_the_same_steps_and_times(mode: str, rate_per_s: float | None) -> None:
    """On the wall clock a request is taken in a few microseconds before its step is planned; the ledger knows only the
    latter, so `submitted` may differ by that much, and nothing else may."""
    config = replace(CONFIG, mode=mode)  # type: ignore[arg-type]
    recorded = _reference_run(config, _plan(12), rate_per_s)
    replayed = replay(recorded, config)
    assert replayed.steps.tolist() == recorded.steps.tolist()
    assert replayed.event_values.tolist() == recorded.event_values.tolist()
    for ours, real in zip(replayed.rows, recorded.rows, strict=True):
        assert ours.submitted is not None
        assert real.submitted is not None
        assert 0 <= ours.submitted - real.submitted < 50_000_000
        assert (ours.first, ours.last, ours.end, ours.stints) == (real.first, real.last, real.end, real.stints)
        assert (ours.scheduled, ours.sent, ours.preemptions) == (real.scheduled, real.sent, real.preemptions)
