from __future__ import annotations

import numpy as np

from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.rates import NS
from workloads.source import Incoming, PlanSource


def plan_of(count: int) -> RequestPlan:
    return RequestPlan.of(
        np.arange(1, count + 1),
        np.arange(11, count + 11),
        tenant=np.arange(count) % 2,
        priority=np.arange(count) % 3,
        tenants=("a", "b"),
    )


def test_a_request_carries_its_row_of_the_plan() -> None:
    plan = plan_of(4)
    source = PlanSource(plan, Pacing(plan.arrivals_ugap, rate_per_s=1))
    source.poll(NS)
    new, aborted = source.poll(3 * NS)
    assert new == [
        Incoming(2, 2 * NS, 2 * NS, prompt_tokens=3, output_tokens=13, tenant="a", priority=2),
        Incoming(3, 3 * NS, 3 * NS, prompt_tokens=4, output_tokens=14, tenant="b", priority=0),
    ]
    assert aborted == []
    assert source.exhausted


def test_prompts_come_along_when_there_are_any() -> None:
    plan = plan_of(2)
    prompts = Prompts(plan, np.arange(100, dtype=np.int32), prompt_seed=3)
    (first, second), _ = PlanSource(plan, Pacing(plan.arrivals_ugap), prompts).poll(0)
    assert first.prompt is not None
    assert second.prompt is not None
    assert np.array_equal(second.prompt, prompts.ids(1))
    assert len(first.prompt) == 1


def test_at_the_deadline_what_still_runs_is_aborted_once() -> None:
    plan = plan_of(5)
    source = PlanSource(plan, Pacing(plan.arrivals_ugap, rate_per_s=1, duration_s=3, drain_s=2))
    source.poll(2 * NS)
    source.completed(1, 3 * NS)
    assert source.next_due_ns() == 5 * NS  # nothing to send any more, but something to abort
    assert source.poll(5 * NS - 1) == ([], [])
    assert source.poll(5 * NS) == ([], [0, 2])
    assert source.poll(6 * NS) == ([], [])
    assert source.next_due_ns() is None
    for index in (0, 2):
        source.completed(index, 6 * NS)
    assert source.exhausted


def test_what_came_due_but_is_seen_only_after_the_deadline_is_given_and_aborted() -> None:
    plan = plan_of(2)
    source = PlanSource(plan, Pacing(plan.arrivals_ugap, rate_per_s=1, duration_s=3, drain_s=0))
    source.poll(0)
    new, aborted = source.poll(4 * NS)
    assert [one.index for one in new] == [1]
    assert aborted == [0, 1]


def test_slots_freed_by_the_deadline_bring_nothing_new() -> None:
    plan = plan_of(9)
    source = PlanSource(plan, Pacing(plan.arrivals_ugap, rate_per_s=100, concurrency=2, duration_s=1, drain_s=1))
    source.poll(0)
    source.poll(NS // 2)
    assert source.poll(2 * NS) == ([], [0, 1])
    source.completed(0, 2 * NS)
    source.completed(1, 2 * NS)
    assert source.poll(2 * NS) == ([], [])
    assert source.exhausted
