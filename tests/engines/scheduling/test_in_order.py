"""The policies of `like` vllm-v1, each by the smallest input that shows it; tests/oracles compares whole schedules."""

from __future__ import annotations

import numpy as np
import pytest

from engines.ledger import Blocked
from tests.engines.scheduling.driving import Driven, req


@pytest.mark.parametrize(
    ("admission", "admitted"), [("optimistic", [0, 1]), ("prompt-fits", [0]), ("full-prompt", [0])]
)
def test_a_prompt_must_fit_though_only_its_first_chunk_is_reserved(admission: str, admitted: list[int]) -> None:
    """12 blocks of 4: the first takes 4 of them, the prompt of 40 needs 10, its first chunk 2."""
    d = Driven.of(kv_blocks=12, max_num_batched_tokens=24, admission=admission)
    d.submit(req(0, 16, 9), req(1, 40, 1))
    d.step()
    assert [request.index for request in d.plans[0].requests] == admitted
    if admitted == [0]:
        assert d.ledger[0]["blocked"] == Blocked.KV


def test_prompt_fits_reserves_no_more_than_the_chunk() -> None:
    d = Driven.of(kv_blocks=12, max_num_batched_tokens=8, admission="prompt-fits")
    d.submit(req(0, 40, 1))
    d.step()
    assert d.scheduler.kv.num_reserved == 0
    assert d.scheduler.kv.num_used == 2
    d.drain()
    assert d.finished[0].finish_reason == "length"


@pytest.mark.parametrize(("prefill", "decoded"), [("decode-first", 3), ("in-order", 0)])
def test_in_order_a_prompt_that_goes_first_may_take_the_whole_step(prefill: str, decoded: int) -> None:
    """A request of priority 1 decodes when a prompt of 64 with priority 0 comes: four steps of 16 tokens."""
    d = Driven.of(prefill=prefill, order="priority", max_num_batched_tokens=16)
    d.submit(req(0, 4, 30, priority=1))
    d.step()
    d.submit(req(1, 64, 9, priority=0))
    d.step()
    before = d.scheduler._live[0].output_tokens
    for _ in range(3):
        d.step()
    assert d.scheduler._live[0].output_tokens - before == decoded


@pytest.mark.parametrize(("victim", "preempted"), [("newest", 0), ("last", 1)])
def test_the_last_in_plan_order_is_the_victim_whatever_it_computes(victim: str, preempted: int) -> None:
    """Under a chunk limit the older request still computes its prompt when the newer one decodes."""
    d = Driven.of(kv_blocks=11, max_num_batched_tokens=16, max_prompt_chunk=4, admission="optimistic", victim=victim)
    d.submit(req(0, 40, 2), req(1, 4, 40)).drain()
    assert [one.preemptions > 0 for one in sorted(d.finished, key=lambda one: one.index)].index(True) == preempted


def test_a_stop_token_ends_its_own_request_alone_and_as_late_as_min_tokens_says() -> None:
    d = Driven.of(eos_ids=frozenset({7}))
    d.tokens = lambda plan: np.full(int(plan.samples.sum()), 9, np.int32)
    d.submit(
        req(0, 4, 9, stop_token_ids=frozenset({9})),
        req(1, 4, 9, stop_token_ids=frozenset({8}), ignore_eos=False),
        req(2, 4, 9, stop_token_ids=frozenset({9, 8}), min_output_tokens=3),
        req(3, 4, 1, stop_token_ids=frozenset({9})),
    ).drain()
    ended = {one.index: (one.finish_reason, one.output_tokens) for one in d.finished}
    assert ended == {0: ("stop", 0), 1: ("length", 9), 2: ("stop", 3), 3: ("length", 1)}
