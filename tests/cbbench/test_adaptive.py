"""Where an adaptive sweep looks: on curves with a known knee, and on the simulator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbbench.experiment.adaptive import CLOSE, MOST_SETTINGS, AdaptiveSearch, Round, between, ladder, next_round
from cbbench.experiment.search_bounds import bounds_of_rate, parse_between
from reports.curves import merge
from reports.recommend import recommend
from reports.schema import SlaResult
from reports.sweep_schema import Point
from tests.cbbench.conftest import Outcome
from workloads.errors import CbbenchError

Call = Callable[..., Outcome]
SIMULATED = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b")
SLOTS = AdaptiveSearch(1, 400, whole=True, climbs=False, latency="p99_tpot_ms", judged=False)


def search_to_the_end(search: AdaptiveSearch, measure: Callable[[float], Point]) -> tuple[list[float], Round]:
    """Everything measured, in order, and the round that ended it."""
    points: list[Point] = []
    while (step := next_round(search, merge(points))).values:
        points += [measure(value) for value in step.values]
    return [float(one.values[0]) for one in points], step


def slots(value: float) -> Point:
    """Steps of 20 ms + 0.4 ms a slot: throughput over TPOT is largest where both parts are equal, at 50 slots."""
    tpot_ms = 20 + 0.4 * value
    return Point(values=(int(value),), folder="", output_token_per_s=1000 * value / tpot_ms, p99_tpot_ms=tpot_ms)


def test_the_knee_of_a_known_law_is_bracketed() -> None:
    measured, last = search_to_the_end(SLOTS, slots)
    assert measured[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 400]
    beside = sorted(measured)
    below, above = max(one for one in beside if one < 50), min(one for one in beside if one > 50)
    assert above / below <= CLOSE**2
    assert len(measured) <= 16
    assert last.why.startswith("The knee is at ")
    assert "measured between" in last.why


def test_a_knee_at_the_upper_end_is_called_one() -> None:
    _, last = search_to_the_end(AdaptiveSearch(1, 16, True, False, "p99_tpot_ms", False), slots)
    assert "at 16, the largest value tried" in last.why
    assert "may lie beyond 16" in last.why


def queue(value: float, sla_ms: float = 200) -> Point:
    """One server of 10 requests/s; its first tokens come after 20 ms and a wait that grows without end at 10."""
    full = value >= 10
    ttft_ms = 20 + (5000.0 if full else 1000 * (value / 10) / (10 - value) * 0.5)
    judged = SlaResult("p99_ttft_ms<=200", "p99_ttft_ms", ttft_ms, sla_ms, 0.95, 99, 99.0,
                       "pass" if ttft_ms <= sla_ms else "fail", "")  # fmt: skip
    speed = min(value, 10) * 100
    return Point(values=(value,), folder="", output_token_per_s=speed, p99_ttft_ms=ttft_ms, sla=(judged,),
                 saturated="arrivals outran completions" if full else None)  # fmt: skip


def test_a_rate_climbs_one_by_one_until_saturated_and_the_sla_is_bisected() -> None:
    measured, last = search_to_the_end(AdaptiveSearch(0.5, 64, False, True, "p99_ttft_ms", True), queue)
    assert measured[:6] == [0.5, 1, 2, 4, 8, 16], "nothing above 16 is tried, as 16 is saturated"
    assert max(measured) == 16
    edge = 10 * 180 / 230  # where the wait of `queue` makes 200 ms
    served, full = max(one for one in measured if one < 10), min(one for one in measured if one >= 10)
    assert full / served <= CLOSE
    met, missed = max(one for one in measured if one <= edge), min(one for one in measured if one > edge)
    assert missed / met <= CLOSE
    assert "Saturated at" in last.why
    assert "The best within the SLA is" in last.why


def test_the_best_within_the_sla_and_the_smaller_one_that_is_recommended_are_told_apart() -> None:
    """From 40 slots on throughput is the same to 0.1 %, and largest at 64."""

    def flat(value: float) -> Point:
        speed = 1000.0 + (value == 64) if value >= 40 else 25 * value
        judged = SlaResult("p99_tpot_ms<=50", "p99_tpot_ms", 10, 50, 0.95, 99, 99.0, "pass", "")
        return Point(values=(int(value),), folder="", output_token_per_s=speed, p99_tpot_ms=10.0, sla=(judged,))

    measured, last = search_to_the_end(AdaptiveSearch(1, 128, True, False, "p99_tpot_ms", True), flat)
    chosen = recommend(["max-num-seqs"], [flat(value) for value in measured], ["p99_tpot_ms<=50"]).values
    assert chosen is not None
    assert chosen[0] < 64
    assert "The best within the SLA is 64, measured between" in last.why
    assert last.why.endswith(f"; {chosen[0]} is as good to within 1 %, and the smaller.")


def test_it_is_bounded_and_says_so() -> None:
    def ragged(value: float) -> Point:  # every new value looks better than the ones before
        ragged.count += 1  # type: ignore[attr-defined]
        return Point(values=(value,), folder="", output_token_per_s=ragged.count, p99_tpot_ms=1.0)  # type: ignore[attr-defined]

    ragged.count = 0  # type: ignore[attr-defined]
    measured, last = search_to_the_end(AdaptiveSearch(1, 2**40, True, False, "p99_tpot_ms", False), ragged)
    assert len(measured) >= MOST_SETTINGS
    assert last.why.startswith(f"Stopped after {len(measured)} settings")


def test_settings_that_cannot_run_are_not_tried_again() -> None:
    def broken(value: float) -> Point:
        return Point(values=(int(value),), folder="", error="no") if value > 100 else slots(value)

    measured, last = search_to_the_end(SLOTS, broken)
    assert len(measured) == len(set(measured))
    assert "The knee is at" in last.why
    _, none = search_to_the_end(SLOTS, lambda value: Point(values=(int(value),), folder="", error="no"))
    assert none.why == "no setting could run"


def test_steps() -> None:
    assert ladder(AdaptiveSearch(3, 20, True, False, "", False)) == [3, 4, 8, 16, 20]
    assert ladder(AdaptiveSearch(0.25, 2, False, True, "", False)) == [0.25, 0.5, 1, 2]
    assert between(SLOTS, 16, 32) == 23
    assert between(SLOTS, 7, 8) is None
    assert between(SLOTS, 1, 2) is None
    assert between(AdaptiveSearch(1, 9, False, True, "", False), 4, 8) == 5.66
    assert bounds_of_rate(10.0) == (1, 64)


@pytest.mark.parametrize(
    ("text", "whole", "words"),
    [("4", None, "LOW,HIGH"), ("8,4", None, "LOW < HIGH"), ("0,4", None, "0 <"), ("1.5,4", True, "whole"),
     ("a,b", None, "LOW,HIGH"), ("1,inf", None, "LOW < HIGH")],
)  # fmt: skip
def test_bad_bounds(text: str, whole: bool | None, words: str) -> None:
    with pytest.raises(CbbenchError, match=words):
        parse_between(text, whole=whole)


def state() -> Any:
    return json.loads(Path("out/sweep.json").read_text())


def test_a_rate_sweep_on_the_simulator_resumes(cbbench: Call) -> None:
    command = ("sweep", "rate", "--adaptive", *SIMULATED, "--num-requests", 120, "-o", "out",
               "--workload", "prompt=fixed(64);output=uniform(16,64)", "--max-num-seqs", 8)  # fmt: skip
    outcome = cbbench(*command, "--sla", "p99_ttft_ms<=500")
    assert outcome.code in (0, 3, 5), outcome.err
    whole = state()
    assert whole["adaptive"]
    assert "Saturated at" in whole["ended"]
    assert whole["ended"] in " ".join(outcome.out.split())
    assert sum(bool(point["saturated"]) for point in whole["points"]) >= 1
    rates = sorted(point["rate_per_s"] for point in whole["points"])
    assert max(rates) <= 2 * min(point["rate_per_s"] for point in whole["points"] if point["saturated"])
    lost = whole["points"][1]
    shutil.rmtree(Path("out", lost["folder"]))
    kept = [point for point in whole["points"] if point != lost]
    Path("out/sweep.json").write_text(json.dumps(whole | {"points": kept, "ended": None, "recommendation": None}))
    again = cbbench(*command, "--sla", "p99_ttft_ms<=500")
    assert again.code == outcome.code
    by_rate = {tuple(point["values"]): point for point in state()["points"]}
    assert by_rate == {tuple(point["values"]): point for point in whole["points"]}
    assert state()["ended"] == whole["ended"]
    assert "all requests at once" not in again.err, "the burst is there from the first time"


@pytest.mark.parametrize(
    ("param", "arguments"),
    [("max-num-seqs", ()), ("kv-blocks", ()), ("max-num-batched-tokens", ()), ("block-size", ("--between", "4,64")),
     ("watermark", ("--between", "1,20.5"))],
)  # fmt: skip
def test_other_options(cbbench: Call, param: str, arguments: tuple[object, ...]) -> None:
    work = ("--num-requests", 12, "--workload", "prompt=uniform(16,96);output=uniform(8,32)", "--max-num-seqs", 4)
    mine = work[:-2] if param == "max-num-seqs" else work
    outcome = cbbench("sweep", param, "--adaptive", *arguments, *SIMULATED, *mine, "-o", "out")
    assert outcome.code == 0, outcome.err
    assert len(state()["points"]) >= 4
    assert state()["ended"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mode", "--adaptive"), "takes no numbers"),
        (("rate,mode", "--adaptive"), "one parameter"),
        (("rate", "--adaptive", "--values", "1,2"), "either --values"),
        (("rate",), "either --values"),
        (("rate", "--values", "1", "--between", "1,2"), "--between"),
        (("block-size", "--adaptive"), "say --between LOW,HIGH"),
        (("max-num-seqs", "--adaptive", "--num-requests", 1), "can only be 1"),
        (("max-num-seqs", "--adaptive", "--between", "1,1e9"), "--between: max-num-seqs must be a whole number <= 655"),
    ],
)
def test_bad_input(cbbench: Call, arguments: tuple[object, ...], words: str) -> None:
    outcome = cbbench("sweep", *arguments, *SIMULATED, "-o", "out")
    assert outcome.code == 2
    assert words in outcome.error_line
    assert not Path("out").exists()
