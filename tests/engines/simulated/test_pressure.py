"""What memory pressure costs, on a whole run: exact figures of the scheduler under a step-time model."""

from __future__ import annotations

from functools import cache

from engines.base import SilentObserver
from engines.scheduling.config import SchedulerConfig
from engines.simulated.engine import SimulatedEngine
from tests.engines.simulated.small_runs import STEP_TIMES
from workloads.pacing import Pacing
from workloads.plan import RequestPlan

REQUESTS = 200
PLAN = RequestPlan.of([40 + 37 * i % 160 for i in range(REQUESTS)], [20 + 53 * i % 180 for i in range(REQUESTS)])


@cache
def _run(watermark: float, victim: str = "newest") -> tuple[int, int, float]:
    """(preemptions, recomputed tokens, output tokens per second)"""
    config = SchedulerConfig(
        kv_blocks=300, max_model_len=512, max_num_seqs=32, max_num_batched_tokens=256, watermark=watermark,
        victim=victim,  # type: ignore[arg-type]
    )  # fmt: skip
    steps = SimulatedEngine(config, STEP_TIMES).run(PLAN, Pacing(PLAN.arrivals_ugap), SilentObserver()).steps
    tokens_per_s = steps["sampled_tokens"].sum() / steps["end_ns"][-1] * 1e9
    return int(steps["preempted"].sum()), int(steps["recomputed_tokens"].sum()), float(tokens_per_s)


def test_preemptions_fall_with_the_watermark_and_throughput_is_best_in_between() -> None:
    """vllm#44594: 0 -> 1065 preemptions, 2 % -> 400, 5 % -> 187, 10 % -> 168, and 2 to 5 % are the fastest."""
    runs = [_run(watermark) for watermark in (0.0, 0.02, 0.05, 0.10)]
    preemptions = [run[0] for run in runs]
    assert preemptions == sorted(preemptions, reverse=True)
    assert preemptions[0] > 2 * preemptions[1] > 0
    tokens_per_s = [run[2] for run in runs]
    assert tokens_per_s[0] < max(tokens_per_s[1:3]) > tokens_per_s[3]


def test_the_victim_that_computed_least_costs_least_to_compute_again() -> None:
    """vllm#54644: recomputing costs 10 to 23 %; the least computed victim halves it."""
    newest, least = _run(0.0), _run(0.0, "least-computed")
    assert 0 < least[1] < 0.8 * newest[1]
