"""What people have from the release before: folders, cbbench.toml and flags. old/ was written by its code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cbbench.settings.build import build_settings
from cbbench.settings.sources import gather
from tests.cbbench.conftest import Outcome

Call = Callable[..., Outcome]
OLD = Path(__file__).parent / "old"
RUNS = ("continuous", "static", "simulated", "openai")
SWEEP = (
    "sweep", "max-num-seqs", "--values", "2,4", "--model", "tiny", "--device", "cpu", "--dtype", "fp32",
    "--workload", "prompt=uniform(4,24);output=uniform(4,12)", "--num-requests", 6, "--sla", "p99_ttft_ms<=60000",
)  # fmt: skip


@pytest.fixture
def old(own_folder: Path) -> Path:
    return Path(shutil.copytree(OLD, own_folder / "old"))


@pytest.mark.parametrize("name", [*RUNS, "sweep", "tune"])
def test_report(cbbench: Call, old: Path, name: str) -> None:
    outcome = cbbench("report", old / name)
    assert (outcome.code, outcome.err) == (0, "")
    assert len(outcome.out.splitlines()) > 5
    assert cbbench("report", old / name, "--json").code == 0


def test_report_as_a_file(cbbench: Call, old: Path) -> None:
    for name in (*RUNS, "sweep"):
        assert cbbench("report", old / name, "--format", "md,csv", "-o", f"report-{name}").code == 0


def test_compare(cbbench: Call, old: Path) -> None:
    outcome = cbbench("compare", old / "continuous", old / "static")
    assert outcome.code == 0, outcome.err
    assert {"continuous", "static"} <= set(outcome.out.split())
    assert cbbench("compare", *(old / name for name in RUNS)).code == 0


def test_gate(cbbench: Call, old: Path) -> None:
    judged = cbbench("gate", old / "continuous")
    assert judged.code in (0, 5), judged.err  # 5: six requests do not prove a percentile
    assert "p99_ttft_ms" in judged.out
    assert cbbench("gate", old / "simulated", "--baseline", old / "simulated").code in (0, 5)


@pytest.mark.parametrize("limit", ["rows", "max-num-seqs"])
def test_a_sweep_resumes_without_measuring_again(cbbench: Call, old: Path, limit: str) -> None:
    points = sorted((old / "sweep").glob("max-num-seqs-*"))
    before = {point: (point / "requests.jsonl").read_bytes() for point in points}
    outcome = cbbench(*SWEEP, "--quota", f"default:{limit}=2", "-o", old / "sweep")
    assert outcome.code in (0, 5), outcome.err
    assert outcome.err.count("already there") == len(points) == 2
    assert before == {point: (point / "requests.jsonl").read_bytes() for point in points}
    assert ("note: quota: rows is now called max-num-seqs" in outcome.err) == (limit == "rows")


def test_a_toml_file(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = build_settings(gather("run", {"config": [old / "cbbench.toml"]}))
    assert (settings.engine.step_time_model, settings.workload.num_requests) == ("step_times", 8)
    assert [one.limits.max_num_seqs for one in settings.scheduler.quota] == [2]
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 2
    assert "law is now called step-time-model" in notes[0]
    assert "rows is now called max-num-seqs" in notes[1]
    assert build_settings(gather("sweep", {"config": [old / "cbbench.toml"]})).workload.num_requests == 10


def test_a_toml_file_that_tune_wrote(old: Path) -> None:
    settings = build_settings(gather("run", {"config": [old / "tune" / "cbbench.toml"]}))
    assert (settings.engine_kind, settings.load.rate, settings.scheduler.max_num_batched_tokens) == (
        "simulated",
        4,
        8192,
    )


def test_the_flag_of_old(cbbench: Call) -> None:
    outcome = cbbench("run", "--engine", "simulated", "--law", "nowhere")
    assert outcome.code == 2
    assert "note: law is now called step-time-model; the old name is read until the next release" in outcome.err
    assert "nowhere" in outcome.error_line
    assert "--law" not in cbbench("run", "--help").out
