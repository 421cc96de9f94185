"""Simulated runs from the command line: memory from the data sheet, and what a calibration does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cbbench.experiment.run import LONG_SIMULATION, notes_on_speed
from engines.simulated.step_time import STEP_TIMES_FILE, save_step_times
from reports.schema import EngineInfo
from tests.cbbench.conftest import Outcome
from tests.engines.simulated.small_runs import STEP_TIMES
from workloads.plan import RequestPlan

Call = Callable[..., Outcome]
H200 = ("run", "--engine", "simulated", "--hardware", "h200", "--model", "llama-3.1-8b", "--num-requests", 4)
FITTED = ("run", "--engine", "simulated", "--step-time-model", STEP_TIMES_FILE, "--model", "tiny",
          "--num-requests", 4, "--workload", "prompt=fixed(8);output=fixed(8)")  # fmt: skip


def engine_config(folder: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path(folder, "run.json").read_bytes())["engine"]["config"]
    return found


def test_less_memory_is_fewer_blocks(cbbench: Call) -> None:
    blocks: list[int] = []
    for share in ("0.5", "0.9"):
        outcome = cbbench(*H200, "--gpu-memory-utilization", share, "-o", share)
        assert outcome.code == 0, outcome.err
        assert f"KV pool {engine_config(share)['kv_blocks']:,} blocks of 16 tokens" in outcome.out
        blocks.append(int(str(engine_config(share)["kv_blocks"])))
    assert blocks[1] - blocks[0] == pytest.approx(0.4 * 143_771 / 2, abs=1), "of the whole card, 2 MiB a block"


@pytest.mark.parametrize("refused", [("--on-kv-pressure", "swap"), ("--gpu-memory-utilization", "0.5")])
def test_what_a_calibration_does_not_know_is_refused(cbbench: Call, refused: tuple[str, str]) -> None:
    save_step_times(STEP_TIMES, Path(STEP_TIMES_FILE))
    outcome = cbbench(*FITTED, *refused, "-o", "out")
    assert outcome.code == 2, outcome.err
    assert outcome.error_line.startswith(f"error: {refused[0]}")
    assert not Path("out").exists()


def test_a_slow_host_and_speculation_are_settings_of_the_hardware(cbbench: Call) -> None:
    run = ("run", "--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b", "--num-requests", 20)
    times = {}
    for name, *given in (
        ("plain",),
        ("host", "--host-floor-ms", "30"),
        ("eager", "--host-floor-ms", "eager"),
        ("draft", "--speculative-tokens", 4, "--acceptance", "0.8", "--draft-cost", "0.05"),
    ):
        assert cbbench(*run, "--workload", "prompt=fixed(16);output=fixed(64)", *given, "-o", name).code == 0
        times[name] = json.loads(Path(name, "run.json").read_text())["summary"]["latency"]["tpot_ms"]["p50"]
    assert times["host"] == pytest.approx(30, rel=0.01)
    assert times["eager"] == pytest.approx(32 * 0.38 + 20 * 0.27, rel=0.05)
    assert times["draft"] < 0.45 * times["plain"]
    for given, complaint in (
        (("--host-floor-ms", "slow"), "--host-floor-ms: want milliseconds from 0 to a million, or eager"),
        (("--acceptance", "0.5"), "--acceptance"),
        (("--speculative-tokens", "0"), "--speculative-tokens"),
    ):
        assert complaint in cbbench(*run, *given, "-o", "x").error_line


def test_swapped_blocks_are_paid_for(cbbench: Call) -> None:
    """2 MiB of KV a block over PCIe 5; a block of twice the tokens costs twice as much."""
    for size in (16, 32):
        assert cbbench(*H200, "--on-kv-pressure", "swap", "--block-size", size, "-o", str(size)).code == 0
        law = engine_config(str(size))["law"]
        assert isinstance(law, dict)
        assert law["swap_block_ns"] == pytest.approx(size * 131_072 / 50)


def test_a_run_says_in_its_file_alone_which_core_it_took(cbbench: Call) -> None:
    outcome = cbbench(*H200, "-o", "short")
    assert engine_config("short")["core"] == "scheduler: fewer than 1,000 requests"
    assert "core" not in outcome.out + outcome.err
    assert cbbench(*H200, "--disaggregate", "-o", "two").code == 0
    assert engine_config("two")["core"] == "scheduler: two instances"
    assert "core" not in cbbench("compare", "short", "two").out
    assert "core" not in cbbench("report", "short", "--format", "md").out.split()


@pytest.mark.parametrize(
    ("core", "requests", "notes"),
    [
        (
            "scheduler: order fair",
            LONG_SIMULATION,
            ["20,000 requests run on the scheduler, not on the faster compiled core: order fair"],
        ),
        ("scheduler: order fair", LONG_SIMULATION - 1, []),
        ("compiled", LONG_SIMULATION, []),
        (None, LONG_SIMULATION, []),
    ],
)
def test_a_long_run_says_why_it_is_not_on_the_compiled_core(core: str | None, requests: int, notes: list[str]) -> None:
    info = EngineInfo(kind="simulated", config={} if core is None else {"core": core})
    assert notes_on_speed(info, RequestPlan.of([1] * requests, [1] * requests)) == notes
