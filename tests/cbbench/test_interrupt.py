"""Ctrl-C, SIGTERM and SIGKILL on real processes: partial results are kept, and a dead run can be rebuilt."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cbbench.experiment.interrupt import Interrupt
from tests.cbbench.conftest import TINY, Outcome

Spawn = Callable[..., subprocess.Popen[str]]
ENDLESS = (*TINY, "--num-requests", 4_000, "--max-model-len", 64, "--max-num-seqs", 4, "-o", "out")


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"{path} never had {count} lines"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_first_signal_keeps_partial_results(spawn: Spawn, number: signal.Signals) -> None:
    process = spawn("run", *ENDLESS, "--json")
    wait_for_lines(Path("out/requests.jsonl"), 5, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    result = json.loads(out)
    assert result == json.loads(Path("out/run.json").read_text())
    assert result["interrupted"]
    requests = result["summary"]["requests"]
    assert requests["completed"] >= 5
    assert requests["completed"] + requests["failed"] + requests["cancelled"] == requests["sent"]
    assert requests["sent"] <= requests["planned"]


def test_a_killed_run_is_rebuilt(spawn: Spawn, cbbench: Callable[..., Outcome]) -> None:
    process = spawn("run", *ENDLESS)
    wait_for_lines(Path("out/requests.jsonl"), 20, process)
    process.kill()
    process.communicate(timeout=60)
    assert "summary" not in {key for key, value in json.loads(Path("out/run.json").read_text()).items() if value}
    outcome = cbbench("report", "out", "--json")
    assert outcome.code == 0
    result = json.loads(outcome.out)
    assert result["interrupted"]
    assert result["summary"]["requests"]["completed"] >= 20
    assert result["summary"]["latency"]["ttft_ms"]["p99"] > 0
    assert result == json.loads(Path("out/run.json").read_text())
    assert cbbench("report", "out").code == 0


def test_second_signal_breaks_off() -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
