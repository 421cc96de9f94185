"""A request is preempted for another only if that one is then admitted, and no more of them than it takes.

The judge does not ask what would be: it preempts in a copy of the whole scheduler, and asks the copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.policies.preemption import Fate
from engines.scheduling.request import Request, State
from engines.scheduling.resource_gate import Grant, Quota
from engines.scheduling.scheduler import Scheduler
from tests.engines.scheduling.driving import Driven, req
from tests.properties.test_scheduler import Wanted, _play, _prompt, aborts, lengths

quota = st.builds(Quota, max_num_seqs=st.none() | st.integers(1, 3), kv_blocks=st.none() | st.integers(1, 8))
by_priority = st.fixed_dictionaries(
    {
        "kv_blocks": st.integers(3, 14),
        "block_size": st.integers(1, 5),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 20),
        "max_model_len": st.integers(8, 60),
        "order": st.just("priority"),
        "preempt_for_priority": st.just(True),
        "ageing": st.none() | st.sampled_from([0.0, 100.0]),
        "skip_ahead": st.sampled_from([0, 2]),
        "prompt_buckets": st.sampled_from([(), (4,), (3, 10)]),
        "watermark": st.sampled_from([0.0, 0.1, 0.3]),
        "prefix_caching": st.booleans(),
        "quotas": st.just({}) | st.fixed_dictionaries({"a": quota}),
        "prefill": st.sampled_from(["decode-first", "prefill-first", "in-order"]),
        "admission": st.sampled_from(["full-prompt", "full-reserve", "optimistic", "prompt-fits", "peak"]),
        "on_kv_pressure": st.sampled_from(["recompute", "swap"]),
        "swap_blocks": st.integers(1, 8),
        "victim": st.sampled_from(["newest", "last", "least-computed", "lowest-priority"]),
    }
)


def _admits(scheduler: Scheduler, head: Request, victims: Iterable[int], now_ns: int) -> bool:
    """Whether `head` is admitted once the requests in these slots have been preempted: done in a copy."""
    other = copy.deepcopy(scheduler)
    same = other._live[head.index]
    for slot in victims:
        other._preempt(other.slots.request_in(slot), Fate.SWAP, resumes_first=False)
    return isinstance(other.admission.can_admit(same, other.admission.budget_of(same), now_ns), Grant)


def _judge(d: Driven) -> tuple[list[tuple[Request, int]], list[Request]]:
    """Judge every decision of this scheduler from now on. Returns the lists that its preemptions go to, and the heads
    that it decided to preempt for: then the victims may only have been paused."""
    scheduler = d.scheduler
    decide, leave, plan = scheduler.admission.victims_for, scheduler._leave_now, scheduler.schedule
    preempted: list[tuple[Request, int]] = []
    helped: list[Request] = []
    decided: list[Request] = []
    known_before: dict[int, int] = {}  # by index: positions computed at the last priority preemption

    def judged_victims(head: Request, refusal, now_ns: int, *, soon: bool) -> list[int]:  # type: ignore[no-untyped-def]
        victims = decide(head, refusal, now_ns, soon=soon)
        decided.extend([head] if victims else [])
        if not soon:
            candidates = scheduler.policies.priority.candidates(head, scheduler.slots)
            if not victims:
                assert not candidates or not _admits(scheduler, head, candidates, now_ns), "it would have helped"
            else:
                assert _admits(scheduler, head, victims, now_ns), "it does not help"
                for count in range(len(victims)):
                    for fewer in combinations(victims, count):
                        assert not _admits(scheduler, head, fewer, now_ns), "fewer would have been enough"
        return victims

    def judged_leave(head: Request, victims: list[int], now_ns: int) -> bool:
        requests = [scheduler.slots.request_in(slot) for slot in victims]
        computed = {one.index: int(scheduler.slots.computed[one.slot]) for one in requests}
        assert all(one.priority > head.priority for one in requests), "only less urgent requests are preempted"
        if left := leave(head, victims, now_ns):
            helped.append(head)
            for one in requests:
                assert computed[one.index] > known_before.get(one.index, 0), "no progress since the last time"
                if not one.host_blocks:  # all of it is computed again
                    known_before[one.index] = computed[one.index]
                preempted.append((one, computed[one.index]))
        return left

    def judged_schedule(now_ns: int):  # type: ignore[no-untyped-def]
        helped.clear()
        planned = plan(now_ns)
        assert all(head.state is State.RUNNING for head in helped), "preempted for a request that was not admitted"
        return planned

    scheduler.admission.victims_for = judged_victims  # type: ignore[method-assign]
    scheduler._leave_now = judged_leave  # type: ignore[method-assign]
    scheduler.schedule = judged_schedule  # type: ignore[method-assign]
    return preempted, decided


def _requests(wanted: Wanted) -> list[tuple[int, Request]]:
    return [
        (step, Request(i, prompt, output, prompt=_prompt(i, prompt), tenant=tenant, priority=priority))
        for i, (prompt, output, step, tenant, priority) in enumerate(wanted)
    ]


@settings(max_examples=100, deadline=None)
@given(by_priority, st.lists(lengths, min_size=2, max_size=12), aborts, st.integers(0, 1))
def test_a_preemption_happens_only_if_it_helps(
    chosen: dict[str, Any], wanted: Wanted, aborting: list[tuple[int, int]], depth: int
) -> None:
    d = Driven.of(depth=depth, **chosen)
    preempted, decided = _judge(d)
    requests = _requests(wanted)
    _play(d, requests, aborting)
    for _, request in requests:
        own = [computed for one, computed in preempted if one is request]
        assert len(own) <= request.prompt_tokens + request.max_output_tokens
        assert sum(own) <= sum(range(request.prompt_tokens + request.max_output_tokens + 1))

    if not decided and d.steps["preempted"].sum() == 0:  # none would help: the schedule is that of preemption off
        off = Driven.of(depth=depth, **(chosen | {"preempt_for_priority": False}))
        _play(off, _requests(wanted), aborting)
        assert [(p.slots.tolist(), p.counts.tolist()) for p in d.plans] == [
            (p.slots.tolist(), p.counts.tolist()) for p in off.plans
        ]


def test_the_property_is_not_empty() -> None:
    """Two bulk requests hold all blocks; the urgent one needs what both have."""
    for depth in (0, 1):
        d = Driven.of(depth=depth, kv_blocks=8, order="priority", preempt_for_priority=True, max_num_batched_tokens=64)
        preempted, _ = _judge(d)
        d.submit(*(req(i, 12, 4, priority=5) for i in range(2)))
        for _ in range(3):
            d.step()
        d.submit(req(2, 28, 2)).drain()
        assert len(preempted) == 2
