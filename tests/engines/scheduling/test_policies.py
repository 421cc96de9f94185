"""Order, fairness, quotas, priority, buckets and patience, each by the smallest input that shows it."""

from __future__ import annotations

import numpy as np
import pytest

from engines.ledger import Blocked
from engines.scheduling.plan import StepPlan
from engines.scheduling.request import Request
from engines.scheduling.resource_gate import Quota
from tests.engines.scheduling.driving import STEP_NS, Driven, req
from workloads.errors import CbbenchError


def _ends(d: Driven) -> list[int]:
    return [r.index for r in d.finished]


def _one_at_a_time(order: str, *requests: Request, **options: object) -> list[int]:
    """The order in which requests that wait together are served in a single slot."""
    return _ends(Driven.of(max_num_seqs=1, order=order, **options).submit(*requests).drain())


# -- order -------------------------------------------------------------------------------------------------------------


def test_each_order_serves_by_its_own_rank() -> None:
    a, b, c = (4, 9, 2), (9, 2, 0), (2, 4, 1)  # prompt, output, priority

    def served(order: str) -> list[int]:
        return _one_at_a_time(order, *(req(i, p, o, priority=u) for i, (p, o, u) in enumerate((a, b, c))))

    assert served("fcfs") == [0, 1, 2]
    assert served("shortest-prompt") == [2, 0, 1]
    assert served("shortest-known") == [2, 1, 0]
    assert served("priority") == [1, 2, 0]


def test_predicted_length_is_learnt_from_the_tenants_own_requests() -> None:
    d = Driven.of(max_num_seqs=1, order="shortest-predicted")
    d.submit(*(req(i, 4, 30, tenant="long") for i in range(3)), *(req(i, 4, 2, tenant="short") for i in range(3, 6)))
    d.drain()
    d.submit(req(10, 4, 30, tenant="long"), req(11, 4, 30, tenant="short")).drain()  # same prompt, same limit
    assert _ends(d)[-2:] == [11, 10]


def test_shortest_first_starves_and_ageing_bounds_the_wait() -> None:
    """TRT-LLM#12428: score = length - rate * wait; a long request is admitted by wait <= (long - short) / rate."""

    def waited_steps(ageing: float | None) -> int:
        d = Driven.of(max_num_seqs=1, max_num_batched_tokens=200, order="shortest-prompt", ageing=ageing)
        long = req(0, 100, 1)
        d.submit(req(999, 1, 1), long)
        for i in range(1, 300):
            d.submit(req(i, 1, 1))  # one short request arrives at every step
            d.step()
        return long.stints[0].admitted if long.stints else 300

    rate = 1000.0  # tokens per second: one per 1 ms step
    assert waited_steps(None) == 300  # starved
    bound_steps = (100 - 1) / rate / (STEP_NS / 1e9)
    assert bound_steps - 2 <= waited_steps(rate) <= bound_steps + 3  # it waits for one running, and two that tie


def test_ranks_that_would_cross_give_the_order_of_a_fresh_sort() -> None:
    """vllm#20608: ageing inside __lt__ read the clock, so the heap's order went wrong as ranks crossed."""
    rng = np.random.default_rng(3)
    d = Driven.of(max_num_seqs=1, order="shortest-prompt", ageing=1777.0, max_num_batched_tokens=64)
    requests = [req(i, int(rng.integers(1, 40)), 1) for i in range(60)]
    for request in requests:
        d.submit(request)
        if request.index % 3 == 0:
            d.step()
    waiting = [r for r in requests if not r.stints and not r.finished and r.slot < 0]
    now_s = d.now_ns / 1e9

    def score(r: Request) -> tuple[float, int]:
        return r.prompt_tokens - 1777.0 * (now_s - r.submitted_ns / 1e9), r.index

    expected = [r.index for r in sorted(waiting, key=score)]
    served_before = len([r for r in requests if r not in waiting])
    d.drain()
    assert _ends(d)[served_before:] == expected


# -- priority ----------------------------------------------------------------------------------------------------------


def test_urgent_request_waits_for_a_slot_or_takes_one_but_never_passes_the_gate() -> None:
    """vllm#40004: a high-priority request waits since only KV shortage preempts."""
    for yields, admitted in ((True, 4), (False, 10)):
        d = Driven.of(max_num_seqs=2, order="priority", preempt_for_priority=yields)
        d.submit(req(0, 1, 9, priority=5), req(1, 1, 9, priority=5))
        for _ in range(3):
            d.step()
        d.submit(req(2, 1, 3, priority=0)).drain()  # every plan is checked against slots, tokens and blocks
        urgent = next(r for r in d.finished if r.index == 2)
        assert urgent.stints[0].admitted == admitted
        assert [r.output_tokens for r in sorted(d.finished, key=lambda r: r.index)] == [9, 9, 3]
        assert d.steps["preempted"].sum() == int(yields)


def test_preempting_for_priority_needs_the_priority_order() -> None:
    with pytest.raises(CbbenchError, match=r"^preempt_for_priority: needs `order` priority"):
        Driven.of(preempt_for_priority=True)


def test_victim_is_planned_neither_before_nor_after_its_eviction() -> None:
    """vllm#49097: A(prio 3), B(1), C(1); C needs a block and A is preempted: the plan has B and C once, not A."""
    d = Driven.of(kv_blocks=6, max_num_seqs=3, order="priority", victim="lowest-priority")
    d.submit(req(0, 4, 8, priority=3), req(1, 5, 8, priority=1), req(2, 4, 8, priority=1))
    while not any(row["preempted"] for row in d.ledger):
        plan = d.step()
    assert plan is not None
    assert [r.index for r in plan.requests] == [1, 2]
    assert d.drain().finished[-1].index == 0


@pytest.mark.parametrize(("victim", "index"), [("newest", 2), ("least-computed", 1), ("lowest-priority", 0)])
def test_victim_order_is_a_policy(victim: str, index: int) -> None:
    d = Driven.of(kv_blocks=9, max_num_seqs=3, victim=victim, max_num_batched_tokens=64)
    d.submit(req(0, 12, 9, priority=9), req(1, 4, 30), req(2, 12, 9))
    while not any(row["preempted"] for row in d.ledger):
        d.step()
    assert [r.index for r in d.scheduler.waiting] == [index]
    assert d.ledger[-1]["evicted_tokens"] > 0
    d.drain()


# -- head of line ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("skip_ahead", "passed"), [(0, []), (2, [2, 3])])
def test_a_big_head_is_passed_at_most_k_times(skip_ahead: int, passed: list[int]) -> None:
    """vllm#33499: B=10, 8 blocks used, the head needs 9: strict lets none pass; skip-ahead K, then keeps for it."""
    d = Driven.of(kv_blocks=10, max_num_batched_tokens=64, skip_ahead=skip_ahead)
    d.submit(req(0, 29, 4))  # 8 blocks
    d.step()
    d.submit(req(1, 33, 1), *(req(i, 1, 1) for i in range(2, 6)))
    d.step()
    d.step()
    assert [r.index for r in d.finished] == passed
    assert Blocked.KV in d.steps["blocked"]
    d.drain()


def test_first_come_first_served_makes_short_requests_wait_behind_long_ones() -> None:
    """vllm#1372: on one trace the 95th percentile wait orders as shortest < ageing < fcfs for the short ones."""

    def p95_wait_of_the_short(**options: object) -> float:
        d = Driven.of(max_num_seqs=2, **options)
        rng = np.random.default_rng(0)
        for i in range(80):
            d.submit(req(i, *((2, 2) if rng.random() < 0.7 else (12, 40))))
            d.step()
        d.drain()
        return float(np.percentile([r.stints[0].admitted - r.index for r in d.finished if r.prompt_tokens == 2], 95))

    shortest, aged, fcfs = (
        p95_wait_of_the_short(**options)
        for options in ({"order": "shortest-known"}, {"order": "shortest-known", "ageing": 1000.0}, {})
    )
    assert shortest < aged < fcfs


# -- tenants -----------------------------------------------------------------------------------------------------------


def test_a_tenant_at_its_quota_holds_back_no_other_and_never_exceeds_it() -> None:
    """Quota of 4 blocks and 2 slots against five requests of (8, 1)."""
    d = Driven.of(max_num_batched_tokens=64, quotas={"a": Quota(max_num_seqs=2, kv_blocks=4)})
    d.submit(*(req(i, 8, 1, tenant="a") for i in range(5)), req(9, 4, 2, tenant="b"))
    d.step()
    admitted = [r.index for r in d.plans[0].requests]
    assert admitted == [0, 1, 9]
    assert d.ledger[0]["blocked"] == Blocked.QUOTA
    d.drain()
    assert len(d.finished) == 6


def test_what_can_never_fit_its_quota_is_rejected_with_the_numbers() -> None:
    d = Driven.of(quotas={"a": Quota(kv_blocks=4)}).submit(req(0, 16, 2, tenant="a"), req(1, 16, 2, tenant="b")).drain()
    assert d.finished[0].error == "exceeds_quota: needs 5 KV blocks, tenant a may hold 4"
    assert d.finished[1].finish_reason == "length"


def test_token_rate_quota_holds_in_the_long_run_and_wakes_up_by_itself() -> None:
    """21 requests of 100 tokens at 1000 tokens/s: a second's worth is there at the start, the rest takes a second."""
    d = Driven.of(max_model_len=200, max_num_batched_tokens=128, quotas={"a": Quota(tokens_per_s=1000.0)})
    d.submit(*(req(i, 90, 10, tenant="a") for i in range(21))).drain()
    last = max(r.stints[0].admitted for r in d.finished)
    assert len(d.finished) == 21
    started_s = d.steps["now_ns"][last - 1] / 1e9
    assert 0.9 <= started_s <= 1.1


def _service_gap(order: str) -> float:
    """Largest difference of service (prompt + 2 * output) between two tenants who always have work."""
    d = Driven.of(max_num_seqs=4, order=order)
    next_index = iter(range(10_000))
    gap = 0.0
    service = {"a": 0.0, "b": 0.0}
    for step in range(250):
        for tenant, every in (("a", 1), ("b", 3)):  # a floods with three times the requests
            if step % every == 0:
                d.submit(req(next(next_index), 4, 6, tenant=tenant))
        d.step()
        for request in d.plans[-1].requests:
            service[request.tenant] += 2.0
        gap = max(gap, service["a"] - service["b"])
    return gap


def test_fair_order_bounds_the_service_gap_that_first_come_lets_grow() -> None:
    """VTC: |W_a - W_b| <= 2 * max(w_p * longest prompt, w_q * tokens in the batch) while both have work."""
    assert _service_gap("fair") <= 2 * max(1 * 4, 2 * 4 * 6)
    assert _service_gap("fcfs") > 5 * _service_gap("fair")


def test_returning_tenant_earns_no_credit_for_having_been_away() -> None:
    d = Driven.of(max_num_seqs=1, order="fair")
    d.submit(*(req(i, 4, 4, tenant="a") for i in range(20)))
    for _ in range(40):
        d.step()
    d.submit(*(req(100 + i, 4, 4, tenant="b") for i in range(5)))
    d.drain()
    order = ["a" if i < 100 else "b" for i in _ends(d)]
    first_b = order.index("b")
    assert order[first_b : first_b + 4].count("b") <= 3  # it takes turns; it does not get five in a row


# -- prompts of different length -----------------------------------------------------------------------------------


def test_chunk_cap_lets_a_short_prompt_pass_a_long_one() -> None:
    """club-3090#712: T=16, long (160, 1) then (4, 1): with a cap of 8 the short one is done at step 1."""
    d = Driven.of(max_prompt_chunk=8).submit(req(0, 160, 1), req(1, 4, 1)).drain()
    assert next(r for r in d.finished if r.index == 1).event_steps().tolist() == [1]


def _partial(plan: StepPlan) -> list[int]:
    """Prompts that the step leaves partly computed."""
    rows = zip(plan.requests, plan.starts, plan.counts, strict=True)
    return [one.prompt_tokens for one, start, count in rows if start + count < one.prompt_tokens]


def test_the_number_of_partly_computed_prompts_is_limited() -> None:
    """Ten tokens of each a step: without a limit three of them go on side by side, and end together."""

    def first_tokens(**limits: int) -> list[int]:
        d = Driven.of(max_num_batched_tokens=40, max_prompt_chunk=10, **limits)
        d.submit(req(0, 40, 1), req(1, 40, 1), req(2, 40, 1), req(3, 4, 1)).drain()
        assert max(len(_partial(plan)) for plan in d.plans) == limits.get("max_num_partial_prefills", 3)
        return [int(one.event_steps()[0]) for one in sorted(d.finished, key=lambda one: one.index)]

    assert first_tokens() == [4, 4, 4, 1]
    # Step 4 leaves none of the first two in part. First come, first served: 3 waits behind 2.
    assert first_tokens(max_num_partial_prefills=2) == [4, 4, 7, 4]
    assert first_tokens(max_num_partial_prefills=1) == [4, 7, 10, 7]


def test_short_prompts_pass_long_ones_of_which_as_many_are_partly_computed_as_may_be() -> None:
    d = Driven.of(max_num_batched_tokens=40, max_prompt_chunk=10, max_long_partial_prefills=1)
    d.submit(req(0, 40, 1), req(1, 40, 1), req(2, 4, 1)).drain()
    assert max(len(_partial(plan)) for plan in d.plans) == 1
    assert [int(one.event_steps()[0]) for one in sorted(d.finished, key=lambda one: one.index)] == [4, 7, 1]
    assert [Blocked(one).name for one in d.steps["blocked"][:4]] == ["PARTIAL"] * 3 + ["NO"]


def test_a_limit_on_long_prompts_needs_to_know_which_are_long() -> None:
    with pytest.raises(CbbenchError, match=r"^max_long_partial_prefills: needs `max_prompt_chunk`"):
        Driven.of(max_long_partial_prefills=1)


def test_buckets_take_turns_so_a_short_prompt_waits_one_step_at_most() -> None:
    def first_token(**options: object) -> int:
        d = Driven.of(**options).submit(req(0, 160, 1))
        d.step()
        d.submit(req(1, 4, 1)).drain()
        assert all(len({p > 8 for p in _prompts(plan)}) <= 1 for plan in d.plans) or not options
        return int(next(r for r in d.finished if r.index == 1).event_steps()[0])

    assert first_token() == 11
    assert first_token(prompt_buckets=(8,)) <= 3


def _prompts(plan: object) -> list[int]:
    rows = zip(plan.requests, plan.starts, strict=True)  # type: ignore[attr-defined]
    return [request.prompt_tokens for request, start in rows if start < request.prompt_tokens]


def test_static_batches_hold_one_bucket() -> None:
    d = Driven.of(mode="static", max_num_seqs=4, max_num_batched_tokens=64, prompt_buckets=(8,))
    d.submit(*(req(i, 4 if i % 2 else 20, 2) for i in range(8))).drain()
    assert [sorted({r.prompt_tokens for r in p.requests}) for p in d.plans if p.starts.sum() == 0] == [[20], [4]]
    assert d.steps["prompt_padding_tokens"].sum() == 0


def test_sorted_static_wastes_less_than_first_come() -> None:
    def dead(order: str) -> int:
        d = Driven.of(mode="static", max_num_seqs=4, order=order)
        d.submit(*(req(i, 1, o) for i, o in enumerate((1, 30, 2, 31, 1, 32, 2, 33)))).drain()
        return int(d.steps["dead_row_tokens"].sum())

    assert (dead("fcfs"), dead("shortest-known")) == (2 * 30 + 29 + 1 + 32 + 31 + 1 - 30, 1 + 0 + 1 + 3 + 2 + 1)


def test_static_waits_for_its_slots_to_fill_but_not_for_ever() -> None:
    d = Driven.of(mode="static", max_num_seqs=4, static_patience_s=0.005)
    d.submit(req(0, 1, 2))
    assert d.step() is None
    assert d.scheduler.wake_at_ns == 5 * STEP_NS
    d.submit(*(req(i, 1, 2) for i in range(1, 4)))
    assert d.step() is not None  # four wait: no reason to wait longer
    d.drain()
    d.submit(req(9, 1, 2)).drain()  # alone: starts when its patience is over
    assert d.finished[-1].index == 9


def test_patience_counts_from_the_oldest_waiting_request() -> None:
    """A later request that goes first by the order does not begin the wait again."""
    d = Driven.of(mode="static", order="shortest-prompt", max_num_seqs=4, static_patience_s=0.005)
    d.submit(req(0, 8, 2))
    d.now_ns = 3 * STEP_NS
    d.submit(req(1, 1, 2))
    assert d.step() is None
    assert d.now_ns == d.scheduler.wake_at_ns == 5 * STEP_NS
    assert d.step() is not None


def test_patience_counts_the_requests_that_can_join_the_batch() -> None:
    """A batch is of one bucket: prompts of another do not fill it."""
    d = Driven.of(mode="static", prompt_buckets=(4,), max_num_seqs=2, static_patience_s=0.005)
    d.submit(req(0, 1, 2), req(1, 8, 2))
    assert d.step() is None
    d.submit(req(2, 2, 2))
    plan = d.step()
    assert plan is not None
    assert [request.index for request in plan.requests] == [0, 2]


def test_a_full_batch_does_not_wait_for_one_of_another_bucket() -> None:
    d = Driven.of(mode="static", prompt_buckets=(4,), max_num_seqs=2, static_patience_s=0.005)
    d.submit(req(0, 1, 2), req(1, 8, 2), req(2, 9, 2))
    plan = d.step()
    assert plan is not None
    assert [request.index for request in plan.requests] == [1, 2]
    d.drain()


def test_the_batch_that_is_due_first_goes_first() -> None:
    """Whichever prompt the order puts first."""
    d = Driven.of(mode="static", order="shortest-prompt", prompt_buckets=(4,), max_num_seqs=2, static_patience_s=0.005)
    d.submit(req(0, 8, 2))
    d.now_ns = 3 * STEP_NS
    d.submit(req(1, 1, 2))
    assert d.step() is None
    assert d.now_ns == 5 * STEP_NS
    plan = d.step()
    assert plan is not None
    assert [request.index for request in plan.requests] == [0]


# -- admission ---------------------------------------------------------------------------------------------------------


def test_peak_admission_takes_more_than_full_reserve_and_never_preempts_when_lengths_are_exact() -> None:
    requests = [(4, 1 + 3 * i) for i in range(8)]

    def run(admission: str) -> tuple[int, int]:
        d = Driven.of(kv_blocks=24, admission=admission, max_num_batched_tokens=64)
        d.submit(*(req(i, p, o) for i, (p, o) in enumerate(requests))).drain()
        return len(d.plans), int(d.steps["preempted"].sum())

    peak_steps, peak_preemptions = run("peak")
    reserve_steps, _ = run("full-reserve")
    assert peak_preemptions == 0
    assert peak_steps <= reserve_steps


def test_peak_admission_counts_those_admitted_in_the_same_step() -> None:
    """Either of the two fits beside the first: 23 positions are 6 of 10 blocks. Both do not."""
    d = Driven.of(kv_blocks=10, admission="peak").submit(req(0, 4, 8))
    d.step()
    d.submit(req(1, 4, 20), req(2, 4, 20)).drain()
    assert Blocked.PEAK in d.steps["blocked"]
    assert d.steps["preempted"].sum() == 0
    assert d.finished[2].stints[0].admitted > d.finished[1].stints[0].admitted + 10


def test_optimistic_admission_recomputes_a_bounded_share() -> None:
    """vllm#18115: 4 contexts fit, a fifth makes them preempt each other; it must still end, with bounded rework."""
    d = Driven.of(kv_blocks=40, max_num_batched_tokens=8, admission="optimistic")
    d.submit(*(req(i, 36, 4) for i in range(5))).drain()
    assert [r.output_tokens for r in d.finished] == [4] * 5
    assert d.steps["recomputed_tokens"].sum() <= 5 * 39
    assert max(r.preemptions for r in d.finished) <= 5
