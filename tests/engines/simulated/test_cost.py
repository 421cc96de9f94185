"""The executor that only counts: what it takes from a plan, and when its steps begin and end."""

from __future__ import annotations

import math

from engines.loop import VirtualClock
from engines.scheduling.plan import StepPlan
from engines.simulated.cost import CostExecutor, shape_of
from engines.simulated.step_time import StepShape
from tests.engines.scheduling.driving import Driven, req
from tests.engines.simulated.small_runs import STEP_TIMES


def _shapes(driven: Driven, steps: int) -> list[StepShape]:
    plans: list[StepPlan] = [plan for _ in range(steps) if (plan := driven.step()) is not None]
    return [shape_of(plan) for plan in plans]


def narrow(tokens: int, pairs: int) -> int:
    """What a chunk of so few tokens costs on top of its pairs: they are worth √(512 / tokens) times as many."""
    return int(pairs * (math.isqrt(512 * 1024 * 1024 // tokens) - 1024) / 1024)


def test_chunks_then_decodes() -> None:
    """A prompt of 20 under a budget of 16: chunks of 16 and 4, then single tokens."""
    first, second, third, fourth = _shapes(Driven.of().submit(req(0, 20, 3)), 4)
    assert first == StepShape(
        tokens=16, rows=1, kv=0, prefill_kv=0, prefill_pairs=16 * 17 // 2, narrow_pairs=narrow(16, 136)
    )
    assert second == StepShape(
        tokens=4, rows=1, kv=0, prefill_kv=16, prefill_pairs=4 * 16 + 4 * 5 // 2, narrow_pairs=narrow(4, 74)
    )
    assert third == StepShape(tokens=1, rows=1, kv=21, prefill_kv=0, prefill_pairs=0)
    assert fourth == StepShape(tokens=1, rows=1, kv=22, prefill_kv=0, prefill_pairs=0)
    assert not second.decode_only
    assert third.decode_only


def test_a_mixed_step_counts_decodes_and_chunks_apart() -> None:
    driven = Driven.of().submit(req(0, 5, 9))
    _shapes(driven, 2)
    driven.submit(req(1, 30, 2))
    (mixed,) = _shapes(driven, 1)
    assert mixed == StepShape(
        tokens=16, rows=2, kv=7, prefill_kv=0, prefill_pairs=15 * 16 // 2, narrow_pairs=narrow(15, 120)
    )


def test_the_padded_rectangle_is_launched_and_dead_rows_still_read() -> None:
    driven = Driven.of(mode="static", max_num_batched_tokens=40).submit(req(0, 6, 1), req(1, 4, 4))
    prefill, with_dead_row, _ = _shapes(driven, 3)
    assert prefill == StepShape(
        tokens=12, rows=2, kv=0, prefill_kv=0, prefill_pairs=21 + 10, narrow_pairs=narrow(6, 21) + narrow(4, 10)
    )
    assert with_dead_row == StepShape(tokens=2, rows=2, kv=5 + 6, prefill_kv=0, prefill_pairs=0)


def test_steps_follow_each_other_behind_the_gap() -> None:
    clock = VirtualClock()
    executor = CostExecutor(STEP_TIMES, clock)
    driven = Driven.of(depth=1).submit(req(0, 1, 5))
    clock.wait_until(1_000)
    first, second = driven.schedule(), driven.schedule()
    assert first is not None
    assert second is not None
    executor.submit(first)
    executor.submit(second)  # planned while the first runs
    done, next_done = executor.collect(), executor.collect()
    assert (done.step, next_done.step) == (1, 2)
    assert done.start_ns == 1_000 + STEP_TIMES.gap_ns(1)
    assert done.end_ns - done.start_ns == done.busy_ns == STEP_TIMES.duration_ns(shape_of(first))
    assert next_done.start_ns == done.end_ns + STEP_TIMES.gap_ns(1)
    assert done.tokens is None
