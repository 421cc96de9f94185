"""cbbench run: the folder, stdout and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.telemetry import open_gpus
from tests.cbbench.conftest import TINY, Outcome

Call = Callable[..., Outcome]


def test_a_run_leaves_a_folder_and_says_where(cbbench: Call) -> None:
    outcome = cbbench("run", *TINY, "--num-requests", 6, "-o", "out")
    assert outcome.code == 0
    assert "results in out" in outcome.err
    result = json.loads(Path("out/run.json").read_text())
    assert result["summary"]["requests"] == {
        "planned": 6, "sent": 6, "completed": 6, "failed": 0, "cancelled": 0, "errors": {}, "messages": {},
    }  # fmt: skip
    assert result["engine"]["mode"] == "continuous"
    assert result["environment"]["cbbench"]
    assert len(Path("out/requests.jsonl").read_text().splitlines()) == 6


def test_default_folder_names_mode_and_workload(cbbench: Call) -> None:
    cbbench("run", *TINY, "--num-requests", 2, "--mode", "static")
    (folder,) = Path("runs").iterdir()
    assert "-static-" in folder.name


def test_json_is_all_of_stdout(cbbench: Call) -> None:
    outcome = cbbench("run", *TINY, "--num-requests", 4, "--json", "-o", "out")
    assert json.loads(outcome.out) == json.loads(Path("out/run.json").read_text())


def test_both_modes_ask_the_same(cbbench: Call) -> None:
    hashes = set()
    for mode in ("continuous", "static"):
        outcome = cbbench("run", *TINY, "--num-requests", 5, "--mode", mode, "--json", "-o", mode)
        hashes.add(json.loads(outcome.out)["workload"]["sha256"])
    assert len(hashes) == 1
    side_by_side = cbbench("compare", "static", "continuous")
    assert side_by_side.code == 0
    assert "continuous" in side_by_side.out


def test_a_trace_comes_at_its_own_pace(cbbench: Call) -> None:
    Path("trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,4,4\n0.1,4,4\n0.4,4,4\n")
    outcome = cbbench(*("run", *TINY, "--workload", "trace.csv", "--arrival", "trace", "--json", "-o", "out"))
    assert json.loads(outcome.out)["workload"]["pacing"]["rate_per_s"] == pytest.approx(5.0)
    rows = [json.loads(line) for line in Path("out/requests.jsonl").read_text().splitlines()]
    assert [row["scheduled"] / 1e9 for row in rows] == pytest.approx([0, 0.1, 0.4])


def test_a_trace_used_in_part_or_again_is_noted(cbbench: Call) -> None:
    Path("trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,4,4\n0.1,4,4\n0.4,4,4\n")
    outcome = cbbench(*("run", *TINY, "--workload", "trace.csv", "--num-requests", 5, "--json", "-o", "out"))
    notes = json.loads(outcome.out)["notes"]
    assert notes == [
        "trace.csv has arrival times, which are not used; `arrival trace` would use them",
        "trace.csv has 3 rows, repeated from the top to make 5 requests",
    ]
    assert [line for line in outcome.err.splitlines() if line.startswith("note")] == [f"note: {note}" for note in notes]
    cbbench("report", "out")
    assert json.loads(Path("out/run.json").read_text())["notes"] == notes


def test_bus_stop_shows_its_slots(cbbench: Call) -> None:
    outcome = cbbench("run", "--model", "tiny", "--device", "cpu", "--workload", "bus-stop", "--mode", "static")
    assert outcome.code == 0
    assert "slot" in outcome.out.lower()


@pytest.mark.parametrize(
    ("sla", "code"), [("p99_ttft_ms<=0.000001", 3), ("p99_ttft_ms<=1000000", 5), ("output_token_per_s>=0.001", 0)]
)
def test_sla_sets_the_exit_code(cbbench: Call, sla: str, code: int) -> None:
    """Too few requests to prove a P99, enough to disprove it."""
    assert cbbench("run", *TINY, "--num-requests", 20, "--sla", sla, "-o", "out").code == code


def test_nothing_succeeded_is_an_invalid_load(cbbench: Call) -> None:
    Path("long.csv").write_text("prompt_tokens,output_tokens\n90,90\n90,90\n")
    outcome = cbbench(
        "run", "--model", "tiny", "--device", "cpu", "--workload", "long.csv", "--misfit", "reject",
        "--max-model-len", 100, "-o", "out",
    )  # fmt: skip
    assert outcome.code == 7


def test_a_used_folder_is_refused(cbbench: Call) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").write_text("precious")
    outcome = cbbench("run", *TINY, "-o", "out")
    assert outcome.code == 2
    assert "out" in outcome.error_line
    assert [path.name for path in Path("out").iterdir()] == ["mine.txt"]


@pytest.mark.skipif(bool(open_gpus()), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_cannot_be_watched(cbbench: Call) -> None:
    outcome = cbbench("run", *TINY, "--gpu-telemetry", "-o", "a")
    assert outcome.code == 2
    assert outcome.error_line.startswith("error: --gpu-telemetry: no NVIDIA GPU can be asked here")
