"""cbbench tune through the command line, on the simulator and on the real engine."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from reports.tuning.tune_file import read_tune
from tests.cbbench.conftest import Outcome

SIMULATED = ("tune", "--engine", "simulated", "--hardware", "h200", "--model", "llama-3.1-8b")
TINY = (
    "--model", "tiny", "--device", "cpu", "--hardware", "l40s", "--max-model-len", 256, "--kv-blocks", 512,
)  # fmt: skip
BOUNDS = ("--sla", "p99_ttft_ms<=500", "--sla", "p99_tpot_ms<=30")
CHAT = (
    "--rate",
    18,
    "--num-requests",
    300,
    "--proof-requests",
    0,
    "--sla",
    "p99_ttft_ms<=500",
    "--sla",
    "p99_tpot_ms<=30",
)


def test_it_finds_a_setting_that_meets_what_the_start_misses(cbbench: Callable[..., Outcome], own_folder: Path) -> None:
    outcome = cbbench(*SIMULATED, *CHAT, "-o", "tuned")
    assert outcome.code == 0, outcome.err
    result = read_tune(own_folder / "tuned")
    (stage,) = result.stages
    assert not stage.trials[0].meets
    assert result.best.meets
    assert not result.confirmed
    assert stage.decisions[0].rule == "more-rows"
    assert "device busy" in stage.decisions[0].signals
    assert "UNCALIBRATED" in outcome.out
    assert "confirm it with a run" in outcome.out
    assert cbbench("report", "tuned").out == outcome.out


def test_of_settings_alike_it_takes_the_one_with_headroom(cbbench: Callable[..., Outcome], own_folder: Path) -> None:
    """32 slots meet the bounds at the rate, and miss them at 1.15 times the rate, where 64 meet them."""
    outcome = cbbench(*SIMULATED, "--rate", 15.5, "--num-requests", 300, "--proof-requests", 0, *BOUNDS, "-o", "tuned")
    assert outcome.code == 0, outcome.err
    (stage,) = read_tune(own_folder / "tuned").stages
    assert [(one.setting.max_num_seqs, one.meets) for one in stage.trials] == [(32, True), (64, True)]
    assert stage.headroom is not None
    assert [(one.setting.max_num_seqs, one.meets) for one in stage.headroom.trials] == [(32, False), (64, True)]
    assert stage.best.setting.max_num_seqs == 64
    said = " ".join(outcome.out.split())
    assert "At 1.15 times the rate, max_num_seqs 32, max_num_batched_tokens 8192 misses it: P99 TTFT is" in said
    assert "max_num_seqs 64, max_num_batched_tokens 8192 meets the SLA too." in said


def test_the_file_it_writes_is_the_whole_run(cbbench: Callable[..., Outcome], own_folder: Path) -> None:
    cbbench(*SIMULATED, *CHAT, "-o", "tuned")
    result = read_tune(own_folder / "tuned")
    fragment = tomllib.loads((own_folder / "tuned" / "cbbench.toml").read_text())
    assert fragment["max-num-seqs"] == result.best.setting.max_num_seqs
    again = cbbench("run", "--config", "tuned/cbbench.toml", "-o", "again", "--json")
    assert f'"p99": {result.best.point.p99_ttft_ms}' in again.out


def test_stages_of_a_rate_are_not_drawn_out_to_prove_something(
    cbbench: Callable[..., Outcome], own_folder: Path
) -> None:
    """More requests than they hold would all come at the last rate, which here is the quiet one."""
    stages = ("--rate", "30 for 5s, 2 for 5s", "--workload", "prompt=fixed(64);output=fixed(8)")
    cbbench(*SIMULATED, *stages, "--sla", "p99_ttft_ms<=500", "-o", "tuned")
    (explored,) = read_tune(own_folder / "tuned").stages
    assert explored.num_requests == 160
    assert explored.best.verdict == "unproven"


def test_requests_that_come_all_at_once_are_told_to_be_no_load(
    cbbench: Callable[..., Outcome], own_folder: Path
) -> None:
    bound = ("--num-requests", 64, "--sla", "p99_ttft_ms<=500")
    told = "All 64 requests arrive at once"
    outcome = cbbench(*SIMULATED, *bound, "-o", "at-once")
    assert told in outcome.out
    assert "a lower --rate" not in outcome.out
    assert "Closest (the fewest bounds missed" in outcome.out
    (stage,) = read_tune(own_folder / "at-once").stages
    said = [f"from {one.origin.label()}" for one in stage.decisions]
    assert len(said) > len(set(said)), "several moves from one setting"
    assert outcome.out.count("     from ") == len([a for a, b in zip(said, ["", *said], strict=False) if a != b])
    assert told not in cbbench(*SIMULATED, *bound, "--rate", 2, "--proof-requests", 0, "-o", "paced").out


@pytest.mark.slow
def test_what_few_requests_suggest_is_tried_with_many(cbbench: Callable[..., Outcome], own_folder: Path) -> None:
    """64 slots are enough for 300 requests, and not for the bursts among 3,000."""
    few = [19 if argument == 18 else argument for argument in CHAT if argument not in ("--proof-requests", 0)]
    cbbench(*SIMULATED, *few, "--max-num-seqs", 64, "--proof-requests", 3000, "-o", "tuned")
    explored, proved = read_tune(own_folder / "tuned").stages
    assert explored.best.verdict == "unproven"
    assert proved.purpose == "prove"
    assert 2000 < proved.num_requests <= 3000
    assert proved.trials[0].setting == explored.best.setting
    assert proved.trials[0].verdict == "missed"
    assert proved.best.setting.max_num_seqs > 64


def test_where_the_proof_takes_more_than_was_guessed_it_is_tried_once_more(
    cbbench: Callable[..., Outcome], own_folder: Path
) -> None:
    outcome = cbbench(*SIMULATED, "--rate", 3, "--num-requests", 64, *BOUNDS, "-o", "tuned")
    explored, guessed, again = read_tune(own_folder / "tuned").stages
    assert explored.num_requests < guessed.num_requests < (guessed.best.needed or 0) <= again.num_requests
    assert again.best.verdict == "proven"
    assert "Best: " in outcome.out


@pytest.mark.slow
def test_the_proof_takes_no_more_than_is_allowed(cbbench: Callable[..., Outcome], own_folder: Path) -> None:
    cbbench(*SIMULATED, "--rate", 12, "--num-requests", 64, *BOUNDS, "--proof-requests", 1000, "-o", "bounded")
    last = read_tune(own_folder / "bounded").stages[-1]
    assert (last.purpose, last.best.verdict) == ("prove", "unproven"), "more than is allowed would be no proof either"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "rule"), [(128, "smaller-chunk"), (8, "more-rows")], ids=["mostly decode", "mostly the queue"]
)
def test_a_bound_on_the_whole_answer_is_met_by_its_longer_part(
    cbbench: Callable[..., Outcome], own_folder: Path, rows: int, rule: str
) -> None:
    """Long prompts stall long outputs. More tokens a step, all that was tried for it once, meets no such bound here."""
    work = ("--workload", "prompt=lognormal(median=2000,sigma=1.0,max=16000);output=uniform(64,600)", "--rate", 7)
    bound = ("--num-requests", 400, "--proof-requests", 0, "--sla", "p99_e2el_ms<=9300")
    outcome = cbbench(*SIMULATED, *work, *bound, "--max-num-seqs", rows, "-o", "tuned")
    assert outcome.code == 0, outcome.err
    (stage,) = read_tune(own_folder / "tuned").stages
    assert not stage.trials[0].meets
    assert stage.best.meets
    assert stage.decisions[0].rule == rule
    best, first = stage.best.setting, stage.trials[0].setting
    if rule == "smaller-chunk":
        assert best.max_num_batched_tokens < first.max_num_batched_tokens
    else:
        assert best.max_num_seqs > first.max_num_seqs
    assert "P99 E2EL" in outcome.out


LONG_PROMPTS = (
    "chat:weight=97,workload=(prompt=uniform(50,400);output=uniform(100,300));"
    "doc:weight=3,workload=(prompt=uniform(6000,12000);output=uniform(100,300))"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("--rate", 24, "--max-num-seqs", 128, "--sla", "p99_ttft_ms[tenant=chat]<=200", "--sla", "p99_tpot_ms<=14"),
         "prompt-chunk"),
        (("--rate", 22, "--kv-blocks", 2200, "--max-num-seqs", 64, "--sla", "p95_ttft_ms<=500"), "shortest-first"),
    ],
    ids=["they stall answers", "they hold the queue"],
)  # fmt: skip
def test_a_few_long_prompts_keep_no_request_from_the_bounds(
    cbbench: Callable[..., Outcome], own_folder: Path, arguments: tuple[object, ...], rule: str
) -> None:
    """Rows, tokens per step, admission and buckets meet these bounds with none of their settings that tune tries."""
    few = ("--num-requests", 1000, "--proof-requests", 0)
    outcome = cbbench(*SIMULATED, "--tenants", LONG_PROMPTS, *few, *arguments, "-o", "tuned")
    assert outcome.code == 0, outcome.err
    result = read_tune(own_folder / "tuned")
    (stage,) = result.stages
    met = [one for one in stage.trials if one.meets]
    assert met
    assert all(one.setting.max_prompt_chunk or one.setting.order for one in met)
    assert rule in [one.rule for one in stage.decisions]
    again = cbbench("run", "--config", "tuned/cbbench.toml", "-o", "again", "--json")
    assert f'"p99": {result.best.point.p99_ttft_ms}' in again.out


def test_a_bound_that_no_setting_meets_is_a_miss(cbbench: Callable[..., Outcome], own_folder: Path) -> None:
    outcome = cbbench(*SIMULATED, "--num-requests", 40, "--sla", "p99_tpot_ms<=0.01", "-o", "tuned")
    assert outcome.code == 3
    assert "the SLA is missed" in outcome.out
    assert not read_tune(own_folder / "tuned").best.meets


def test_the_runs_allowed_end_the_search(cbbench: Callable[..., Outcome], own_folder: Path) -> None:
    outcome = cbbench(*SIMULATED, *CHAT, "--most-runs", 1, "-o", "tuned")
    (stage,) = read_tune(own_folder / "tuned").stages
    assert len(stage.trials) == 1
    assert "most_runs" in stage.ended
    assert outcome.code == 5, "the one setting misses a bound, which 300 requests do not prove"
    assert not stage.advice, "what no setting can do is not known before they are tried"


def test_what_the_simulator_found_is_confirmed_on_the_real_engine(
    cbbench: Callable[..., Outcome], own_folder: Path
) -> None:
    work = ("--workload", "prompt=uniform(4,24);output=uniform(4,24)", "--num-requests", 96, "--concurrency", 48)
    tiny = (*TINY, "--max-num-seqs", 2)
    outcome = cbbench("tune", *tiny, *work, "--proof-requests", 0, "--sla", "p99_ttft_ms<=60000", "-o", "tuned")
    assert outcome.code == 0, outcome.err
    result = read_tune(own_folder / "tuned")
    explored, confirmed = result.stages
    assert (explored.engine, confirmed.engine) == ("simulated", "reference")
    assert confirmed.trials[0].setting.max_num_seqs == explored.best.setting.max_num_seqs > 2
    assert result.confirmed
    assert (own_folder / "tuned" / confirmed.best.point.folder / "run.json").exists()


def test_each_search_names_the_flag_that_bounds_it(cbbench: Callable[..., Outcome], own_folder: Path) -> None:
    work = ("--workload", "prompt=uniform(4,24);output=uniform(4,24)", "--num-requests", 24, "--concurrency", 8)
    tiny = (*TINY, "--confirm-runs", 1, "--proof-requests", 0)
    cbbench("tune", *tiny, *work, "--sla", "p99_tpot_ms<=0.01", "-o", "tuned")
    _explored, confirmed = read_tune(own_folder / "tuned").stages
    assert not confirmed.best.meets
    assert confirmed.ended == "Runs allowed: 1, and they are spent; confirm_runs allows more."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--sla: tune needs bounds"),
        (("--sla", "p99_tpot_ms<=1", "--mode", "static"), "--mode"),
        (("--sla", "p99_tpot_ms<=1", "--url", "http://127.0.0.1:1"), "--url"),
        (("--sla", "p99_tpot_ms=1"), "--sla"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    cbbench: Callable[..., Outcome], own_folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    outcome = cbbench("tune", "--model", "tiny", *arguments)
    assert outcome.code == 2
    assert words in outcome.error_line
    assert not any(own_folder.iterdir())
