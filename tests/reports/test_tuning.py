"""The rules of tune, one by one, and a search over a made-up engine whose best setting is known."""

from __future__ import annotations

from collections.abc import Callable
from math import log2

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.schema import SlaResult, Validity
from reports.summary_schema import Signals
from reports.sweep_schema import Point
from reports.tuning.grid import next_of_grid
from reports.tuning.moves import Bounds
from reports.tuning.search import Decision, advice, bucket_edge_tokens, decide, long_prompt_tokens
from reports.tuning.server_flags import sglang_flags, toml_of, vllm_flags
from reports.tuning.trials import Setting, Trial, best_of, outcome_of

BOUNDS = Bounds(most_slots=256, most_tokens=8192, bucket_edge_tokens=1024)
LONG = Bounds(most_slots=32, most_tokens=8192, long_prompt_tokens=9000)


def judged(metric: str, value: float, bound: float) -> SlaResult:
    verdict = "pass" if value <= bound else "fail"
    return SlaResult(f"{metric}<={bound:g}", metric, value, bound, 0.95, 1000, None, verdict, "")


def trial(
    rows: int = 32,
    tokens: int = 2048,
    *,
    ttft: float = 100,
    tpot: float = 20,
    median_tpot: float | None = None,
    goodput: float = 10.0,
    admission: str | None = None,
    buckets: str | None = None,
    overloaded: bool = False,
    **signals: object,
) -> Trial:
    """Bounds of 500 ms TTFT and 50 ms TPOT; a busy device with a short queue and much room, unless told otherwise."""
    known = {"device_busy": 0.7, "kv_usage_peak": 0.3, "waiting_mean": 5.0, "preemptions": 0} | signals
    point = Point(
        values=(rows, tokens),
        folder="",
        goodput_per_s=goodput,
        p50_tpot_ms=tpot if median_tpot is None else median_tpot,
        p99_tpot_ms=tpot,
        signals=msgspec.convert(known, Signals),
        sla=(judged("p99_ttft_sched_ms", ttft, 500), judged("p99_tpot_ms", tpot, 50)),
        validity=Validity("overloaded" if overloaded else "ok"),
    )
    return Trial(Setting(rows, tokens, admission, buckets), point)


def first(one: Trial, *others: Trial, bounds: Bounds = BOUNDS) -> Decision:
    return decide([one, *others], bounds)


def test_room_and_a_queue_raise_max_num_seqs() -> None:
    decision = first(trial(32, device_busy=0.43, kv_usage_peak=0.12, tpot=21))
    assert (decision.rule, decision.to) == ("more-rows", Setting(64, 2048))
    why = "The device is 43% busy, 5.0 requests wait and KV has room"
    assert decision.words == f"{why}: raise max_num_seqs, 32 → 64."
    assert decision.signals == "device busy 43%, KV peak 12%, P99 TPOT 21 of 50 ms"


def test_more_slots_take_a_budget_that_gives_each_a_token() -> None:
    assert first(trial(512, 512), bounds=Bounds(4096, 8192)).to == Setting(1024, 1024)


def test_slow_tokens_lower_max_num_seqs() -> None:
    decision = first(trial(64, tpot=61))
    assert (decision.rule, decision.to) == ("fewer-rows", Setting(32, 2048))
    assert decision.words == "P99 TPOT is 61 of 50 ms: lower max_num_seqs, 64 → 32."


def test_tokens_that_wait_for_prompts_want_smaller_chunks_then_buckets() -> None:
    stalled = trial(32, 2048, tpot=61, median_tpot=20)
    assert first(stalled).to == Setting(32, 1024)
    worse = trial(32, 1024, tpot=70, median_tpot=20)
    assert first(stalled, worse).to == Setting(32, 2048, prompt_buckets="1024")


def with_setting(one: Trial, **changes: object) -> Trial:
    return Trial(msgspec.structs.replace(one.setting, **changes), one.point)


def test_long_prompts_that_stall_answers_get_a_share_of_the_step_and_then_half_of_it() -> None:
    slow = trial(32, 2048, tpot=61, median_tpot=20)
    tried = with_setting(trial(32, 1024, tpot=70), max_num_batched_tokens=1024)
    decision = first(slow, tried, bounds=LONG)
    assert (decision.rule, decision.to) == ("prompt-chunk", Setting(32, 2048, max_prompt_chunk=256))
    assert decision.words == (
        "P99 TPOT is 61 of 50 ms, 3.0 times its median, so prompts stall decodes, 1 in 100 of 9,000 tokens or more: "
        "max_prompt_chunk 256 tokens a step."
    )
    shared = with_setting(trial(32, 2048, tpot=55, median_tpot=20), max_prompt_chunk=256)
    smaller = with_setting(trial(32, 1024, tpot=56), max_prompt_chunk=256)
    assert first(slow, tried, shared, smaller, bounds=LONG).to == Setting(32, 2048, max_prompt_chunk=128)
    least = with_setting(shared, max_prompt_chunk=64)
    assert decide([least, with_setting(least, max_num_batched_tokens=1024)], LONG).rule == "fewer-rows"


@pytest.mark.parametrize(
    ("slow_ttft", "rules"),
    [
        ({"queue": 0.8, "prefill": 0.2}, ["bigger-chunk", "shortest-first", "prompt-chunk"]),
        ({"prefill": 0.8, "queue": 0.2}, ["bigger-chunk", "prompt-chunk", "shortest-first"]),
    ],
)
def test_short_prompts_behind_long_ones_go_first_or_beside_them(slow_ttft: dict[str, float], rules: list[str]) -> None:
    late = trial(32, ttft=900)  # and no more rows
    late = Trial(late.setting, msgspec.structs.replace(late.point, slow_ttft=slow_ttft))
    trials, decisions = [late], []
    for _ in rules:
        decisions.append(decide(trials, LONG))
        assert decisions[-1].to is not None
        trials.append(Trial(decisions[-1].to, late.point))
    assert [one.rule for one in decisions] == rules
    shortest = next(one for one in decisions if one.rule == "shortest-first")
    assert shortest.to == Setting(32, 2048, order="shortest-prompt", ageing=300.0)
    assert shortest.words == (
        "P99 TTFT is 900 of 500 ms, and short prompts wait behind long ones, 1 in 100 of 9,000 tokens or more: the "
        "shortest prompt first, with ageing, so that a long prompt is passed for 30 s at most."
    )


@pytest.mark.parametrize(
    ("changes", "never"),
    [
        ({"long_prompt_tokens": None}, {"prompt-chunk", "shortest-first"}),
        ({"in_chunks": False}, {"prompt-chunk"}),
        ({"first_come": False}, {"shortest-first"}),
    ],
    ids=["lengths alike", "no chunks", "another order was chosen"],
)
def test_long_prompts_are_let_alone_where_nothing_speaks_for_it(changes: dict[str, object], never: set[str]) -> None:
    bounds = msgspec.structs.replace(LONG, **changes)
    trials = [trial(32, ttft=900)]
    found = set()
    while (decision := decide(trials, bounds)).to is not None:
        found.add(decision.rule)
        trials.append(Trial(decision.to, trials[0].point))
    assert "fewer-rows" in found
    assert not found & never


def test_the_order_stays_where_no_request_waits() -> None:
    trials = [trial(32, ttft=900, waiting_mean=0.2, blocked={"rows": 0.001})]
    while (decision := decide(trials, LONG)).to is not None:
        assert decision.rule != "shortest-first"
        trials.append(Trial(decision.to, trials[0].point))


def test_lost_memory_asks_for_another_admission_then_for_fewer_slots() -> None:
    short = trial(32, preemptions=40, kv_usage_peak=1.0)
    decision = first(short)
    assert (decision.rule, decision.to) == ("admission", Setting(32, 2048, "peak"))
    assert "40 preemptions, peak 100%" in decision.words
    decision = first(short, trial(32, admission="peak", goodput=2.0))
    assert (decision.rule, decision.to) == ("fewer-rows", Setting(16, 2048))


def test_late_first_tokens_with_a_queue_want_slots_and_without_one_bigger_chunks() -> None:
    assert first(trial(32, ttft=900)).to == Setting(64, 2048)
    assert first(trial(32, ttft=900, waiting_mean=0.2)).to == Setting(32, 4096)


def answers(rows: int = 32, *, decode: float, median_tpot: float = 10, **signals: object) -> Trial:
    """A bound on E2EL alone, missed; of the slowest answers' time the share `decode` came after the first token."""
    point = trial(rows, tpot=30, median_tpot=median_tpot, **signals).point
    parts = {"decode": decode, "queue": 1 - decode}
    sla = (judged("p99_e2el_sched_ms", 9000, 6000),)
    return Trial(Setting(rows, 2048), msgspec.structs.replace(point, sla=sla, slow_e2el=parts))


def test_a_late_answer_is_mended_where_most_of_its_time_goes() -> None:
    decision = first(answers(decode=0.9))
    assert (decision.rule, decision.to) == ("smaller-chunk", Setting(32, 1024))
    assert decision.words == (
        "P99 E2EL is 9,000 of 6000 ms, 90% of it decode, P99 TPOT is 3.0 times its median, so prompts stall "
        "decodes: lower max_num_batched_tokens, 2048 → 1024."
    )
    decision = first(answers(decode=0.2))
    assert (decision.rule, decision.to) == ("more-rows", Setting(64, 2048))
    assert decision.words.startswith("P99 E2EL is 9,000 of 6000 ms, 20% of it decode, 5.0 requests wait")


def test_a_late_answer_is_mended_by_its_smaller_part_where_the_larger_one_gives_nothing() -> None:
    by_decode, by_waiting = answers(decode=0.9, median_tpot=29), answers(decode=0.2, waiting_mean=0.0)
    assert first(by_decode, answers(16, decode=0.9), answers(29, decode=0.9)).to == Setting(64, 2048)
    tried = [answers(16, decode=0.2), answers(29, decode=0.2)]
    tried += [Trial(Setting(32, tokens), one.point) for one in tried[:1] for tokens in (4096, 8192)]
    tried += [Trial(Setting(32, 2048, prompt_buckets="1024"), tried[0].point)]
    assert first(by_waiting, *tried).to == Setting(32, 1024)


def test_advice_on_a_late_answer_is_on_its_larger_part() -> None:
    assert "disaggregate puts prefill and decode on separate devices" in " ".join(
        advice(answers(decode=0.9), BOUNDS, None)
    )
    late = answers(decode=0.2, blocked={"rows": 0.3, "tokens": 0.1})
    assert "First tokens wait for a slot in 30% of the steps" in " ".join(advice(late, BOUNDS, "rate"))


def test_advice_names_what_first_tokens_wait_for() -> None:
    """With a slot for each request, requests wait for the token budget, and more slots cannot help."""
    late = trial(64, ttft=900, blocked={"tokens": 0.02})
    told = " ".join(advice(late, Bounds(most_slots=64, most_tokens=8192), "rate"))
    assert "wait for the prefill of earlier prompts, and not for a slot: a lower rate" in told


@pytest.mark.parametrize("overloaded", [False, True])
@pytest.mark.parametrize("load", [None, "rate", "concurrency"])
def test_no_setting_is_advised_that_is_not_set(load: str | None, overloaded: bool) -> None:
    told = " ".join(advice(trial(64, ttft=900, overloaded=overloaded), BOUNDS, load))
    assert "another replica" in told
    assert [name for name in ("rate", "concurrency") if f"a lower {name}" in told] == ([load] if load else [])


def test_a_setting_half_way_is_tried_before_the_search_ends() -> None:
    good, too_many = trial(32, goodput=10.0), trial(64, tpot=61)
    assert first(good, too_many).to == Setting(45, 2048)
    near = first(good, too_many, trial(45, tpot=55), trial(38, goodput=12.0))
    assert near.to is None
    assert near.words == "Larger settings were tried and gain no goodput within the SLA."


def test_an_empty_queue_ends_the_search() -> None:
    decision = first(trial(32, waiting_mean=0.3))
    assert decision.to is None
    assert decision.words.startswith("No request waits")


def test_a_search_with_a_slot_for_every_request_claims_no_trial_beyond() -> None:
    decision = first(trial(32), bounds=Bounds(most_slots=24, most_tokens=2048))
    assert decision.to is None
    assert decision.words == "At most 24 requests are in flight, so more slots would stay idle."


def test_the_best_meets_the_bounds_before_it_serves_more() -> None:
    inside, outside = trial(8, goodput=4.0), trial(64, tpot=51, goodput=30.0)
    assert best_of([outside, inside]) is inside


def test_of_settings_that_serve_alike_the_one_with_fewer_slots_is_best() -> None:
    few, many = trial(16, goodput=10.0), trial(32, goodput=10.1)
    assert best_of([many, few]) is few


def test_where_none_meets_the_bounds_the_nearest_is_best() -> None:
    near, far = trial(32, tpot=55, goodput=1.0), trial(64, tpot=90, goodput=9.0)
    assert best_of([far, near]) is near


def test_the_closest_misses_the_fewest_bounds_then_least_then_serves_most() -> None:
    both, one_alone = trial(64, ttft=1000, tpot=60, goodput=9.0), trial(32, ttft=3000, goodput=1.0)
    assert outcome_of([both, one_alone]) is one_alone
    assert best_of([both, one_alone]) is both, "which is where to search on from"
    assert outcome_of([both, one_alone, nearer := trial(45, ttft=2000, goodput=0.5)]) is nearer
    assert outcome_of([nearer, more := trial(48, ttft=2000, goodput=2.0)]) is more
    assert outcome_of([both, within := trial(8, goodput=0.1)]) is within


def test_where_none_meets_the_bounds_one_that_kept_up_with_the_load_is_nearer_than_one_that_did_not() -> None:
    """The percentiles of an overloaded run say how long it was, so it may look nearer than it is."""
    kept_up, swamped = trial(64, ttft=900), trial(32, ttft=600, overloaded=True)
    assert best_of([swamped, kept_up]) is kept_up
    assert "faster than they complete" not in " ".join(advice(kept_up, BOUNDS, "rate"))


def test_a_bound_that_was_not_measured_is_not_near() -> None:
    unmeasured = trial(32)
    judged = msgspec.structs.replace(unmeasured.point.sla[0], value=None, verdict="inconclusive")
    point = msgspec.structs.replace(unmeasured.point, sla=(judged, unmeasured.point.sla[1]))
    near = trial(64, ttft=600)
    assert best_of([Trial(unmeasured.setting, point), near]) is near


def test_an_overloaded_run_meets_nothing() -> None:
    assert not trial(overloaded=True).meets
    assert "faster than they complete" in " ".join(advice(trial(overloaded=True), BOUNDS, "rate"))


@given(limit_rows=st.integers(2, 200), start=st.sampled_from([1, 8, 32, 128, 256]))
@settings(max_examples=60, deadline=None)
def test_a_search_ends_near_the_best_max_num_seqs(limit_rows: int, start: int) -> None:
    """Goodput grows with the rows, and TPOT passes its bound just above limit_rows."""

    def engine(setting: Setting) -> Trial:
        rows = setting.max_num_seqs
        return trial(rows, setting.max_num_batched_tokens, tpot=50 * rows / limit_rows, goodput=float(rows))

    trials = [engine(Setting(start, 2048))]
    while (decision := decide(trials, BOUNDS)).to is not None:
        assert decision.to not in [one.setting for one in trials]
        trials.append(engine(decision.to))
        assert len(trials) < 30
    best = best_of(trials)
    assert best.meets
    assert limit_rows / 1.3 - 1 <= best.setting.max_num_seqs <= limit_rows


def made_up(meeting: Setting) -> Callable[[Setting], Trial]:
    """An engine on which `meeting` alone keeps its bounds, and each factor of two away from it misses them more."""

    def run(setting: Setting) -> Trial:
        slots = abs(log2(setting.max_num_seqs / meeting.max_num_seqs))
        tokens = abs(log2(setting.max_num_batched_tokens / meeting.max_num_batched_tokens))
        ran = trial(setting.max_num_seqs, setting.max_num_batched_tokens, ttft=500 + 100 * slots, tpot=50 + 5 * tokens)
        return Trial(setting, ran.point)

    return run


@pytest.mark.parametrize("slots", [4, 16, 64, 256])
@pytest.mark.parametrize("tokens", [256, 1024, 4096])
def test_the_grid_finds_what_no_move_reaches(slots: int, tokens: int) -> None:
    run = made_up(Setting(slots, max(slots, tokens)))
    bounds = Bounds(most_slots=256, most_tokens=8192, cheap_runs=True, open_loop=True)
    trials = [run(Setting(32, 8192))]
    while (decision := decide(trials, bounds)).to is not None:
        assert decision.to not in [one.setting for one in trials]
        trials.append(run(decision.to))
        assert len(trials) < 60
    assert best_of(trials).setting == Setting(slots, max(slots, tokens))
    assert best_of(trials).meets


def test_without_cheap_runs_there_is_no_grid() -> None:
    run = made_up(Setting(256, 256))
    bounds = Bounds(most_slots=256, most_tokens=8192)
    trials = [run(Setting(32, 8192))]
    while (decision := decide(trials, bounds)).to is not None:
        trials.append(run(decision.to))
    assert decision.words == "Nothing left to try meets the SLA."
    widely = decide(trials, msgspec.structs.replace(bounds, cheap_runs=True))
    assert widely.rule == "grid"
    assert widely.words.startswith("No single change helps: try max_num_seqs ")


def test_what_a_trial_shows_to_be_worse_is_not_tried() -> None:
    """Slow decodes with 32 slots are slower with 64; a queue for 32 slots is longer with 16."""
    slow = trial(32, 1024, tpot=61)
    queued = trial(32, 1024, ttft=900, blocked={"rows": 0.9})
    bounds = Bounds(most_slots=256, most_tokens=1024, cheap_runs=True)
    asked = {"slow": slow, "queued": queued}
    found: dict[str, set[int]] = {name: set() for name in asked}
    for name, one in asked.items():
        trials = [one]
        while (to := next_of_grid(one, trials, bounds)) is not None:
            trials.append(Trial(to, trial(ttft=9e9).point))
            if to.max_num_batched_tokens == 1024:
                found[name].add(to.max_num_seqs)
    assert max(found["slow"]) < 32
    assert min(found["queued"]) > 32


def test_in_open_loop_a_setting_within_the_bounds_needs_no_grid() -> None:
    calm = trial(32, waiting_mean=0.0)
    cheap = msgspec.structs.replace(BOUNDS, cheap_runs=True)
    assert decide([calm], msgspec.structs.replace(cheap, open_loop=True)).to is None
    assert decide([calm], cheap).rule == "grid"


@pytest.mark.parametrize(
    ("prompts", "edge"), [([100] * 20, None), ([100] * 15 + [3200] * 5, 512), ([64] * 18 + [8192] * 2, 1024)]
)
def test_long_prompts_are_those_far_above_the_median(prompts: list[int], edge: int | None) -> None:
    assert bucket_edge_tokens(prompts) == edge


@pytest.mark.parametrize(
    ("prompts", "long"), [([100] * 99 + [200], None), ([100] * 97 + [9000] * 3, 9000), ([100] * 199 + [9000], None)]
)
def test_a_few_long_prompts_are_those_far_above_the_median(prompts: list[int], long: int | None) -> None:
    assert long_prompt_tokens(prompts) == long


def test_the_same_setting_in_other_words() -> None:
    setting = {"max_num_seqs": 24, "max_num_batched_tokens": 512, "admission": "peak", "prefix_caching": False}
    assert toml_of(setting, "why") == (
        '# why\nmax-num-seqs = 24\nmax-num-batched-tokens = 512\nadmission = "peak"\nprefix-caching = false\n'
    )
    vllm = "--max-num-seqs 24 --max-num-batched-tokens 512 --no-enable-prefix-caching"
    assert vllm_flags(setting) == (vllm, ["admission"])
    sglang = "--max-running-requests 24 --chunked-prefill-size 512 --disable-radix-cache"
    assert sglang_flags(setting) == (sglang, ["admission"])
    long = {"max_prompt_chunk": 256, "order": "shortest-prompt", "ageing": 300.0}
    assert vllm_flags(long) == ("--long-prefill-token-threshold 256", ["order", "ageing"])
    assert sglang_flags(long) == ("", ["max-prompt-chunk", "order", "ageing"])
    pool = {"kv_blocks": 100, "block_size": 16}
    assert sglang_flags(pool)[0] == "--page-size 16 --max-total-tokens 1600"
    assert vllm_flags(pool)[0] == "--num-gpu-blocks-override 100 --block-size 16"
