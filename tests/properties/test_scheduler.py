"""Whatever the sizes, modes and aborts: nothing is lost, doubled, exceeded or left waiting."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.request import Request
from engines.scheduling.resource_gate import Quota
from tests.engines.scheduling.driving import Driven

TENANTS = ("a", "b")

quota = st.builds(
    Quota,
    max_num_seqs=st.none() | st.integers(1, 3),
    kv_blocks=st.none() | st.integers(1, 8),
    tokens_per_s=st.none() | st.sampled_from([500.0, 20_000.0]),
)
any_mode = {
    "kv_blocks": st.integers(1, 12),
    "block_size": st.integers(1, 5),
    "max_num_seqs": st.integers(1, 6),
    "max_num_batched_tokens": st.integers(6, 20),
    "max_model_len": st.integers(8, 60),
    "order": st.sampled_from(["fcfs", "shortest-prompt", "shortest-known", "shortest-predicted", "priority", "fair"]),
    "ageing": st.none() | st.sampled_from([0.0, 100.0, 1e6]),
    "skip_ahead": st.sampled_from([0, 2]),
    "prompt_buckets": st.sampled_from([(), (4,), (3, 10)]),
    "watermark": st.sampled_from([0.0, 0.01, 0.3]),
    "prefix_caching": st.booleans(),
    "quotas": st.just({}) | st.fixed_dictionaries({"a": quota}) | st.fixed_dictionaries({"a": quota, "b": quota}),
}
continuous = st.fixed_dictionaries(
    any_mode
    | {
        "chunked_prefill": st.booleans(),
        "prefill": st.sampled_from(["decode-first", "prefill-first", "in-order"]),
        "max_prompt_chunk": st.none() | st.integers(1, 8),
        "max_num_partial_prefills": st.none() | st.integers(1, 3),
        "max_long_partial_prefills": st.none() | st.integers(1, 2),
        "admission": st.sampled_from(["full-prompt", "full-reserve", "optimistic", "prompt-fits", "peak"]),
        "on_kv_pressure": st.sampled_from(["recompute", "swap", "reject"]),
        "swap_blocks": st.integers(1, 8),
        "victim": st.sampled_from(["newest", "last", "least-computed", "lowest-priority"]),
        "preempt_for_priority": st.booleans(),  # dropped where the order is not by priority
    }
)
reserving = st.fixed_dictionaries(
    any_mode
    | {
        "mode": st.sampled_from(["continuous", "static"]),
        "static": st.sampled_from(["padded", "compact-held", "compact-freed"]),
        "static_patience_s": st.sampled_from([0.0, 0.004]),
        "on_kv_pressure": st.just("delay"),
        "preempt_for_priority": st.booleans(),
    }
)


def _consistent(chosen: dict[str, object]) -> dict[str, object]:
    if chosen["order"] != "priority":
        chosen.pop("preempt_for_priority", None)
    if not chosen.get("chunked_prefill", True):
        chosen.pop("max_prompt_chunk", None)
    if chosen.get("max_prompt_chunk") is None:
        chosen.pop("max_long_partial_prefills", None)
    return chosen


options = (continuous | reserving).map(_consistent)
# prompt, output, submitted at step, tenant, priority
lengths = st.tuples(
    st.integers(1, 24), st.integers(1, 16), st.integers(0, 12), st.sampled_from(TENANTS), st.integers(0, 2)
)
aborts = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 19)), max_size=5)  # at step, index


Wanted = list[tuple[int, int, int, str, int]]


def _prompt(index: int, length: int) -> np.ndarray:
    """Two families of prompts, so that many share a prefix and some do not."""
    return np.full(length, index % 2, np.int32)


def _requests(wanted: Wanted, eos: bool) -> list[tuple[int, Request]]:
    return [
        (
            step,
            Request(i, prompt, output, prompt=_prompt(i, prompt), ignore_eos=not eos, tenant=tenant, priority=priority),
        )
        for i, (prompt, output, step, tenant, priority) in enumerate(wanted)
    ]


def _play(d: Driven, requests: list[tuple[int, Request]], aborting: list[tuple[int, int]]) -> None:
    """Driven checks conservation, the gate's limits and single writers after every single step."""
    for step in range(31):
        d.submit(*(request for at, request in requests if at == step))
        for _ in (index for at, index in aborting if at == step):
            d.abort(_)
        d.step()
    # Alone each takes at most prompt + output steps; preempted work is redone once per victim at most per admission.
    d.drain(limit=20_000)


@settings(max_examples=150, deadline=None)
@given(options, st.lists(lengths, min_size=1, max_size=20), aborts, st.integers(0, 1), st.booleans())
def test_every_request_ends_and_the_pool_is_clean(
    chosen: dict[str, object],
    wanted: Wanted,
    aborting: list[tuple[int, int]],
    depth: int,
    eos: bool,
) -> None:
    d = Driven.of(depth=depth, eos_ids=frozenset({3, 11}) if eos else frozenset(), **chosen)
    requests = _requests(wanted, eos)
    _play(d, requests, aborting)

    assert sorted(r.index for r in d.finished) == list(range(len(wanted))), "each ends exactly once"
    for _, request in requests:
        assert request.output_tokens == len(request.event_steps())
        match request.finish_reason:
            case "length":
                assert request.output_tokens == request.max_output_tokens
            case "stop":
                assert eos
                assert request.output_tokens < request.max_output_tokens
            case "rejected":
                assert request.error
            case reason:
                assert reason == "aborted"
                assert request.index in {index for _, index in aborting}
    steps = d.steps
    assert steps["step"].tolist() == list(range(1, len(steps) + 1))
    assert steps["sampled_tokens"].sum() == sum(r.output_tokens for _, r in requests)
    if chosen["on_kv_pressure"] in ("delay", "reject") and not chosen.get("preempt_for_priority"):
        assert steps["preempted"].sum() == steps["recomputed_tokens"].sum() == 0


@settings(max_examples=60, deadline=None)
@given(options, st.lists(lengths, min_size=1, max_size=12), st.integers(0, 1))
def test_tokens_do_not_depend_on_the_policy(chosen: dict[str, object], wanted: Wanted, depth: int) -> None:
    """The fake device's tokens are a function of (request, position), so every policy must give the solo run's."""
    d = Driven.of(depth=depth, **chosen)
    requests = _requests(wanted, eos=False)
    _play(d, requests, [])
    for _, request in requests:
        if request.finish_reason == "length":
            solo = Request(request.index, request.prompt_tokens, request.max_output_tokens)
            solo.tokens = np.zeros(request.prompt_tokens + request.max_output_tokens, np.int32)
            solo.tokens[: request.prompt_tokens] = _prompt(request.index, request.prompt_tokens)
            Driven.of(kv_blocks=100, max_model_len=100).submit(solo).drain()
            assert request.tokens is not None
            assert request.tokens.tolist() == solo.tokens.tolist()


@settings(max_examples=60, deadline=None)
@given(options, st.lists(lengths, min_size=2, max_size=20))
def test_fcfs_never_lets_a_request_overtake_in_admission(chosen: dict[str, object], wanted: Wanted) -> None:
    plain = {"order": "fcfs", "quotas": {}, "skip_ahead": 0, "prompt_buckets": (), "preempt_for_priority": False}
    plain["max_long_partial_prefills"] = None  # lets short prompts pass long ones
    d = Driven.of(**(chosen | plain))
    requests = _requests([(p, o, 0, tenant, priority) for p, o, _, tenant, priority in wanted], eos=False)
    _play(d, requests, [])
    first_slots = [r.stints[0].admitted for _, r in requests if r.stints]
    assert first_slots == sorted(first_slots)
