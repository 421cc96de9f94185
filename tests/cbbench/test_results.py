"""cbbench report on result files of other tools, and a run as vLLM's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbbench.conftest import Outcome

Call = Callable[..., Outcome]
DATA = Path(__file__).parents[1] / "reports/data"
RUN = ("run", "--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b", "--num-requests", 12,
       "--rate", 50, "--workload", "prompt=uniform(64,256);output=uniform(8,32)", "-o", "run")  # fmt: skip


def test_a_result_is_shown_with_what_it_lacks(cbbench: Call) -> None:
    outcome = cbbench("report", DATA / "guidellm-0.8.1-failures.json")
    assert outcome.code == 0
    words = " ".join(outcome.out.split())
    assert "1: 2 at once" in words
    assert "2: 4 at once" in words
    assert "taken as TPOT" in words
    (run,) = [json.loads(cbbench("report", DATA / "aiperf-0.13.0", "--json").out)]
    assert run["summary"]["requests"]["completed"] == 10


def test_a_result_with_single_requests_becomes_a_page(cbbench: Call) -> None:
    outcome = cbbench("report", DATA / "aiperf-0.13.0", "--format", "md")
    assert outcome.code == 0
    assert "| Completed | 10 of 10 |" in outcome.out
    assert "taken as TPOT" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((DATA / "guidellm-0.8.1-failures.json", "--format", "html"), "2 results in one file"),
        ((DATA / "aiperf-0.13.0-summary.json", "--format", "html"), "aiperf-0.13.0-summary.json"),
        ((DATA / "aiperf-0.13.0", "--timeline"), "--timeline"),
        ((DATA / "README.md",), "not a result of vLLM, SGLang, guidellm or aiperf"),
        ((DATA / "aiperf-0.13.0", DATA / "guidellm-0.8.1.json", "--format", "vllm-json"), "one run"),
    ],
)
def test_what_cannot_be_shown(cbbench: Call, arguments: tuple[object, ...], said: str) -> None:
    outcome = cbbench("report", *arguments)
    assert outcome.code == 2
    assert said in outcome.error_line


def test_a_run_as_vllms_json_compares_with_itself(cbbench: Call) -> None:
    assert cbbench(*RUN).code == 0
    outcome = cbbench("report", "run", "--format", "vllm-json")
    flat = json.loads(outcome.out)
    run = json.loads(Path("run/run.json").read_text())
    assert (flat["completed"], flat["request_rate"], flat["burstiness"]) == (12, 50, 1)
    assert flat["p99_tpot_ms"] == run["summary"]["latency"]["tpot_ms"]["p99"]
    assert cbbench("report", "run", "--format", "vllm-json", "-o", "flat.json").code == 0
    assert Path("flat.json").read_text() == outcome.out
    compared = cbbench("gate", "flat.json", "--baseline", "run", "--json")
    checks = {one["metric"]: one for one in json.loads(compared.out)["checks"]}
    assert compared.code == 0, "the same work, by its hash"
    assert checks["mean_tpot_ms"]["change"] == pytest.approx(0, abs=1e-6)
    assert checks["output_token_per_s"]["change"] == pytest.approx(0, abs=1e-6)
