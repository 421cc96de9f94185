"""A tenant pays the tokens that its requests have used, whatever they asked for and however they ended."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engines.scheduling.plan import StepPlan
from engines.scheduling.request import Request
from engines.scheduling.resource_gate import Quota, Quotas
from tests.engines.scheduling.driving import Driven, req

EOS = 7


def _eos_after(outputs: int) -> object:
    """Each request's token number `outputs` (from 0) is an EOS, the others are not."""

    def tokens(plan: StepPlan) -> np.ndarray:
        sampled = [request for request, samples in zip(plan.requests, plan.samples, strict=True) if samples]
        return np.array([EOS if request.output_tokens == outputs else 1 for request in sampled], np.int32)

    return tokens


def _admitted_s(d: Driven) -> dict[int, float]:
    """When each request that was admitted was so first, by index."""
    now_ns = d.steps["now_ns"].tolist()
    return {one.index: now_ns[one.stints[0].admitted - 1] / 1e9 for one in d.finished if one.stints}


def test_requests_that_use_less_than_they_ask_do_not_wait_for_the_rest() -> None:
    """Row 4 of the review: 11 + 4 of 11 + 1,000 tokens used, 100 a second: three take 45 of the first second's 100."""
    d = Driven.of(
        eos_ids=frozenset({EOS}), max_model_len=1100, kv_blocks=500, quotas={"default": Quota(tokens_per_s=100.0)}
    )
    d.tokens = _eos_after(4)
    for index in range(3):
        d.submit(req(index, 11, 1000, ignore_eos=False)).drain()
    assert [request.output_tokens for request in d.finished] == [4, 4, 4]
    assert _admitted_s(d)[2] < 0.05


def test_all_three_at_once_are_held_back_only_until_the_first_has_ended() -> None:
    d = Driven.of(
        eos_ids=frozenset({EOS}), max_model_len=1100, kv_blocks=500, quotas={"default": Quota(tokens_per_s=100.0)}
    )
    d.tokens = _eos_after(4)
    d.submit(*(req(index, 11, 1000, ignore_eos=False) for index in range(3))).drain()
    first_end = d.finished[0].last_ns
    assert first_end is not None
    assert first_end / 1e9 <= _admitted_s(d)[1] < 0.05


def test_what_an_aborted_request_has_not_used_is_refunded() -> None:
    """Its prompt of 40 is computed in chunks of 16: aborted after the first it has used 16, so 84 of 100 are left."""
    d = Driven.of(
        max_model_len=1100, kv_blocks=500, max_num_batched_tokens=16, quotas={"default": Quota(tokens_per_s=100.0)}
    )
    d.submit(req(0, 40, 1000))
    d.step()
    d.abort(0)
    d.submit(req(1, 84, 1), req(2, 1, 1), req(3, 1, 1)).drain()
    admitted = _admitted_s(d)
    assert admitted[1] < 0.01
    assert admitted[2] < 0.05  # the second used 84 + 1: one token of debt
    assert d.finished[0].used_tokens == 16


def test_a_request_aborted_while_it_waits_costs_nothing() -> None:
    d = Driven.of(max_num_seqs=1, max_model_len=1100, kv_blocks=500, quotas={"default": Quota(tokens_per_s=100.0)})
    d.submit(req(0, 4, 4), req(1, 10, 1000))
    d.step()
    d.abort(1)
    d.submit(req(2, 4, 4)).drain()
    assert d.finished[0].used_tokens == 0
    assert _admitted_s(d)[2] < 0.05


def test_a_tenant_of_weight_three_gets_three_times_the_service() -> None:
    d = Driven.of(max_num_seqs=4, order="fair", tenant_weights={"a": 3.0})
    d.submit(*(req(index, 4, 6, tenant="ab"[index % 2]) for index in range(400)))
    for _ in range(300):
        d.step()
    served = {tenant: sum(r.used_tokens for r in d.finished if r.tenant == tenant) for tenant in "ab"}
    assert 2.7 <= served["a"] / served["b"] <= 3.3


requests = st.lists(
    st.tuples(st.integers(1, 24), st.integers(1, 16), st.sampled_from(["a", "b"]), st.integers(0, 12)),
    min_size=1,
    max_size=16,
)
aborts = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    requests,
    aborts,
    st.sampled_from(["recompute", "swap", "reject"]),
    st.integers(6, 12),
    st.integers(0, 1),
    st.booleans(),
)
@example(  # a block that two tables had is free while the blocks below it wait for the step in flight
    [(1, 1, "a", 0)] * 2 + [(4, 2, "a", 0), (10, 8, "b", 0), (1, 1, "a", 0), (5, 5, "b", 0)] + [(1, 1, "a", 0)] * 6,
    [], "recompute", 7, 1, True,
)  # fmt: skip
def test_a_tenant_has_paid_what_its_requests_used(
    wanted: list[tuple[int, int, str, int]],
    aborting: list[tuple[int, int]],
    pressure: str,
    kv_blocks: int,
    depth: int,
    prefix_caching: bool,
) -> None:
    """Without recovery the account is what the tenant began with, less what it has paid."""
    d = Driven.of(
        depth=depth,
        eos_ids=frozenset({3, 11}),
        quotas={"a": Quota(tokens_per_s=1e9)},
        on_kv_pressure=pressure,
        swap_blocks=4,
        kv_blocks=kv_blocks,
        max_model_len=60,
        admission="optimistic",
        prefix_caching=prefix_caching,
    )
    arriving = [
        (at, Request(i, prompt, output, tenant=tenant, ignore_eos=False, prompt=np.full(prompt, i % 2, np.int32)))
        for i, (prompt, output, tenant, at) in enumerate(wanted)
    ]
    with patch.object(Quotas, "_recover", lambda *_: None):
        for step in range(31):
            d.submit(*(request for at, request in arriving if at == step))
            for index in (index for at, index in aborting if at == step):
                d.abort(index)
            d.step()
        d.drain(limit=20_000)
    account = d.scheduler.gate._quotas._accounts["a"]
    assert account.charged == {}
    assert 1e9 - account.tokens == sum(request.used_tokens for _, request in arriving if request.tenant == "a")
