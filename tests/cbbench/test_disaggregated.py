"""Disaggregated runs from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.simulated.step_time import STEP_TIMES_FILE, save_step_times
from tests.cbbench.conftest import TINY, Outcome
from tests.engines.simulated.small_runs import STEP_TIMES

Call = Callable[..., Outcome]
ENGINE = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b", "--num-requests", 40, "--rate", 20)
LENGTHS = ("--workload", "prompt=uniform(100,2000);output=uniform(1,60)")
PAIR = ("--disaggregate", "--max-num-seqs", 4)


def result(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "run.json").read_bytes())
    return found


def test_a_run_says_what_each_instance_did(cbbench: Call) -> None:
    outcome = cbbench("run", *ENGINE, *LENGTHS, *PAIR, "--timeline", "-o", "out", "--sla", "p99_ttft_ms<=2000")
    assert "continuous, disaggregated · llama-3.1-8b · 2 × h100" in outcome.out
    assert "on 2 × h100" in cbbench("report", "out", "--format", "md").out
    assert "prefill instance\n" in outcome.out
    assert "decode instance\n" in outcome.out
    assert "KV transfers" in outcome.out
    assert "for room in the decode instance" in " ".join(outcome.out.split())
    summary, config = result("out")["summary"], result("out")["engine"]["config"]
    assert config["prefill_kv_blocks"] == config["kv_blocks"] > 27_000
    assert config["kv_link_gb_per_s"] == 50
    assert set(summary["instances"]) == {"prefill", "decode"}
    whole, parts = summary["signals"], [one["signals"] for one in summary["instances"].values()]
    assert whole["steps"] == sum(one["steps"] for one in parts)
    assert whole["device_busy"] == pytest.approx(sum(one["device_busy"] for one in parts) / 2)
    assert whole["running_mean"] == pytest.approx(sum(one["running_mean"] for one in parts))
    for metric in ("ttft", "e2el"):
        assert sum(part["share"] for part in summary["breakdown"][metric].values()) == pytest.approx(1)
    assert {"handover", "transfer"} <= set(summary["breakdown"]["e2el"])
    assert cbbench("report", "out", "--format", "html,md", "-o", "page").code == 0


def test_the_same_run_twice_is_the_same_file(cbbench: Call) -> None:
    for folder in ("a", "b"):
        assert cbbench("run", *ENGINE, *LENGTHS, *PAIR, "-o", folder).code == 0
    for name in ("requests.jsonl", "steps.bin", "tokens.bin", "signals.jsonl"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


def test_a_sweep_over_two_against_one_and_over_the_prefill_instance(cbbench: Call) -> None:
    two = cbbench("sweep", "disaggregate", "--values", "true,false", *ENGINE, *LENGTHS, "-o", "two")
    assert two.code == 0
    said = " ".join(two.out.split())
    assert "true is predicted on two devices, one for prefill and one for decode, and false on one." in said
    assert "give false half of the load" in said
    advice = json.loads(Path("two/sweep.json").read_bytes())["recommendation"]
    assert "But true has two devices, and false one." in advice["reason"]
    assert "give false half of the load" in cbbench("report", "two", "--format", "md").out
    alone = cbbench("sweep", "disaggregate", "--values", "true", *ENGINE, *LENGTHS, "-o", "alone")
    assert "two devices" not in alone.out, "nothing there to be taken for equal"
    swept = ("sweep", "prefill-kv-blocks", "--values", "150,300", *ENGINE, *LENGTHS, *PAIR, "-o", "pool")
    assert cbbench(*swept).code == 0
    points = json.loads(Path("pool/sweep.json").read_bytes())["points"]
    assert [point["values"] for point in points] == [[150], [300]]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (("--disaggregate", "--mode", "static"), ["--disaggregate", "--mode continuous"]),
        (("--disaggregate", "--on-kv-pressure", "swap"), ["--disaggregate", "--on-kv-pressure", "swap"]),
        (("--prefill-kv-blocks", 100), ["--prefill-kv-blocks", "--disaggregate"]),
        (("--kv-link-gb-per-s", 100), ["--kv-link-gb-per-s", "--disaggregate"]),
        ((*PAIR, "--kv-link-gb-per-s", 1e-300), ["--kv-link-gb-per-s: must be a number >= 0.001", "1e-300"]),
        ((*PAIR, "--prefill-max-num-batched-tokens", 3), ["--prefill-max-num-batched-tokens: 3", "at least 4"]),
        ((*PAIR, "--prefill-kv-blocks", 100), ["--prefill-kv-blocks: 100 is too few for 8 of 40", "--misfit reject"]),
        ((*PAIR, "--kv-blocks", 100, "--prefill-kv-blocks", 900), ["--kv-blocks: 100 is too few", "needs 107 blocks"]),
    ],
)
def test_what_makes_no_sense_is_one_line(cbbench: Call, settings: tuple[object, ...], names: list[str]) -> None:
    outcome = cbbench("run", *ENGINE, *LENGTHS, *settings, "-o", "out")
    assert outcome.code == 2
    assert all(name in outcome.error_line for name in names), outcome.error_line
    assert not Path("out").exists()


def test_a_calibration_does_not_know_the_link(cbbench: Call) -> None:
    """Nor, if it is an old one, the KV bytes of a token."""
    run = (
        "run",
        "--engine",
        "simulated",
        "--step-time-model",
        STEP_TIMES_FILE,
        "--model",
        "tiny",
        "--num-requests",
        4,
        *LENGTHS,
        *PAIR,
    )
    save_step_times(STEP_TIMES, Path(STEP_TIMES_FILE))
    assert "calibrate" in cbbench(*run, "--kv-link-gb-per-s", 2, "-o", "out").error_line
    knows = msgspec.structs.replace(STEP_TIMES.origin, kv_bytes_per_token=1_000_000)
    save_step_times(msgspec.structs.replace(STEP_TIMES, origin=knows), Path(STEP_TIMES_FILE))
    assert "--kv-link-gb-per-s: " in cbbench(*run, "-o", "out").error_line
    assert cbbench(*run, "--kv-link-gb-per-s", 2, "-o", "out").code == 0
    (one,) = [
        row for line in Path("out/requests.jsonl").read_bytes().splitlines() if (row := json.loads(line))["i"] == 0
    ]
    blocks = -(-one["prompt_tokens"] // 16)
    assert one["transfer_ended"] - one["transfer_asked"] == blocks * 16 * 500_000  # 1 MB a token at 2 GB/s


def test_other_commands_refuse_two_instances(cbbench: Call) -> None:
    assert "--disaggregate" in cbbench("tune", *ENGINE, "--disaggregate", "--sla", "p99_ttft_ms<=9").error_line
    assert cbbench("serve", "--disaggregate").code == 2


def test_on_the_reference_engine(cbbench: Call) -> None:
    outcome = cbbench("run", *TINY, "--disaggregate", "--num-requests", 12, "--prefill-kv-blocks", 9, "-o", "out")
    assert outcome.code == 0, outcome.err
    assert "continuous, disaggregated · tiny · two instances on one cpu" in outcome.out
    summary = result("out")["summary"]
    assert summary["requests"]["completed"] == 12
    assert summary["transfers"]["requests"] == 12
    assert cbbench("calibrate", "out").code == 2
    assert "--kv-link-gb-per-s" in cbbench("run", *TINY, "--disaggregate", "--kv-link-gb-per-s", 1).error_line
