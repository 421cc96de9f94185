# ruff: noqa: E501
"""Bugs and complaints about other engines, by number, and the tests that show that ours has none of them.

The numbers are those of the survey that this test list came from (sections C1 to C6 and C8 to C11; 2, 24, 39, 53, 55
and 60 were never given). `python -m pytest tests/engines/scheduling/test_cases.py` checks that each test named here exists.
"""

from __future__ import annotations

BUGS, POLICIES, STATIC = (
    "engines.scheduling.test_known_bugs",
    "engines.scheduling.test_policies",
    "engines.scheduling.test_static",
)
SWAP, PROPERTY, ORACLE = (
    "engines.scheduling.test_swap_and_prefix",
    "properties.test_scheduler",
    "oracles.test_transformers",
)
REPLAY, PRESSURE = "engines.simulated.test_replay", "engines.simulated.test_pressure"
DEVICE, OVERLAP = "engines.reference.test_swap", "engines.reference.test_overlap"

# number: (what went wrong elsewhere, [(module under tests, test), ...])
CASES: dict[int, tuple[str, list[tuple[str, str]]]] = {
    # C1 never admitted, deadlock
    1: ("a prompt larger than the pool waits for ever", [(BUGS, "test_request_larger_than_the_pool_is_rejected_with_numbers_and_blocks_no_request"), (BUGS, "test_request_that_fills_the_pool_exactly_runs")]),
    3: ("growth beyond all KV ends in an assert", [(BUGS, "test_pool_of_two_blocks_rejects_up_front_and_serves_others")]),
    4: ("nothing runs, a request waits, nothing happens", [(BUGS, "test_watermark_never_holds_back_the_only_candidate"), (PROPERTY, "test_every_request_ends_and_the_pool_is_clean")]),
    5: ("an unchunked prompt over the budget is stuck", [(BUGS, "test_unchunked_prompt_over_the_budget_is_rejected")]),
    6: ("the slot of a finished request stays taken", [(BUGS, "test_slot_of_a_finished_request_is_reusable_in_the_very_next_step")]),
    7: ("a lone request runs out of memory that the cache holds", [(BUGS, "test_a_lone_request_may_have_what_only_the_cache_holds")]),
    8: ("a sequence preempts itself and is still scheduled", [(BUGS, "test_a_lone_request_does_not_preempt_itself"), (BUGS, "test_no_request_is_both_evicted_and_planned")]),
    9: ("a simulator's own copy of the policy goes another way", [(REPLAY, "test_a_real_run_replays_into_the_same_steps_and_times")]),
    10: ("a budget below the decodes starves the last rows", [(BUGS, "test_budget_below_the_slots_is_a_usage_error")]),
    # C2 preemption thrash
    11: ("admission by first chunk: all preempt each other", [(BUGS, "test_full_prompt_admission_does_not_thrash"), (POLICIES, "test_optimistic_admission_recomputes_a_bounded_share")]),
    12: ("preemptions and throughput against the watermark", [(PRESSURE, "test_preemptions_fall_with_the_watermark_and_throughput_is_best_in_between")]),
    13: ("recomputation is a tax that no number shows", [(PRESSURE, "test_the_victim_that_computed_least_costs_least_to_compute_again"), (POLICIES, "test_victim_order_is_a_policy")]),
    14: ("deferred frees: one block short, all preempted", [(BUGS, "test_deferred_frees_preempt_exactly_one")]),
    15: ("which victim is cheap", [(POLICIES, "test_victim_order_is_a_policy")]),
    16: ("under pressure outputs are cut short, and called complete", [(BUGS, "test_preempted_requests_are_never_truncated"), (BUGS, "test_reject_ends_the_victim_and_says_so")]),
    17: ("outputs change under pressure", [(BUGS, "test_preempted_requests_are_never_truncated"), (PROPERTY, "test_tokens_do_not_depend_on_the_policy")]),
    18: ("a preempted request loses its place", [(BUGS, "test_preempted_request_keeps_its_place")]),
    # C3 priority, fairness, starvation
    19: ("an urgent request waits for a slot", [(POLICIES, "test_urgent_request_waits_for_a_slot_or_takes_one_but_never_passes_the_gate")]),
    20: ("a victim was planned already", [(POLICIES, "test_victim_is_planned_neither_before_nor_after_its_eviction")]),
    21: ("a heap whose order moves with the clock", [(POLICIES, "test_ranks_that_would_cross_give_the_order_of_a_fresh_sort")]),
    22: ("shortest first starves the long ones", [(POLICIES, "test_shortest_first_starves_and_ageing_bounds_the_wait")]),
    23: ("a big head holds all others back, or is passed for ever", [(POLICIES, "test_a_big_head_is_passed_at_most_k_times")]),
    25: ("short ones wait behind long ones", [(POLICIES, "test_first_come_first_served_makes_short_requests_wait_behind_long_ones")]),
    26: ("a tenant's quota", [(POLICIES, "test_a_tenant_at_its_quota_holds_back_no_other_and_never_exceeds_it"), (POLICIES, "test_what_can_never_fit_its_quota_is_rejected_with_the_numbers")]),
    # C4 head-of-line blocking by prefill
    27: ("prompts starve decodes", [(BUGS, "test_a_long_prompt_stalls_decodes_only_in_prefill_first_mode")]),
    28: ("a long prompt eats every step", [(POLICIES, "test_chunk_cap_lets_a_short_prompt_pass_a_long_one"), (BUGS, "test_a_short_prompt_behind_a_long_one_gets_the_rest_of_its_last_chunk")]),
    29: ("the budget behind a prompt's tail is unused", [(BUGS, "test_budget_left_by_one_prompts_tail_goes_to_the_next")]),
    # C5 abort, disconnect, leaks
    30: ("aborted anywhere: freed twice or never", [(BUGS, "test_abort_anywhere_ends_once_and_leaks_nothing")]),
    31: ("abort of the unknown, ids used again", [(BUGS, "test_abort_of_the_unknown_is_nothing_and_a_live_index_is_refused")]),
    32: ("blocks pass on while a step still writes them", [(BUGS, "test_blocks_and_slots_pass_on_only_behind_the_launched_step")]),
    33: ("rows pass on while a result is pending", [(BUGS, "test_blocks_and_slots_pass_on_only_behind_the_launched_step")]),
    34: ("cancelled in the queue, computed all the same", [(BUGS, "test_aborted_while_waiting_is_never_computed")]),
    35: ("a late result for one who is gone", [(BUGS, "test_blocks_and_slots_pass_on_only_behind_the_launched_step"), (BUGS, "test_a_stop_seen_one_step_late_is_discarded_and_counted")]),
    # C6 block boundary, prefix cache
    36: ("off by one at multiples of the block size", [(BUGS, "test_table_is_exactly_as_long_as_the_kv")]),
    37: ("a full hit leaves nothing to compute", [(SWAP, "test_the_same_prompt_again_computes_only_its_last_block")]),
    38: ("a block is used before it is computed; stale hits", [(SWAP, "test_only_computed_blocks_hit"), (SWAP, "test_a_block_in_flight_does_not_hit"), (SWAP, "test_a_failed_admission_leaves_no_stale_hit")]),
    40: ("hashes that collide", [(SWAP, "test_a_block_hits_only_behind_the_same_beginning")]),
    41: ("recomputation counts as prefix hits", [(SWAP, "test_resuming_after_a_preemption_is_no_prefix_hit")]),
    42: ("preempted, back with hits: another output", [(SWAP, "test_a_preempted_request_comes_back_with_hits_and_the_same_output")]),
    43: ("one tenant sees another's prefixes", [(SWAP, "test_tenants_do_not_share")]),
    # C8 stops
    50: ("the first token is EOS", [(BUGS, "test_first_token_may_be_eos")]),
    51: ("overlap plans past the cap", [(BUGS, "test_overlap_never_plans_past_the_cap")]),
    52: ("least tokens, EOS, and the cap", [(BUGS, "test_eos_before_the_least_number_of_tokens_ends_nothing"), (BUGS, "test_eos_exactly_at_the_cap_is_length")]),
    # C9 determinism
    54: ("tokens change with the batch, chunks, hits or preemption", [(ORACLE, "test_greedy_tokens_equal_transformers"), (ORACLE, "test_greedy_tokens_equal_transformers_after_a_forced_preemption"), (ORACLE, "test_greedy_tokens_equal_transformers_behind_shared_prefixes")]),
    56: ("a set of requests: the order of rows changes", [(BUGS, "test_two_runs_of_one_trace_make_the_same_plans")]),
    # C10 swap
    57: ("the host pool is full; swapped requests starve", [(SWAP, "test_a_full_host_pool_falls_back_to_recomputing"), (SWAP, "test_swapped_requests_resume_before_a_request_is_admitted")]),
    58: ("swap restores nothing", [(DEVICE, "test_blocks_come_back_bit_equal_elsewhere_and_touch_no_other"), (SWAP, "test_swap_restores_and_computes_nothing_again")]),
    59: ("preempted mid-prompt: tokens lost or repeated", [(SWAP, "test_swapped_in_mid_prompt_loses_and_repeats_nothing")]),
    # C11 static mode and padding
    61: ("padding is attended, or prolongs generation", [(STATIC, "test_padded_launches_dead_rows_until_the_longest_ends"), (ORACLE, "test_greedy_tokens_equal_transformers")]),
    62: ("buckets pad without bound", [(OVERLAP, "test_buckets_hold_1_and_all_slots_and_waste_little")]),
    63: ("static admits in mid-batch", [(STATIC, "test_nothing_is_admitted_mid_batch")]),
}  # fmt: skip
