"""Bugs other engines had, each with the small input that shows it. Block size 4, budget 16, unless stated.

cases.py lists all that were found, by number, with the tests that show that we do not have them.
"""

from __future__ import annotations

import numpy as np
import pytest

from engines.ledger import Blocked
from engines.scheduling.request import Request, State
from tests.engines.scheduling.driving import Driven, req
from workloads.errors import CbbenchError


def _with_tokens(index: int, prompt: int, output: int) -> Request:
    return Request(index, prompt, output, prompt=np.zeros(prompt, np.int32))


# -- never admitted, deadlock ------------------------------------------------------------------------------------------


def test_request_larger_than_the_pool_is_rejected_with_numbers_and_blocks_no_request() -> None:
    """vllm#39734: 63 > 49 blocks waited for ever, and all behind it."""
    d = Driven.of(kv_blocks=8).submit(req(0, 30, 4), req(1, 4, 4)).drain()
    rejected, finished = d.finished
    assert rejected.finish_reason == "rejected"
    assert rejected.error == "exceeds_kv: needs 9 blocks (33 positions), pool has 8"
    assert (finished.index, finished.output_tokens) == (1, 4)


def test_request_that_fills_the_pool_exactly_runs() -> None:
    """The last sampled token is never fed back: 29 + 4 needs 32 positions, exactly 8 blocks of 4."""
    d = Driven.of(kv_blocks=8).submit(req(0, 29, 4)).drain()
    assert d.finished[0].output_tokens == 4
    assert d.steps["kv_used_blocks"].max() == 8


@pytest.mark.parametrize("lengths", [(20, 4), (8, 4)])
def test_pool_of_two_blocks_rejects_up_front_and_serves_others(lengths: tuple[int, int]) -> None:
    """nano-vllm#274: a prompt, or growth, beyond all KV ended in an assert."""
    d = Driven.of(kv_blocks=2).submit(req(0, *lengths), req(1, 4, 4)).drain()
    assert [r.finish_reason for r in d.finished] == ["rejected", "length"]


def test_watermark_never_holds_back_the_only_candidate() -> None:
    """vllm-metal#479: blocks reserved for no request, usage 0, waiting > 0, no progress."""
    d = Driven.of(kv_blocks=10, watermark=0.9).submit(req(0, 30, 2), req(1, 4, 2)).drain()
    assert [r.output_tokens for r in d.finished] == [2, 2]
    assert Blocked.WATERMARK in d.steps["blocked"]  # the second one did wait for it


def test_unchunked_prompt_over_the_budget_is_rejected() -> None:
    """vllm#8378: chunking off and prompt > budget: stuck."""
    d = Driven.of(chunked_prefill=False).submit(req(0, 20, 1), req(1, 16, 1)).drain()
    assert d.finished[0].error is not None
    assert d.finished[0].error.startswith("prompt_exceeds_step_budget: 20 prompt tokens")
    assert d.finished[1].output_tokens == 1


def test_slot_of_a_finished_request_is_reusable_in_the_very_next_step() -> None:
    """vllm#53130: running + deferred reached the limit and admission stopped for ever."""
    d = Driven.of(max_num_seqs=2).submit(req(0, 1, 2), req(1, 1, 9), req(2, 1, 3)).drain()
    assert next(r for r in d.finished if r.index == 2).stints[0].admitted == 3


def test_a_lone_request_may_have_what_only_the_cache_holds() -> None:
    """sglang#19881: watermark and cached blocks left a lone decode without a block, and the engine crashed."""
    d = Driven.of(kv_blocks=6, prefix_caching=True, watermark=0.3)
    d.submit(Request(0, 24, 1, prompt=np.ones(24, np.int32))).drain()
    assert d.scheduler.kv.pool.num_cached == 6
    d.submit(_with_tokens(1, 8, 17)).drain()  # 24 positions: all 6 blocks, most of them while it decodes
    assert d.finished[-1].output_tokens == 17
    assert d.steps["preempted"].sum() == 0


def test_a_lone_request_does_not_preempt_itself() -> None:
    """tt-inference-server#2042: all but one block in the cache, and a sequence preempted itself for ever."""
    d = Driven.of(kv_blocks=4, prefix_caching=True)
    d.submit(Request(0, 12, 1, prompt=np.ones(12, np.int32))).drain()
    d.submit(_with_tokens(1, 8, 8)).drain()
    assert d.steps["preempted"].sum() == 0
    assert len(d.plans) == 1 + 8


def test_no_request_is_both_evicted_and_planned() -> None:
    """MinivLLM#94: a sequence preempts itself and is still scheduled."""
    d = Driven.of(kv_blocks=7).submit(*(req(i, 8, 9) for i in range(3)))
    while not d.scheduler.idle:
        if (plan := d.step()) is not None:
            assert all(r.state is not State.WAITING for r in plan.requests)
    assert d.steps["preempted"].sum() > 0


def test_budget_below_the_slots_is_a_usage_error() -> None:
    """FastDeploy#7499: with a budget under the number of decodes the tail never got a token."""
    with pytest.raises(CbbenchError, match=r"^max_num_batched_tokens: 4 is less than `max_num_seqs` 8"):
        Driven.of(max_num_seqs=8, max_num_batched_tokens=4)


def test_a_newcomer_does_not_get_the_block_that_a_decode_takes_in_this_step() -> None:
    d = Driven.of(kv_blocks=3).submit(req(0, 4, 9))
    d.step()
    d.submit(req(1, 8, 1)).drain()  # two blocks are free, and the decode takes one of them now
    assert d.finished[0].event_steps().tolist() == list(range(1, 10))
    assert d.finished[1].stints[0].admitted == 10
    assert d.steps["preempted"].sum() == 0


# -- preemption --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "why_the_fifth_waits"), [(8, Blocked.TOKENS), (160, Blocked.KV)])
def test_full_prompt_admission_does_not_thrash(budget: int, why_the_fifth_waits: Blocked) -> None:
    """vllm#18115: admission by first chunk let a fifth context in, and all preempted each other."""
    d = Driven.of(kv_blocks=40, max_num_batched_tokens=budget)
    d.submit(*(req(i, 36, 4) for i in range(4)))
    d.step()
    d.submit(req(4, 36, 4)).drain()
    assert d.steps["preempted"].sum() == 0
    assert why_the_fifth_waits in d.steps["blocked"]
    assert [r.output_tokens for r in d.finished] == [4] * 5


def test_deferred_frees_preempt_exactly_one() -> None:
    """vllm-ascend#16315: blocks pending behind a fence do not return in this step, so the loop preempted everyone."""
    d = Driven.of(depth=1, kv_blocks=6).submit(*(req(i, 7, 9) for i in range(3)))
    while not any(r["preempted"] for r in d.ledger):
        d.step()
    assert max(r["preempted"] for r in d.ledger) == 1
    d.drain()
    assert [r.output_tokens for r in d.finished] == [9, 9, 9]


def test_preempted_requests_are_never_truncated() -> None:
    """atlas#540: 171 kills under pressure, a quarter of the output lost behind HTTP 200."""
    d = Driven.of(kv_blocks=6).submit(*(_with_tokens(i, 4, 12) for i in range(3))).drain()
    calm = Driven.of(kv_blocks=100).submit(*(_with_tokens(i, 4, 12) for i in range(3))).drain()
    assert d.steps["preempted"].sum() > 0
    assert {r.finish_reason for r in d.finished} == {"length"}
    for mine, undisturbed in zip(*(sorted(x.finished, key=lambda r: r.index) for x in (d, calm)), strict=True):
        assert mine.tokens is not None
        assert undisturbed.tokens is not None
        assert mine.tokens.tolist() == undisturbed.tokens.tolist()
    assert d.steps["recomputed_tokens"].sum() > 0
    assert d.steps["useful_tokens"].sum() == calm.steps["useful_tokens"].sum()


def test_preempted_request_keeps_its_place() -> None:
    """vllm#41951: a preempted request resumed behind newcomers."""
    d = Driven.of(kv_blocks=4, max_num_seqs=3).submit(req(0, 4, 10), req(1, 4, 10))
    while not any(r["preempted"] for r in d.ledger):
        d.step()
    d.submit(req(2, 4, 2)).drain()
    assert [r.index for r in d.finished] == [0, 1, 2]
    assert d.finished[1].stints[-1].admitted <= d.finished[2].stints[0].admitted


def test_reject_ends_the_victim_and_says_so() -> None:
    d = Driven.of(kv_blocks=6, on_kv_pressure="reject").submit(*(req(i, 4, 12) for i in range(3))).drain()
    rejected = [r for r in d.finished if r.finish_reason == "rejected"]
    assert rejected
    assert all((r.error or "").startswith("kv_exhausted: holds ") for r in rejected)
    assert d.steps["rejected"].sum() == len(rejected)
    assert d.steps["preempted"].sum() == 0
    assert d.finished[-1].finish_reason == "length"


def test_delay_never_preempts() -> None:
    d = Driven.of(kv_blocks=6, on_kv_pressure="delay").submit(*(req(i, 4, 12) for i in range(3))).drain()
    assert d.steps["preempted"].sum() == 0
    assert [r.output_tokens for r in d.finished] == [12, 12, 12]
    assert d.steps["running"].max() == 1  # 15 positions are 4 of 6 blocks: one at a time


@pytest.mark.parametrize("options", [{"mode": "static"}, {"on_kv_pressure": "delay"}])
def test_full_prompt_where_full_reserve_is_implied_is_a_usage_error(options: dict[str, object]) -> None:
    with pytest.raises(CbbenchError, match=r"^admission: .* implies full-reserve"):
        Driven.of(admission="full-prompt", **options)


def test_unchunked_request_that_outgrew_the_budget_is_recomputed_in_pieces() -> None:
    d = Driven.of(chunked_prefill=False, kv_blocks=9, max_num_seqs=2).submit(req(0, 15, 14), req(1, 15, 14)).drain()
    assert d.steps["preempted"].sum() > 0
    assert max(int(p.counts.max()) for p in d.plans) == 16
    assert [r.output_tokens for r in d.finished] == [14, 14]


# -- head-of-line blocking by prefill ----------------------------------------------------------------------------------


def _gap_of_a_decode_beside_a_long_prompt(prefill: str) -> int:
    d = Driven.of(prefill=prefill).submit(req(0, 1, 40))
    d.step()
    d.submit(req(1, 160, 1)).drain()
    decode = next(r for r in d.finished if r.index == 0)
    return int(np.diff(decode.event_steps().astype(int)).max()) - 1


def test_a_long_prompt_stalls_decodes_only_in_prefill_first_mode() -> None:
    """nano-vllm, sglang#32549: one decode batch per 24 s while prompts were computed."""
    assert _gap_of_a_decode_beside_a_long_prompt("decode-first") == 0
    assert _gap_of_a_decode_beside_a_long_prompt("prefill-first") == 10  # ceil(160 / 16) steps


def test_prefill_first_gives_new_prompts_the_whole_budget() -> None:
    d = Driven.of(prefill="prefill-first").submit(*(req(i, 1, 40) for i in range(6)))
    d.step()
    d.submit(req(6, 10, 1), req(7, 6, 1))
    plan = d.step()
    assert plan is not None
    assert plan.counts.tolist() == [10, 6]


def test_a_short_prompt_behind_a_long_one_gets_the_rest_of_its_last_chunk() -> None:
    """club-3090#712: without a cap on the chunk the short prompt waits for the long one, but not longer."""
    d = Driven.of().submit(req(0, 160, 1), req(1, 4, 1)).drain()
    assert next(r for r in d.finished if r.index == 1).event_steps().tolist() == [11]


def test_budget_left_by_one_prompts_tail_goes_to_the_next() -> None:
    """sglang#34623: only one request could be mid-prefill, so budget stayed unused at each prompt tail."""
    d = Driven.of(max_num_batched_tokens=8).submit(req(0, 10, 1), req(1, 10, 1)).drain()
    assert d.plans[1].counts.tolist() == [2, 6]


# -- aborts and leaks --------------------------------------------------------------------------------------------------


_MOMENTS = (
    "new", "waiting", "prefill chunk 2 of 3", "decode", "preempted", "swapped", "being swapped out", "step in flight"
)  # fmt: skip


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("when", _MOMENTS)
def test_abort_anywhere_ends_once_and_leaks_nothing(when: str, depth: int, sharing: bool) -> None:
    """mini-sglang#111 and many: aborted in flight or mid-prefill, pages were freed twice or never."""
    swap = {"on_kv_pressure": "swap", "swap_blocks": 20} if "swapped" in when else {}
    kv_blocks = 8 if sharing and when in ("preempted", "swapped", "being swapped out") else 12
    d = Driven.of(depth=depth, kv_blocks=kv_blocks, max_num_seqs=2, prefix_caching=sharing, **swap)
    target, other = _with_tokens(0, 40, 5), _with_tokens(1, 4, 8)
    if sharing:
        d.submit(_with_tokens(20, 20, 1)).drain()  # what both begin with is in the cache
    match when:
        case "waiting":
            d.submit(_with_tokens(7, 1, 9), _with_tokens(8, 1, 9), target, other)
            d.step()
        case "prefill chunk 2 of 3":
            d.submit(target, other)
            d.step()
            d.step()
        case "decode":
            d.submit(target, other)
            for _ in range(5):
                d.step()
        case "preempted" | "swapped" | "being swapped out":
            target = _with_tokens(0, 20, 9)
            d.submit(_with_tokens(9, 20, 9), target, other)
            for _ in range(30):
                d.schedule()
                if when == "being swapped out" and target.preemptions:
                    break  # its copy is in a plan that has not run
                while len(d.in_flight) > depth:
                    d.collect()
                if target.preemptions:
                    break
            assert target.preemptions
            assert bool(target.host_blocks) is bool(swap)
        case "step in flight":
            d.submit(target, other)
            d.schedule()
        case "new":
            d.submit(target, other)
    assert not target.finished
    d.abort(0)
    d.abort(0)
    d.drain()
    assert [r.finish_reason for r in d.finished].count("aborted") == 1
    assert all(r.finish_reason == "length" for r in d.finished if r.index != 0)


def test_abort_of_the_unknown_is_nothing_and_a_live_index_is_refused() -> None:
    """vllm#18485, #46283: abort before the first schedule crashed; ids reused."""
    d = Driven.of()
    d.abort(99)
    d.submit(req(0, 4, 2))
    with pytest.raises(ValueError, match="request 0 is already live"):
        d.submit(req(0, 4, 2))
    d.abort(0)
    d.submit(req(0, 4, 2)).drain()
    assert [r.finish_reason for r in d.finished] == ["aborted", "length"]


@pytest.mark.parametrize("scarce", [{"kv_blocks": 4}, {"max_num_seqs": 1}])
def test_blocks_and_slots_pass_on_only_behind_the_launched_step(scarce: dict[str, object]) -> None:
    """vllm-ascend#14055, sglang#18803: blocks or the row went to another while a launched step still wrote them."""
    d = Driven.of(depth=1, **scarce).submit(req(0, 12, 4), req(1, 12, 4))
    d.schedule()  # step 1 is in flight and writes the first request's blocks
    d.abort(0)
    assert d.schedule() is None, "the second request must not get slot or blocks before step 1 has ended"
    d.collect()
    assert d.schedule() is not None
    d.drain()
    assert d.steps["discarded_tokens"].tolist()[0] == 12


def test_aborted_while_recomputing_counts_as_discarded_only() -> None:
    d = Driven.of(kv_blocks=6).submit(*(req(i, 4, 12) for i in range(3)))
    while not (resumed := [r for r in d.schedule().requests if r.preemptions]):  # type: ignore[union-attr]
        d.collect()
    d.abort(resumed[0].index)
    row = d.collect().ledger_row
    d.drain()  # checks the identities
    assert row is not None
    assert row["discarded_tokens"] > 1
    assert row["recomputed_tokens"] == 0


def test_aborted_while_waiting_is_never_computed() -> None:
    """vllm#7111: cancelled queued requests were still prefilled."""
    d = Driven.of(max_num_seqs=2).submit(*(req(i, 4, 2) for i in range(100)))
    d.step()
    for index in range(50, 100):
        d.abort(index)
    d.drain()
    assert max(r.index for plan in d.plans for r in plan.requests) == 49


# -- block boundaries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [3, 4, 5, 7, 8, 9])
def test_table_is_exactly_as_long_as_the_kv(prompt: int) -> None:
    """transformers, TRT-LLM#12404: off by one at exact multiples of the block size."""
    d = Driven.of().submit(req(0, prompt, 6))
    while not d.scheduler.idle:
        plan = d.step()
        if plan is not None and not d.scheduler.idle:
            end = int(plan.starts[0] + plan.counts[0])
            assert d.scheduler.kv.held(int(plan.slots[0])) == -(-end // 4)
    assert d.steps["kv_used_blocks"].max() == -(-(prompt + 5) // 4)


# -- stops -------------------------------------------------------------------------------------------------------------


def _always(token: int) -> object:
    return lambda plan: np.full(int(plan.samples.sum()), token, np.int32)


def test_first_token_may_be_eos() -> None:
    """PocketLLM#133: EOS at prefill: no visible token, reason stop, never decodes."""
    d = Driven.of(eos_ids=frozenset({7}))
    d.tokens = _always(7)
    d.submit(req(0, 4, 9, ignore_eos=False)).drain()
    assert (d.finished[0].finish_reason, d.finished[0].output_tokens, len(d.plans)) == ("stop", 0, 1)


def test_eos_is_ignored_when_asked() -> None:
    d = Driven.of(eos_ids=frozenset({7}))
    d.tokens = _always(7)
    d.submit(req(0, 4, 9)).drain()
    assert (d.finished[0].finish_reason, d.finished[0].output_tokens) == ("length", 9)


def test_eos_exactly_at_the_cap_is_length() -> None:
    """vLLM's order, kept: the length cap is looked at first."""
    d = Driven.of(eos_ids=frozenset({7}))
    d.tokens = _always(7)
    d.submit(req(0, 4, 1, ignore_eos=False)).drain()
    assert (d.finished[0].finish_reason, d.finished[0].output_tokens) == ("length", 1)


def test_eos_before_the_least_number_of_tokens_ends_nothing() -> None:
    """vllm#26317: at least 3 and at most 3 tokens, EOS from the first on: three tokens, and the reason is length."""
    d = Driven.of(eos_ids=frozenset({7}))
    d.tokens = _always(7)
    d.submit(req(0, 4, 3, ignore_eos=False, min_output_tokens=3), req(1, 4, 9, ignore_eos=False, min_output_tokens=2))
    d.drain()
    assert [(r.finish_reason, r.output_tokens) for r in d.finished] == [("length", 3), ("stop", 2)]


def test_overlap_never_plans_past_the_cap() -> None:
    """vllm#27922: one token asked, asynchronous: exactly one token, nothing launched beyond it."""
    d = Driven.of(depth=1).submit(req(0, 4, 1)).drain()
    assert (d.finished[0].output_tokens, len(d.plans)) == (1, 1)


def test_a_stop_seen_one_step_late_is_discarded_and_counted() -> None:
    d = Driven.of(depth=1, eos_ids=frozenset({7}))
    d.tokens = _always(7)
    d.submit(req(0, 4, 9, ignore_eos=False)).drain()
    assert d.finished[0].output_tokens == 0
    assert d.steps["discarded_tokens"].tolist() == [0, 1]


# -- order of things ---------------------------------------------------------------------------------------------------


def test_two_runs_of_one_trace_make_the_same_plans() -> None:
    """mini-sglang keeps requests in a set: the order of rows changes between runs."""

    def plans() -> list[tuple[object, ...]]:
        d = Driven.of(kv_blocks=14).submit(*(req(i, 3 + i % 9, 2 + i % 7) for i in range(20))).drain()
        return [(p.slots.tolist(), p.starts.tolist(), p.counts.tolist(), p.tables.tolist()) for p in d.plans]

    assert plans() == plans()
