"""Swap and prefix cache. Driven keeps a model of KV memory: every row must find its own prefix wherever it was moved,
shared or computed again, so a run that drains has also restored what it swapped."""

from __future__ import annotations

import numpy as np
import pytest

from engines.scheduling.request import Request
from tests.engines.scheduling.driving import Driven, req
from workloads.errors import CbbenchError


def _tokens(index: int, prompt: int, output: int, *, tenant: str = "default", fill: int = 0) -> Request:
    return Request(index, prompt, output, prompt=np.full(prompt, fill, np.int32), tenant=tenant)


def _outputs(d: Driven) -> dict[int, list[int]]:
    return {r.index: r.tokens.tolist() for r in d.finished if r.tokens is not None}


def _three(**options: object) -> Driven:
    return Driven.of(kv_blocks=6, **options).submit(*(_tokens(i, 4, 12, fill=i) for i in range(3))).drain()


@pytest.mark.parametrize("depth", [0, 1])
def test_swap_restores_and_computes_nothing_again(depth: int) -> None:
    """transformers 06252198: dst[ids].copy_(src) wrote to a temporary, so swap silently restored nothing."""
    d = _three(on_kv_pressure="swap", swap_blocks=8, depth=depth)
    assert d.steps["swapped_out"].sum() == d.steps["swapped_in"].sum() > 0
    assert d.steps["swap_out_blocks"].sum() == d.steps["swap_in_blocks"].sum()
    assert d.steps["recomputed_tokens"].sum() == d.steps["evicted_tokens"].sum() == 0
    assert _outputs(d) == _outputs(Driven.of().submit(*(_tokens(i, 4, 12, fill=i) for i in range(3))).drain())


def test_a_full_host_pool_falls_back_to_recomputing() -> None:
    """vllm#546, #787: host pool of 1 block, victims need 2 and more: hung."""
    d = _three(on_kv_pressure="swap", swap_blocks=1)
    assert d.steps["swapped_out"].sum() == 0
    assert d.steps["preempted"].sum() > 0
    assert d.steps["evicted_tokens"].sum() == d.steps["recomputed_tokens"].sum() > 0


def test_swapped_requests_resume_before_a_request_is_admitted() -> None:
    """vllm#5578: new prefills were admitted while swapped ones starved."""
    d = Driven.of(kv_blocks=6, on_kv_pressure="swap", swap_blocks=8, order="shortest-prompt")
    d.submit(req(0, 4, 12), req(1, 4, 12), req(2, 4, 12))
    while not any(row["swapped_out"] for row in d.ledger):
        d.step()
    swapped = next(iter(d.scheduler.waiting))
    d.submit(*(req(i, 1, 1) for i in range(10, 14)))  # shorter: they would go first, if it had no blocks to get back
    d.drain()
    assert swapped.stints[-1].admitted <= min(r.stints[0].admitted for r in d.finished if r.index >= 10)


def test_swapped_in_mid_prompt_loses_and_repeats_nothing() -> None:
    """sglang-jax#1010: retract in mid-prefill replays or loses tokens."""
    d = Driven.of(kv_blocks=12, max_num_batched_tokens=9, admission="optimistic", on_kv_pressure="swap", swap_blocks=20)
    d.submit(_tokens(0, 4, 20), _tokens(1, 40, 3, fill=1)).drain()
    assert d.steps["swapped_out"].sum() > 0
    assert d.steps["recomputed_tokens"].sum() == 0
    assert _outputs(d) == _outputs(Driven.of().submit(_tokens(0, 4, 20), _tokens(1, 40, 3, fill=1)).drain())


@pytest.mark.parametrize("depth", [0, 1])
def test_abort_of_a_swapped_request_leaks_nothing(depth: int) -> None:
    d = Driven.of(kv_blocks=6, on_kv_pressure="swap", swap_blocks=8, depth=depth)
    d.submit(*(req(i, 4, 12) for i in range(3)))
    while not any(r.host_blocks for r in d.scheduler.waiting):
        d.step()
    d.abort(next(r.index for r in d.scheduler.waiting if r.host_blocks))
    d.drain()


def test_swap_without_a_host_pool_is_a_usage_error() -> None:
    with pytest.raises(CbbenchError, match=r"^on_kv_pressure: swap needs `swap_blocks`"):
        Driven.of(on_kv_pressure="swap")


# -- prefix cache ------------------------------------------------------------------------------------------------------


def test_the_same_prompt_again_computes_only_its_last_block() -> None:
    """vllm#11186: a full hit left nothing to compute and hung, or the last token was appended twice."""
    d = Driven.of(prefix_caching=True).submit(_tokens(0, 8, 3)).drain()
    d.submit(_tokens(1, 8, 3)).drain()
    assert d.plans[3].starts.tolist() == [4]  # 8 known: one block hits, and at least one token must be computed
    assert d.steps["prefix_hit_tokens"].sum() == 4
    first, second = d.finished
    assert first.output_tokens == second.output_tokens == 3


def test_only_computed_blocks_hit() -> None:
    """vllm#7822: a block was published before it was computed, and used."""
    d = Driven.of(prefix_caching=True, depth=1, max_num_batched_tokens=64)
    d.submit(_tokens(0, 12, 2), _tokens(1, 12, 2)).drain()  # in one step: no hit on each other
    assert d.plans[0].starts.tolist() == [0, 0]
    assert d.steps["prefix_hit_tokens"].sum() == 0


def test_a_block_in_flight_does_not_hit() -> None:
    d = Driven.of(prefix_caching=True, depth=1, max_num_batched_tokens=64).submit(_tokens(0, 12, 4))
    d.schedule()
    d.submit(_tokens(1, 12, 4))
    d.schedule()  # step 1 has not ended: what it computes is not there yet
    assert [int(s) for r, s in zip(d.plans[1].requests, d.plans[1].starts, strict=True) if r.index == 1] == [0]
    d.collect()
    d.submit(_tokens(2, 12, 4))
    d.schedule()
    assert [int(s) for r, s in zip(d.plans[2].requests, d.plans[2].starts, strict=True) if r.index == 2] == [8]
    d.collect()
    d.drain()


def test_a_failed_admission_leaves_no_stale_hit() -> None:
    """vllm#18957: the second try must match anew, as the cached blocks may be gone by then."""
    d = Driven.of(prefix_caching=True, kv_blocks=8, max_num_batched_tokens=64)
    d.submit(_tokens(0, 12, 1)).drain()
    d.submit(_tokens(1, 16, 9, fill=1), _tokens(2, 12, 9)).drain()  # 1 takes the cached blocks while 2 waits
    assert {r.output_tokens for r in d.finished} == {1, 9}


def test_hits_that_no_request_holds_count_against_what_is_available() -> None:
    """Touching a free cached block takes it out of what the others can have."""
    d = Driven.of(prefix_caching=True, kv_blocks=6, max_num_batched_tokens=64)
    d.submit(_tokens(0, 16, 1)).drain()
    d.submit(_tokens(1, 17, 4), _tokens(2, 17, 4)).drain()
    assert sorted(r.output_tokens for r in d.finished) == [1, 4, 4]


def test_a_block_hits_only_behind_the_same_beginning() -> None:
    """openvino.genai#3722, imp#1301: hashes that collide, leave out the last token or the parent give wrong hits. The
    key here is the tokens themselves: the second block is found behind its own first block, and with all its tokens."""
    d = Driven.of(prefix_caching=True)

    def hits_of(index: int, *prompt: int) -> int:
        before = d.steps["prefix_hit_tokens"].sum() if d.ledger else 0
        d.submit(Request(index, 9, 1, prompt=np.array(prompt, np.int32))).drain()
        return int(d.steps["prefix_hit_tokens"].sum() - before)

    assert hits_of(0, 1, 1, 1, 1, 2, 2, 2, 2, 9) == 0
    assert hits_of(1, 1, 1, 1, 1, 2, 2, 2, 2, 9) == 8
    assert hits_of(2, 3, 3, 3, 3, 2, 2, 2, 2, 9) == 0
    assert hits_of(3, 1, 1, 1, 1, 2, 2, 2, 3, 9) == 4


def test_tenants_do_not_share() -> None:
    d = Driven.of(prefix_caching=True).submit(_tokens(0, 9, 1, tenant="a")).drain()
    d.submit(_tokens(1, 9, 1, tenant="b")).drain()
    assert d.steps["prefix_hit_tokens"].sum() == 0
    d.submit(_tokens(2, 9, 1, tenant="a")).drain()
    assert d.steps["prefix_hit_tokens"].sum() == 8


def test_resuming_after_a_preemption_is_no_prefix_hit() -> None:
    """vllm#25780: recomputation found in the cache was counted as hits: 30 % instead of 0.2 %."""
    d = _three(prefix_caching=True)
    assert d.steps["preempted"].sum() > 0
    assert d.steps["prefix_hit_tokens"].sum() == 0
    assert d.steps["resume_hit_tokens"].sum() > 0
    assert _outputs(d) == _outputs(Driven.of().submit(*(_tokens(i, 4, 12, fill=i) for i in range(3))).drain())


def test_a_preempted_request_comes_back_with_hits_and_the_same_output() -> None:
    """nano-vllm#211: re-admission with hits gave an index error, or prefill ignored the cached part."""
    d = Driven.of(prefix_caching=True, kv_blocks=5).submit(_tokens(0, 8, 8), _tokens(1, 8, 8)).drain()
    assert d.steps["preempted"].sum() > 0
    assert [r.output_tokens for r in d.finished] == [8, 8]


def test_shared_blocks_survive_the_neighbours_abort() -> None:
    d = Driven.of(prefix_caching=True, max_num_batched_tokens=64).submit(_tokens(0, 13, 1)).drain()
    d.submit(_tokens(1, 13, 8), _tokens(2, 13, 8))
    d.step()
    shared = d.scheduler.kv.blocks(0)[:3]
    assert d.scheduler.kv.blocks(1)[:3] == shared
    assert {d.scheduler.kv.pool.references(b) for b in shared} == {2}
    d.abort(1)
    assert {d.scheduler.kv.pool.references(b) for b in shared} == {1}
    d.drain()
    assert d.finished[-1].output_tokens == 8


def test_least_recently_used_content_is_forgotten_first_and_deepest_first() -> None:
    d = Driven.of(prefix_caching=True, kv_blocks=8, max_num_batched_tokens=64)
    d.submit(_tokens(0, 12, 1, fill=0)).drain()
    d.submit(_tokens(1, 12, 1, fill=1)).drain()
    d.submit(_tokens(2, 16, 1, fill=2)).drain()  # takes the 2 free and evicts 2: the deepest of the oldest
    d.submit(_tokens(3, 13, 1, fill=1)).drain()
    assert d.steps["prefix_hit_tokens"].sum() == 12
    d.submit(_tokens(4, 13, 1, fill=0)).drain()
    assert 0 <= d.steps["prefix_hit_tokens"].sum() - 12 <= 4


def test_a_request_preempted_before_its_blocks_are_copied_back_keeps_them_on_the_host() -> None:
    """Swapped in for a step that then admits a more urgent request in its place: the copy back is not carried out, and
    no copy out of the blocks that it would have filled. Found by the property test; Driven checks the KV."""
    d = Driven.of(
        kv_blocks=5,
        max_num_seqs=4,
        max_num_batched_tokens=7,
        max_model_len=15,
        chunked_prefill=False,
        order="priority",
        preempt_for_priority=True,
        on_kv_pressure="swap",
        swap_blocks=2,
    )
    urgent, patient = {"priority": 0}, {"priority": 1}
    first = [req(i, 1, 1, **urgent) for i in range(6)] + [req(6, 1, 1, **patient), req(7, 1, 3, **patient)]
    later = [req(8, 5, 10, **urgent), *(req(i, 1, 1, **urgent) for i in range(9, 17)), req(17, 1, 6, **urgent)]
    d.submit(*first, *later).drain()
    assert len(d.finished) == 18
    assert d.steps["swapped_out"].sum() == d.steps["swapped_in"].sum() > 0
