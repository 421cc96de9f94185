"""cbbench calibrate on the steps of another server, and a run with what it fitted, there and on other hardware."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbbench.conftest import Outcome
from tests.engines.simulated.small_runs import STEP_TIMES
from tests.engines.simulated.test_calibrate import _steps
from tests.engines.simulated.test_step_files import at_the_beginning, log_of

Call = Callable[..., Outcome]
SIM = (
    "run",
    "--engine",
    "simulated",
    "--workload",
    "prompt=fixed(64);output=fixed(32)",
    "--num-requests",
    20,
    "--no-live",
)


@pytest.fixture
def log() -> Path:
    path = Path("server.log").absolute()
    path.write_text("\n".join(log_of(at_the_beginning(_steps(200, STEP_TIMES)), usage=True)))
    return path


def test_the_log_of_a_server_is_a_simulated_run_and_moves_to_other_hardware(cbbench: Call, log: Path) -> None:
    fitted = cbbench("calibrate", log, "--model", "llama-3.1-8b", "--hardware", "a100", "--json")
    assert fitted.code == 0, fitted.err
    assert json.loads(fitted.out)["origin"]["device"] == "a100"
    model = log.with_name("step_time_model.json")
    for hardware, told in (
        (None, "calibrated on server.log"),
        ("h100", "moved from a100 to h100 by their data sheets"),
    ):
        there = () if hardware is None else ("--hardware", hardware)
        run = cbbench(*SIM[:-1], "--step-time-model", model, *there, "-o", f"on-{hardware}")
        assert run.code == 0, run.err
        text = " ".join(run.out.split())
        assert told in text
        assert ("UNCALIBRATED" in text) == (hardware is not None)
    here, there_ = (json.loads(Path(f"on-{name}/run.json").read_text()) for name in (None, "h100"))
    assert here["engine"]["config"]["kv_blocks"] == 25_000
    assert here["engine"]["model"] == there_["engine"]["model"] == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("server.log",), "--model: server.log does not say which model the server ran"),
        (("server.log", "--model", "no-such"), "--model"),
        (("server.log", "--model", "tiny", "--hardware", "h9000"), "--hardware: 'h9000' is not one of"),
        (("server.log", ".", "--model", "tiny"), "is a folder, and others here are files"),
        ((".", "--model", "tiny"), "run.json"),
    ],
)
def test_what_calibrate_needs_of_files(cbbench: Call, log: Path, given: tuple[str, ...], complaint: str) -> None:
    outcome = cbbench("calibrate", *given)
    assert outcome.code == 2
    assert complaint in outcome.error_line
