"""Whatever the settings, requests and arrivals: taking decode-only steps together changes not one bit of the record."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from engines.base import SilentObserver
from engines.request_table import RequestRow
from engines.scheduling.plan import IntArray
from engines.scheduling.resource_gate import Quota
from engines.scheduling.scheduler import Scheduler
from engines.simulated import fast_forward
from engines.simulated.engine import SimulatedEngine
from tests.engines.scheduling.driving import config
from tests.engines.simulated.small_runs import STEP_TIMES, assert_same_record, run_step_by_step
from workloads.pacing import Pacing
from workloads.plan import UGAP, RequestPlan

options = st.fixed_dictionaries(
    {
        "kv_blocks": st.integers(4, 60),
        "block_size": st.integers(1, 8),
        "max_num_seqs": st.integers(1, 8),
        "max_num_batched_tokens": st.integers(8, 40),
        "max_model_len": st.integers(20, 120),
        "mode": st.sampled_from(["continuous", "continuous", "static"]),
        "chunked_prefill": st.booleans(),
        "prefill": st.sampled_from(["decode-first", "prefill-first", "in-order"]),
        "static": st.sampled_from(["padded", "compact-held", "compact-freed"]),
        "static_patience_s": st.sampled_from([0.0, 0.0, 0.2]),
        "on_kv_pressure": st.sampled_from(["recompute", "delay", "reject", "swap"]),
        "swap_blocks": st.integers(1, 30),
        "watermark": st.sampled_from([0.0, 0.01, 0.3]),
        "order": st.sampled_from(["fcfs", "fcfs", "shortest-known", "shortest-predicted", "priority", "fair"]),
        "ageing": st.sampled_from([None, None, 5.0]),
        "skip_ahead": st.sampled_from([0, 0, 2]),
        "victim": st.sampled_from(["newest", "last", "least-computed", "lowest-priority"]),
        "prompt_buckets": st.sampled_from([(), (), (10, 30)]),
        "prefix_caching": st.sampled_from([False, False, True]),
        "quotas": st.sampled_from([{}, {}, {"a": Quota(max_num_seqs=2, tokens_per_s=50.0)}]),
    }
)
pacings = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"rate_per_s": st.sampled_from([0.5, 3.0, 10.0, 200.0])}),
    st.fixed_dictionaries({"concurrency": st.integers(1, 12)}),
    st.fixed_dictionaries({"rate_per_s": st.sampled_from([3.0, 30.0]), "concurrency": st.integers(1, 12)}),
    st.fixed_dictionaries(
        {
            "rate_per_s": st.sampled_from([3.0, 30.0]),
            "duration_s": st.sampled_from([0.3, 2.0]),
            "drain_s": st.sampled_from([0.0, 0.5]),
        }
    ),
)
# prompt, output, gap, tenant, priority
requests = st.tuples(
    st.integers(1, 60), st.integers(1, 60), st.integers(0, 3 * UGAP), st.integers(0, 1), st.integers(0, 2)
)


class StopsAfter(SilentObserver):
    def __init__(self, ends: int) -> None:
        self._left = ends

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self._left <= 0

    def request_ended(self, row: RequestRow, events: object) -> None:
        self._left -= 1


@settings(max_examples=150, deadline=None)
@given(options, pacings, st.lists(requests, min_size=1, max_size=25), st.sampled_from([None, None, 1, 4]))
def test_fast_forward_changes_nothing(
    chosen: dict[str, object],
    pacing: dict[str, object],
    wanted: list[tuple[int, int, int, int, int]],
    stop_after: int | None,
) -> None:
    prompts, outputs, gaps, tenant, priority = (
        np.array(column, dtype=np.int64) for column in zip(*wanted, strict=True)
    )
    plan = RequestPlan.of(
        prompts, outputs, arrivals_ugap=np.cumsum(gaps), tenant=tenant, priority=priority, tenants=("a", "b")
    )
    chosen["preempt_for_priority"] = chosen["order"] == "priority"
    settings_of_run = config(**chosen)

    def observer() -> SilentObserver:
        return SilentObserver() if stop_after is None else StopsAfter(stop_after)

    slow = run_step_by_step(plan, settings_of_run, observer=observer(), **pacing)
    skipped: list[int] = []
    advance = fast_forward.advance

    def counted(scheduler: Scheduler, slots: IntArray, steps: int, *more: object) -> None:
        skipped.append(steps)
        advance(scheduler, slots, steps, *more)  # type: ignore[arg-type]

    fast_forward.advance = counted
    try:
        fast = SimulatedEngine(settings_of_run, STEP_TIMES).run(
            plan,
            Pacing(plan.arrivals_ugap, **pacing),  # type: ignore[arg-type]
            observer(),
        )
    finally:
        fast_forward.advance = advance
    event(f"share of steps in fast-forwards: {10 * sum(skipped) // max(1, len(slow.steps))}/10")
    assert_same_record(fast, slow)
