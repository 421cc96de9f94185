"""From a reading of the GPU to run.json: a stand-in driver, a real run on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cbbench.experiment import run
from engines.telemetry import open_gpus
from tests.cbbench.conftest import TINY, Outcome
from tests.engines.gpu_driver import Driver

# Long enough for a signal, which comes four times a second: the last request is due after 0.3 s.
WORK = (*TINY, "--num-requests", 4, "--rate", 10, "--arrival", "constant", "-o", "out")


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(run, "open_gpus", lambda: open_gpus(Driver()))


def test_the_gpu_is_in_the_signals_the_summary_and_the_environment(cbbench: Callable[..., Outcome]) -> None:
    outcome = cbbench("run", *WORK, "--gpu-telemetry")
    assert outcome.code == 0, outcome.err
    shown = " ".join(outcome.out.split())  # lines are folded
    assert "memory peak 5.0 GiB · 412 W · 1755 MHz · clocks throttled in 100% of samples" in shown
    samples = [json.loads(line) for line in Path("out/signals.jsonl").read_text().splitlines()]
    assert samples
    assert samples[-1]["gpu"]["power_w"] == 412.5
    result = json.loads(Path("out/run.json").read_text())
    assert result["summary"]["signals"]["gpu_power_mean_w"] == 412.5
    assert result["environment"]["gpu"]["driver"] == "580.1"
    assert cbbench("report", "out").code == 0
    assert json.loads(Path("out/run.json").read_text()) == result  # the files alone give the same


def test_a_run_on_the_cpu_asks_no_gpu(cbbench: Callable[..., Outcome]) -> None:
    assert cbbench("run", *WORK).code == 0
    result = json.loads(Path("out/run.json").read_text())
    assert (result["environment"]["gpu"], result["summary"]["signals"]["gpu_power_mean_w"]) == (None, None)
    assert all(json.loads(line)["gpu"] is None for line in Path("out/signals.jsonl").read_text().splitlines())


def test_a_simulated_run_has_no_gpu(cbbench: Callable[..., Outcome]) -> None:
    outcome = cbbench("run", "--engine", "simulated", "--hardware", "h100", "--gpu-telemetry", "-o", "out")
    assert outcome.code == 2
    assert outcome.error_line == "error: --gpu-telemetry: --engine simulated computes on no GPU"
