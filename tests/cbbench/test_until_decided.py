"""cbbench run --until-decided: rounds, what ends them, and how its folder is judged again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reports.folder import read_run
from tests.cbbench.conftest import Outcome

Call = Callable[..., Outcome]
RUN = ("run", "--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b",
       "--workload", "prompt=uniform(64,256);output=uniform(8,32)", "--rate", 4)  # fmt: skip
UNTIL = (*RUN, "--until-decided")


def test_what_is_clear_takes_one_round(cbbench: Call) -> None:
    outcome = cbbench(*UNTIL, "--sla", "p99_ttft_ms<=500", "--sla", "p99_tpot_ms<=0.001", "-o", "made")
    assert outcome.code == 3, outcome.out
    assert "1 round, 1,000 requests: every SLA is decided" in outcome.out
    assert sorted(one.name for one in Path("made").iterdir()) == ["1", "until_decided.json"]
    verdict = json.loads(Path("made/until_decided.json").read_text())
    assert [(one["metric"], one["verdict"]) for one in verdict["checks"]] == [
        ("p99_ttft_sched_ms", "pass"), ("p99_tpot_ms", "fail"),
    ]  # fmt: skip
    assert read_run(Path("made/1")).round == 1


def test_it_goes_on_with_other_seeds_until_the_last_sla_is_decided(cbbench: Call) -> None:
    """A P99.8 takes some thousand requests; the mean is decided in the first round and stays as it was."""
    outcome = cbbench(*UNTIL, "--sla", "p998_ttft_ms<=5000", "--sla", "mean_ttft_ms<=5000", "-o", "made", "--json")
    assert outcome.code == 0, outcome.out
    rounds = [read_run(Path("made") / str(number)) for number in range(1, 5)]
    assert [(one.workload.num_requests, one.workload.seed) for one in rounds] == [
        (1000, 0), (1000, 1), (2000, 2), (4000, 3),
    ]  # fmt: skip
    summary = json.loads(outcome.out)
    assert {one["metric"]: one["verdict"] for one in summary["checks"]} == {
        "p998_ttft_sched_ms": "pass", "mean_ttft_sched_ms": "pass",
    }  # fmt: skip
    mean = next(one for one in summary["checks"] if one["metric"] == "mean_ttft_sched_ms")
    assert mean["scenario"] == "made/1"
    assert "4 rounds, 8,000 requests" in summary["notes"][0]


def test_a_gate_on_its_folder_tests_at_what_its_last_look_had_left(cbbench: Call) -> None:
    """Otherwise the rounds, which ended when it suited the bound, would be tested as if they had been planned."""
    cbbench(*UNTIL, "--sla", "p99_ttft_ms<=500", "-o", "made")
    judged = json.loads(cbbench("gate", "made", "--sla", "mean_ttft_ms<=500", "--json").out)
    assert judged["verdict"] == "pass"
    assert "made/1" in judged["checks"][0]["scenario"]
    run = Path("made/1/run.json")
    text = json.loads(run.read_text())
    assert text["round"] == 1
    # 368 independent requests prove a P99 at 97.5 %, and 299 at 95 %
    few = (*RUN, "--num-requests", 330, "--sla", "p99_ttft_ms<=500", "-o", "few")
    assert cbbench(*few).code == 0
    path = Path("few/run.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"round": 1}))
    assert cbbench("gate", "few").code == 5


def test_a_limit_ends_it_undecided(cbbench: Call) -> None:
    undecided = ("--sla", "p999_ttft_ms<=5000")
    outcome = cbbench(*UNTIL, *undecided, "--max-requests", 1500, "-o", "few")
    assert outcome.code == 5
    assert "2 rounds, 1,500 requests: a limit was reached" in outcome.out
    outcome = cbbench(*UNTIL, *undecided, "--max-duration", 300, "-o", "short")  # at 4/s
    assert outcome.code == 5
    asked = [read_run(Path("short") / number).workload.num_requests for number in ("1", "2")]
    assert 1000 < sum(asked) <= 1200


def test_an_overload_ends_it(cbbench: Call) -> None:
    slow = ("--max-num-seqs", 1, "--sla", "p99_ttft_ms<=5000", "-o", "made")
    outcome = cbbench(*UNTIL, *slow, "--rate", 40)
    assert "1 round, 1,000 requests: a round was not valid" in outcome.out.replace("\n", " ")
    assert outcome.code in (3, 5)


def test_an_explicit_number_of_requests_wins(cbbench: Call) -> None:
    outcome = cbbench(*UNTIL, "--sla", "p99_ttft_ms<=500", "--num-requests", 50, "-o", "made")
    assert outcome.code == 5
    assert "the run has 50 requests, as --num-requests says" in outcome.err
    assert read_run(Path("made")).round is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "needs --sla"),
        (("--sla", "p99_ttft_ms<=500", "--duration", 10), "--max-duration"),
        (("--sla", "p99_ttft_ms<=500", "--max-requests", 0), "max-requests"),
    ],
)
def test_refusals(cbbench: Call, arguments: tuple[object, ...], words: str) -> None:
    outcome = cbbench(*UNTIL, *arguments, "-o", "made")
    assert outcome.code == 2
    assert words in outcome.err
    assert not Path("made").exists()


def test_limits_alone_are_refused(cbbench: Call) -> None:
    assert "needs --until-decided" in cbbench(*RUN, "--max-requests", 10).error_line


def test_a_baseline_is_compared_on_the_rounds_that_both_have(cbbench: Call) -> None:
    short = ("--sla", "p999_ttft_ms<=5000")
    cbbench(*UNTIL, *short, "--max-requests", 2000, "-o", "long")
    cbbench(*UNTIL, *short, "--max-requests", 1000, "-o", "short")
    outcome = cbbench("gate", "long", "--baseline", "short", "--sla", "mean_ttft_ms<=5000")
    assert outcome.code == 0, outcome.out
    assert "compared on the 1 rounds that both have, of 2 and 1" in outcome.out


def test_a_side_of_compare_has_a_fixed_number_of_requests(cbbench: Call) -> None:
    outcome = cbbench("compare", "--aa", "--engine simulated --hardware h100 --until-decided")
    assert outcome.code == 2
    assert "--until-decided: does not belong into a CONFIG" in outcome.error_line
