"""What the commands print in a narrow terminal: readable to the last digit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from reports.render.formatting import number
from tests.cbbench.conftest import Outcome

Call = Callable[..., Outcome]
WORK = (
    "--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b", "--rate", 40, "--num-requests", 300,
    "--workload", "prompt=lognormal(median=300,sigma=1,max=4000);output=uniform(4,100)",
)  # fmt: skip
SLAS = ("--sla", "p99_ttft_ms<=20000", "--sla", "p99_tpot_ms<=1")
WIDTHS = (40, pytest.param(60, marks=pytest.mark.slow), 80)


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def readable(outcome: Outcome, width: int, *numbers: float | None) -> None:
    """Nothing is cut, nothing runs over, and these numbers are there as a whole."""
    assert "…" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= width
    words = set(re.split(r"[\s│]+", outcome.out))
    for one in numbers:
        assert number(one) in words, number(one)


def latencies(folder: str, *stats: str) -> list[float]:
    found = json.loads(Path(folder, "run.json").read_text())["summary"]["latency"]
    return [found[name][stat] for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms") for stat in stats]


def test_run_and_report(cbbench: Call, width: int) -> None:
    outcome = cbbench("run", *WORK, *SLAS, "--max-num-seqs", 8, "-o", "one")
    asked = latencies("one", "mean", "p50", "p90", "p99")
    readable(outcome, width, *asked)
    readable(cbbench("report", "one"), width, *asked)
    readable(cbbench("report", "one", "--percentiles", "50,75,90,95,99,99.9"), width, *latencies("one", "p95", "p999"))


def test_instances(cbbench: Call, width: int) -> None:
    readable(cbbench("run", *WORK, "--disaggregate", "--max-num-seqs", 8, "-o", "two"), width)


def test_sweep(cbbench: Call, width: int) -> None:
    grid = ("sweep", "max-num-seqs,max-num-batched-tokens", "--values", "8,256", "--values", "256,16384")
    outcome = cbbench(*grid, *WORK, *SLAS, "-o", "swept")
    points = json.loads(Path("swept/sweep.json").read_text())["points"]
    names = ("output_token_per_s", "p99_ttft_ms", "p99_tpot_ms")
    readable(outcome, width, *(point[name] for point in points for name in names))
    readable(cbbench("report", "swept"), width)


def test_compare_and_gate(cbbench: Call, width: int) -> None:
    for slots in (4, 64):
        cbbench("run", *WORK, "--max-num-seqs", slots, "-o", f"slots-{slots}")
    both = [value for slots in (4, 64) for value in latencies(f"slots-{slots}", "p99")]
    readable(cbbench("compare", "slots-4", "slots-64"), width, *both)
    ttft = json.loads(Path("slots-64/run.json").read_text())["summary"]["latency"]["ttft_sched_ms"]["p99"]
    readable(cbbench("gate", "slots-64", *SLAS), width, ttft)
    readable(cbbench("gate", "slots-64", "--baseline", "slots-4", "--budget", "tpot=3%", *SLAS), width, ttft)


def test_tune(cbbench: Call, width: int) -> None:
    outcome = cbbench("tune", *WORK, "--sla", "p99_tpot_ms<=1", "--most-runs", 4, "--proof-requests", 0, "-o", "tuned")
    trials = json.loads(Path("tuned/tune.json").read_text())["stages"][0]["trials"]
    readable(outcome, width, *(one["point"]["p99_ttft_ms"] for one in trials))


def test_tenants(cbbench: Call, width: int) -> None:
    mix = (
        "a-rather-long-name:weight=3,workload=(prompt=fixed(64);output=fixed(16));"
        "b:workload=(prompt=fixed(512);output=fixed(64))"
    )
    simulated = [*WORK[:10], "--tenants", mix]
    readable(cbbench("run", *simulated, "-o", "mix"), width)
    readable(cbbench("sweep", "max-num-seqs", "--values", "4,64", *simulated, "-o", "mixes"), width)
    readable(cbbench("compare", "mixes/max-num-seqs-4", "mixes/max-num-seqs-64"), width)
