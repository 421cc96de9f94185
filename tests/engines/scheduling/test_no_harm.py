"""A policy takes a slot, tokens, credit or a cached block from a request only where another gains by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engines.scheduling.request import Request
from engines.scheduling.resource_gate import Quota
from tests.engines.scheduling.driving import Driven, req

PRIORITY: dict[str, Any] = {"order": "priority", "preempt_for_priority": True}


def _first_token_step(d: Driven, index: int) -> int:
    return int(next(one for one in d.finished if one.index == index).event_steps()[0])


def test_a_head_that_its_quota_refuses_preempts_no_request() -> None:
    """The vip tenant has its one slot: the bulk request was preempted again and again for a second vip request."""
    d = Driven.of(max_num_seqs=2, quotas={"vip": Quota(max_num_seqs=1)}, **PRIORITY)
    d.submit(req(0, 4, 60, tenant="vip"), req(1, 60, 5, tenant="bulk", priority=5), req(2, 4, 2, tenant="vip")).drain()
    assert d.steps["preempted"].sum() == d.steps["recomputed_tokens"].sum() == 0


def test_a_quota_is_satisfied_by_the_tenants_own_less_urgent_request() -> None:
    d = Driven.of(max_num_seqs=3, quotas={"a": Quota(max_num_seqs=1)}, **PRIORITY)
    d.submit(req(0, 4, 60, tenant="a", priority=5), req(1, 4, 60, tenant="b", priority=9))
    d.step()
    d.submit(req(2, 4, 2, tenant="a")).drain()
    assert _first_token_step(d, 2) == 2
    assert [one.preemptions for one in sorted(d.finished, key=lambda one: one.index)] == [1, 0, 0]


@pytest.mark.parametrize("more", [{}, {"skip_ahead": 100}, {"prompt_buckets": (20,)}, {"swap_blocks": 50}])
def test_no_request_is_preempted_for_a_head_that_does_not_fit_all_the_same(more: dict[str, Any]) -> None:
    """An urgent request holds most of the pool until it ends; the two bulk requests together free too little."""
    if "swap_blocks" in more:
        more = more | {"on_kv_pressure": "swap"}

    def run(**options: object) -> Driven:
        d = Driven.of(kv_blocks=30, max_num_batched_tokens=64, admission="full-reserve", **(more | options))
        d.submit(req(0, 60, 21), req(1, 8, 9, priority=5), req(2, 8, 9, priority=5))
        for _ in range(3):
            d.step()
        return d.submit(req(3, 60, 5)).drain()

    on, off = run(**PRIORITY), run(order="priority")
    assert on.steps["preempted"].sum() == 0
    assert [plan.counts.tolist() for plan in on.plans] == [plan.counts.tolist() for plan in off.plans]


def test_only_as_many_are_preempted_as_are_needed() -> None:
    """Of three bulk requests of 2, 5 and 2 blocks the head needs the one of 5."""
    d = Driven.of(kv_blocks=9, max_num_batched_tokens=64, admission="full-reserve", **PRIORITY)
    d.submit(*(req(i, prompt, 5, priority=5) for i, prompt in enumerate((4, 16, 4))))
    d.step()
    d.submit(req(3, 16, 2)).drain()
    assert [one.preemptions for one in sorted(d.finished, key=lambda one: one.index)] == [0, 1, 0, 0]


def test_under_kv_pressure_the_least_urgent_is_preempted_though_a_more_urgent_prompt_is_newer() -> None:
    d = Driven.of(kv_blocks=10, max_num_batched_tokens=8, admission="optimistic", block_size=4, **PRIORITY)
    d.submit(req(0, 4, 30, priority=5))
    for _ in range(12):
        d.step()
    d.submit(req(1, 32, 2)).drain()
    urgent, bulk = d.finished
    assert (urgent.index, urgent.preemptions) == (1, 0)
    assert bulk.preemptions > 0


@pytest.mark.parametrize("more", [{}, PRIORITY, {"order": "priority"}])
def test_an_urgent_prompt_takes_tokens_from_a_less_urgent_one_that_is_computed(more: dict[str, Any]) -> None:
    """A long prompt took every step whole until its end. Decodes keep their tokens."""
    d = Driven.of(kv_blocks=200, **more)
    d.submit(req(0, 4, 60, priority=5), req(1, 400, 5, priority=5))
    for _ in range(3):
        d.step()
    d.submit(req(2, 10, 2), req(3, 3, 2))
    plan = d.step()
    assert plan is not None
    assert dict(zip((one.index for one in plan.requests), plan.counts.tolist(), strict=True)) == (
        {2: 10, 3: 3, 0: 1, 1: 2} if more else {0: 1, 1: 15}
    )
    d.drain()


def test_a_tenant_that_returns_is_lifted_to_one_that_only_runs() -> None:
    """Tenant b has one long request, which runs, so none of its requests waits: the old counter was kept as credit."""
    d = Driven.of(max_num_seqs=2, order="fair")
    d.submit(req(0, 1, 200, tenant="b"))
    d.step()
    d.submit(req(1, 1, 1, tenant="a"))
    for _ in range(100):
        d.step()
    d.submit(*(req(i, 4, 4, tenant="a") for i in range(10, 30)), *(req(i, 4, 4, tenant="b") for i in range(30, 40)))
    d.drain()
    admitted = [one.tenant for one in sorted(d.finished, key=lambda one: one.stints[0].admitted)][2:]
    assert admitted.index("b") <= 1


def _of(index: int, prompt: int, output: int) -> Request:
    return Request(index, prompt, output, prompt=np.zeros(prompt, np.int32))


def test_a_twin_takes_the_place_of_the_block_that_is_evicted() -> None:
    """Two equal prompts are computed in one step. The first to end leaves its blocks, which are evicted; the other
    goes on, and a third finds its prefix there."""
    d = Driven.of(kv_blocks=12, max_num_batched_tokens=40, prefix_caching=True)
    d.submit(_of(0, 16, 1), _of(1, 16, 16))
    d.step()
    assert [one.index for one in d.finished] == [0]
    other = Request(2, 16, 3, prompt=np.ones(16, np.int32))
    d.submit(other)
    while not other.finished:
        d.step()  # the pool's invariants are checked: no block is entered below one that is gone
    d.submit(_of(3, 16, 1)).drain()
    assert d.steps["prefix_hit_tokens"].sum() == 12


STALLING: dict[str, Any] = {
    "prefill": "prefill-first",
    "max_prompt_chunk": 1,
    "admission": "optimistic",
    "max_num_seqs": 4,
}


@pytest.mark.parametrize(
    ("depth", "settings", "wanted"),
    [
        # The blocks of a preempted request wait for the step in flight.
        (1, {"kv_blocks": 7, "block_size": 3, "victim": "lowest-priority"},
         [(12, 8, 2, 0), (9, 5, 3, 1), (14, 3, 4, 2), (12, 4, 4, 2), (8, 3, 7, 0)]),
        # Prompts take blocks from each other, and the decodes wait for all of them.
        (0, {"kv_blocks": 7, "block_size": 4, "victim": "least-computed", "prompt_buckets": (3, 10), **PRIORITY},
         [(15, 6, 3, 2), (13, 5, 5, 1), (7, 7, 7, 0), (6, 6, 7, 0)]),
        # The first in plan order takes all tokens of a step, and is the victim of the next.
        (1, {"kv_blocks": 12, "block_size": 2, "max_num_seqs": 2, "max_num_batched_tokens": 9, "prefill": "in-order",
             "order": "shortest-known", "victim": "lowest-priority", "max_prompt_chunk": None},
         [(15, 7, 4, 0), (10, 4, 2, 0), (15, 4, 2, 1)]),
    ],
)  # fmt: skip
def test_requests_that_take_blocks_from_each_other_all_end(
    depth: int, settings: dict[str, Any], wanted: list[tuple[int, int, int, int]]
) -> None:
    """A request that was preempted came back with too few blocks, took the others' tokens and was preempted again."""
    d = Driven.of(depth=depth, **STALLING | settings)
    for at in range(10):
        d.submit(*(req(i, *lengths, priority=p) for i, (*lengths, when, p) in enumerate(wanted) if when == at)).step()
    d.drain(1000)
    computed = sum(prompt + output for prompt, output, *_ in wanted)
    assert d.steps["preempted"].sum() > 0, "the pool is too large to show anything"
    assert d.steps["recomputed_tokens"].sum() < computed
