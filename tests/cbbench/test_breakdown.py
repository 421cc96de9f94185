"""Where the time went, as `cbbench report` shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbbench.conftest import Outcome

Call = Callable[..., Outcome]
SETTINGS = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b", "--workload", "bus-stop")


def test_report_shows_parts_and_the_worst_request(cbbench: Call) -> None:
    assert cbbench("run", *SETTINGS, "--max-num-seqs", 2, "-o", "out").code == 0
    parts = json.loads(Path("out/run.json").read_text())["summary"]["breakdown"]
    for metric in ("ttft", "e2el"):
        assert sum(part["share"] for part in parts[metric].values()) == pytest.approx(1)
    shown = cbbench("report", "out").out
    assert "blocked: slots" in shown
    assert "longest" in shown
    Path("out/requests.jsonl").unlink()
    shown = cbbench("report", "out").out
    assert "blocked: slots" in shown, "run.json has the means"
    assert "longest" not in shown
