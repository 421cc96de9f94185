"""cbbench sweep: points on one plan, resuming, the recommendation and the exit code."""

from __future__ import annotations

import json
import pkgutil
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbbench.experiment.campaign import claimed
from cbbench.experiment.engine_factories.reference import ReferenceFactory
from tests.cbbench.conftest import TINY, Outcome
from tests.cbbench.test_interrupt import wait_for_lines

Call = Callable[..., Outcome]
SWEEP = ("sweep", "max-num-seqs", *TINY, "--num-requests", 8, "-o", "out")


def state() -> Any:
    return json.loads(Path("out/sweep.json").read_text())


def test_points_share_the_plan_and_differ_in_text(cbbench: Call) -> None:
    outcome = cbbench(*SWEEP, "--values", "1,4", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out) == state()
    assert [point["values"] for point in state()["points"]] == [[1], [4]]
    runs = [json.loads(Path("out", point["folder"], "run.json").read_text()) for point in state()["points"]]
    assert {run["workload"]["sha256"] for run in runs} == {state()["workload_sha256"]}
    assert runs[0]["workload"]["prompt_seed"] != runs[1]["workload"]["prompt_seed"]
    assert state()["recommendation"]["values"] in ([1], [4])


def test_slots_that_cannot_be_used_are_said_to_change_nothing(cbbench: Call) -> None:
    said = "requests are in flight, so max_num_seqs above that"
    assert f"At most 8 {said} (16) changes nothing" in " ".join(cbbench(*SWEEP, "--values", "2,16").out.split())
    assert said not in " ".join(cbbench(*SWEEP[:-1], "fewer", "--values", "2,8").out.split())


@pytest.mark.parametrize(
    ("param", "values"),
    [("max-num-batched-tokens", "64,128"), ("kv-blocks", "8,32"), ("concurrency", "1,2"), ("rate", "200,400.5"),
     ("mode", "static,continuous")],
)  # fmt: skip
def test_other_parameters(cbbench: Call, param: str, values: str) -> None:
    outcome = cbbench("sweep", param, "--values", values, *TINY, "--num-requests", 4, "-o", "out")
    assert outcome.code == 0, outcome.err
    assert len(state()["points"]) == 2
    assert param in outcome.out


def test_finished_points_are_kept_and_new_ones_added(cbbench: Call) -> None:
    cbbench(*SWEEP, "--values", "1,4")
    before = Path("out/max-num-seqs-4/requests.jsonl").read_bytes()
    outcome = cbbench(*SWEEP, "--values", "1,2", "--sla", "p99_ttft_ms<=1000000")
    assert outcome.code == 0
    assert outcome.err.count("already there") == 2
    assert [point["values"] for point in state()["points"]] == [[1], [2], [4]]
    assert all(point["sla"] for point in state()["points"]), "old points are judged by the new SLA"
    assert Path("out/max-num-seqs-4/requests.jsonl").read_bytes() == before


def test_a_run_that_is_not_there_any_more_is_measured_again(cbbench: Call) -> None:
    cbbench(*SWEEP, "--values", "1,4")
    shutil.rmtree("out/max-num-seqs-4")
    outcome = cbbench(*SWEEP, "--values", "1,4")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("already there") == 1
    assert Path("out/max-num-seqs-4/run.json").exists()


def test_what_is_not_a_run_is_not_deleted_for_one(cbbench: Call) -> None:
    cbbench(*SWEEP, "--values", "1")
    notes = Path("out/max-num-seqs-4/notes.txt")
    notes.parent.mkdir()
    notes.write_text("mine")
    outcome = cbbench(*SWEEP, "--values", "1,4")
    assert outcome.code == 2
    assert "notes.txt" in outcome.error_line
    assert notes.read_text() == "mine"
    notes.rename("notes.txt")
    assert cbbench(*SWEEP, "--values", "1,4").code == 0


def test_two_sweeps_do_not_write_into_one_folder(cbbench: Call) -> None:
    cbbench(*SWEEP, "--values", "1")
    before = state()
    with claimed(Path("out")):
        outcome = cbbench(*SWEEP, "--values", "1,4")
    assert outcome.code == 2
    assert "another sweep runs in out" in outcome.error_line
    assert state() == before
    assert cbbench(*SWEEP, "--values", "1,4").code == 0


@pytest.mark.parametrize("change", [("--max-num-batched-tokens", 64), ("--seed", 1)])
def test_other_settings_in_the_same_folder_are_refused(cbbench: Call, change: tuple[object, ...]) -> None:
    cbbench(*SWEEP, "--values", "1")
    before = state()
    outcome = cbbench(*SWEEP, *change, "--values", "1,2")
    assert outcome.code == 2
    assert "other settings" in outcome.error_line
    assert state() == before


@pytest.mark.slow
def test_ctrl_c_then_resume(spawn: Callable[..., subprocess.Popen[str]], cbbench: Call) -> None:
    long = ("sweep", "max-num-seqs", *TINY, "--num-requests", 100, "-o", "out", "--values", "8,1")
    process = spawn(*long)
    wait_for_lines(Path("out/max-num-seqs-1/requests.jsonl"), 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert [point["values"] for point in state()["points"]] == [[8]]
    first = Path("out/max-num-seqs-8/requests.jsonl").read_bytes()
    assert cbbench(*long).code == 0
    assert [point["values"] for point in state()["points"]] == [[8], [1]]
    assert Path("out/max-num-seqs-8/requests.jsonl").read_bytes() == first
    assert len(Path("out/max-num-seqs-1/requests.jsonl").read_text().splitlines()) == 100


def test_no_point_meets_the_sla(cbbench: Call) -> None:
    outcome = cbbench(*SWEEP, "--values", "1,4", "--sla", "p99_ttft_ms<=0.000001")
    assert outcome.code == 3
    assert state()["recommendation"]["values"] is None


def test_a_value_that_cannot_run_does_not_stop_the_others(cbbench: Call) -> None:
    outcome = cbbench("sweep", "kv-blocks", "--values", "1,32", *TINY, "--num-requests", 4, "-o", "out")
    assert outcome.code == 0
    assert [bool(point["error"]) for point in state()["points"]] == [True, False]
    assert cbbench("sweep", "kv-blocks", "--values", "1", *TINY, "--num-requests", 4, "-o", "none").code == 2


def test_report_shows_a_sweep_again(cbbench: Call) -> None:
    cbbench(*SWEEP, "--values", "1,4")
    assert "max-num-seqs" in cbbench("report", "out").out
    assert json.loads(cbbench("report", "out", "--json").out) == state()


def test_the_swept_setting_is_no_flag(cbbench: Call) -> None:
    outcome = cbbench(*SWEEP, "--values", "1,4", "--max-num-seqs", 3)
    assert outcome.code == 2
    assert "--max-num-seqs" in outcome.error_line


def test_a_folder_of_something_else_is_refused(cbbench: Call) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").write_text("precious")
    outcome = cbbench(*SWEEP, "--values", "1,4")
    assert outcome.code == 2
    assert "holds no sweep" in outcome.error_line


@pytest.mark.parametrize("what", [("max-num-seqs", "1,2,3,4"), ("num-requests", "3,4,5,6")])
def test_a_plan_is_built_once_a_point_and_a_file_read_and_tokenised_once(
    cbbench: Call, monkeypatch: pytest.MonkeyPatch, what: tuple[str, str]
) -> None:
    """Where the points ask the same, once for all."""
    counts: Counter[str] = Counter()

    def counted(target: str) -> None:
        real = pkgutil.resolve_name(target)

        def call(*given: Any, **named: Any) -> Any:
            counts[target.rpartition(".")[2]] += 1
            return real(*given, **named)

        monkeypatch.setattr(target, call)

    for target in ("workloads.spec.Workload.plan", "workloads.spec.read_workload_file"):
        counted(target)
    words = ("one", "two words", "three more words")
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": one, "output_tokens": 3}) + "\n" for one in words))
    seen: Counter[Any] = Counter()
    real_encode = ReferenceFactory.encode

    def encode(self: ReferenceFactory) -> Any:
        tokenise = real_encode(self)
        assert tokenise is not None
        return lambda content: seen.update([str(content)]) or tokenise(content)

    monkeypatch.setattr(ReferenceFactory, "encode", encode)
    tiny = ("--model", "tiny", "--device", "cpu", "--workload", "prompts.jsonl")
    outcome = cbbench("sweep", what[0], "--values", what[1], *tiny, "-o", "out")
    assert outcome.code == 0, outcome.err
    assert len(state()["points"]) == 4
    assert counts == {"plan": 1 if what[0] == "max-num-seqs" else 4, "read_workload_file": 1}
    assert seen == {one: 1 for one in words}
