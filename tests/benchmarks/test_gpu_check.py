"""benchmarks/gpu_check.py: its arithmetic, its supervisor, and (slow) all of its stages at toy sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import interpreter
from benchmarks.gpu import supervise as supervising
from benchmarks.gpu.decode import timings
from benchmarks.gpu.floor import decode_operators, floor_s
from benchmarks.gpu.runs import gaps
from benchmarks.gpu.setting import Setting, Stage
from benchmarks.gpu.supervise import supervise
from benchmarks.gpu.swap import crossover
from benchmarks.gpu.table import ok, table, targets
from engines.ledger import LEDGER
from engines.reference.model.config import SHAPES, ModelConfig

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
CPU = Setting("cpu", quick=True)


def test_the_floor_by_hand() -> None:
    """2 layers of width 4 with 2 heads (1 for KV) of 2, ffn 3, vocab 5; 3 rows at 10 positions, 2 bytes a number."""
    shape = ModelConfig(layers=2, d_model=4, heads=2, kv_heads=1, head_dim=2, ffn=3, vocab=5, max_position=99)
    operators = {one.name: one for one in decode_operators(shape, rows=3, context=10, item_bytes=2)}
    assert {name: (one.count, one.bytes, one.flops) for name, one in operators.items()} == {
        "embedding": (1, 3 * 4 * 2, 0),
        "qkv": (2, 4 * 8 * 2, 2 * 3 * 4 * 8),
        "attention": (2, 3 * 11 * 4 * 2, 3 * 10 * 16),  # K and V of 2 numbers each; QK and PV, 4 numbers wide each
        "o": (2, 4 * 4 * 2, 2 * 3 * 4 * 4),
        "gate_up": (2, 4 * 6 * 2, 2 * 3 * 4 * 6),
        "down": (2, 3 * 4 * 2, 2 * 3 * 3 * 4),
        "head": (1, 4 * 5 * 2, 2 * 3 * 4 * 5),
    }
    # At 8 B/s and 12 FLOP/s: 3; then twice max(8, 16), (33, 40), (4, 8), (6, 12), (3, 6); then max(5, 10) seconds.
    assert floor_s(list(operators.values()), bytes_per_s=8, flop_per_s=12) == pytest.approx(
        3 + 2 * (16 + 40 + 8 + 12 + 6) + 10
    )


def test_the_floor_of_a_small_batch_is_weights_and_kv() -> None:
    """Llama-3.1-8B at batch 1 without an embedding's matrix: 15 GB of weights, and 131,072 bytes a position."""
    shape = SHAPES["llama-3.1-8b"]
    operators = decode_operators(shape, rows=1, context=1023, item_bytes=2)
    moved = (shape.parameters - shape.vocab * shape.d_model) * 2 + 131_072 * 1024
    assert floor_s(operators, bytes_per_s=4e12, flop_per_s=8e14) == pytest.approx(moved / 4e12, rel=1e-3)


@pytest.mark.parametrize(
    ("points", "size"),
    [
        ([(1e8, 4.0), (1e10, 0.25)], 1e9),  # halfway between the logarithms
        ([(1e10, 0.25), (1e8, 4.0)], 1e9),
        ([(1e8, 2.0), (1e9, 1.0)], 1e9),
        ([(1e8, 0.5), (1e9, 0.1)], None),
        ([(1e8, 3.0), (1e9, 2.0)], None),
        ([], None),
    ],
)
def test_crossover(points: list[tuple[float, float]], size: float | None) -> None:
    found = crossover(points)
    assert found is None if size is None else found == pytest.approx(size)


def ledger(ends: list[int], busy: list[int]) -> np.ndarray:
    steps = np.zeros(len(ends), LEDGER)
    steps["end_ns"], steps["busy_ns"] = ends, busy
    return steps


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    steps = ledger([1_000_000, 3_000_000, 5_000_000, 8_000_000], [9, 1_900_000, 1_950_000, 2_000_000])
    found = timings(steps)
    assert (found["step_ms"], found["busy_ms"], found["steps"]) == (2.0, 1.95, 3)
    assert found["gap_us"] == 100.0  # of 100, 50 and 1,000
    assert found["device_busy"] == pytest.approx(5.85 / 7)
    assert gaps(steps)["gap_us"] == 100.0
    assert set(gaps(steps[:1]).values()) == {None}


def test_where_a_run_stands_still() -> None:
    steps = ledger([1_000, 3_000, 6_000, 11_000], [9, 1_500, 2_000, 5_000])
    steps["prefill_rows"] = [1, 0, 2, 0]
    found = gaps(steps)
    assert found["idle_before_prompts"] == pytest.approx(0.1)  # 1,000 of 10,000 ns
    assert found["idle_before_decodes"] == pytest.approx(0.05)
    assert found["prompt_steps"] == pytest.approx(0.3)
    assert set(gaps(steps[:1])) == set(found)


def report(device: str = "cuda", **rows: dict[str, Any]) -> dict[str, Any]:
    stages = {name: {"title": name, "status": "ok", "seconds": 1.0, "rows": cells} for name, cells in rows.items()}
    return {"device": device, "quick": False, "stages": stages}


CELL = {"step_ms": 2.0, "busy_ms": 1.9, "gap_us": 40.0, "device_busy": 0.95, "floor_ms": 1.8, "over_floor": 1.1}


def test_each_cell_has_its_target_and_the_gap_is_that_of_the_worst() -> None:
    made = report(
        decode={"big 64x512": CELL, "big 64x4096": CELL | {"over_floor": 1.4, "gap_us": 120.0}, "small 256x512": CELL},
        runs={"run continuous": {"device_busy": 0.98}},
        peer={"ratio": {"cbbench_over_transformers": 1.6}},
    )
    assert [(one["value"], one["met"]) for one in targets(made, "big")] == [
        (1.4, False), (None, None), (1.1, True), (None, None), (0.98, True), (1.6, True), (120.0, False),
    ]  # fmt: skip


def test_on_a_cpu_no_target_is_measured() -> None:
    made = report(device="cpu", runs={"run continuous": {"device_busy": 0.98}}, decode={"big 64x512": CELL})
    assert {(one["value"], one["met"]) for one in targets(made, "big")} == {(None, None)}


def test_the_table_names_what_was_wrong_and_what_was_skipped() -> None:
    made = report(
        kernels={"silu": {"ok": True}, "rope": {"ok": False}},
        decode={"big 64x512": CELL, "big 8x512": {"skipped": "no time left for it"}},
        ceilings={"bandwidth": {"per_s": 4.1e12}, "matmul": {"per_s": 7.8e14}},
    )
    made["targets"] = targets(made, "big")
    text = table(made)
    for words in ("1 of 2 right", "WRONG         kernels, rope", "big 8x512: no time", "4.1 TB/s", "met           big"):
        assert words in text
    assert not ok(made)
    made["stages"]["kernels"]["rows"]["rope"]["ok"] = True
    assert ok(made)
    made["stages"]["decode"]["status"] = "failed"
    assert not ok(made)


def test_a_check_in_which_no_core_stage_ran_is_not_ok() -> None:
    """As on a machine that lacks a package which each of them needs."""
    made = report(kernels={}, graphs={}, ceilings={}, decode={}, peer={})
    for name in ("kernels", "graphs", "ceilings", "decode"):
        assert ok(made)
        made["stages"][name]["status"] = "skipped"
    assert not ok(made)
    assert ok(report(peer={})), "none was asked for"


@pytest.mark.parametrize(
    ("triton", "numpy", "works"),
    [("3.6.0", "2.3.5", True), ("3.6.0", "2.5.2", False), ("3.7.0", "2.5.2", True), ("3.10.0+x", "2.10.1", True)],
)
def test_where_the_interpreter_works(triton: str, numpy: str, works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "version", {"triton": triton, "numpy": numpy}.__getitem__)
    assert (interpreter.why_not() == "") is works


def supervised(tmp_path: Path, *names: str, budget_s: float = 60.0, limit_s: float = 20.0) -> dict[str, Any]:
    stages = [Stage(name, name, limit_s, f"tests.benchmarks.stages:{name}") for name in names]
    made = supervise(stages, CPU, budget_s=budget_s, out=tmp_path / "a" / "out.json", tell=lambda line: None)
    assert json.loads((tmp_path / "a" / "out.json").read_text()) == made
    assert not list((tmp_path / "a").glob("*.tmp"))
    return made["stages"]


def test_one_stage_fails_and_the_next_runs_in_a_new_process(tmp_path: Path) -> None:
    stages = supervised(tmp_path, "first", "fine", "fails", "dies", "lacks_ours", "skips", "lacks_a_package")
    assert {name: one["status"] for name, one in stages.items()} == {
        "first": "ok", "fine": "ok", "fails": "failed", "dies": "failed", "lacks_ours": "failed", "skips": "skipped",
        "lacks_a_package": "skipped",
    }  # fmt: skip
    assert stages["fine"]["rows"]["before"] == {"number": 3.5}  # what an earlier stage found
    assert stages["fails"]["reason"].startswith("ValueError: two lines (stages.py:")
    assert stages["fails"]["rows"] == {"half": {"ok": True}}  # what it found before it failed
    assert stages["dies"]["reason"] == "its process died (exit code 9)"
    assert stages["skips"]["reason"] == "not on a Monday"
    assert stages["lacks_a_package"]["reason"] == "needs the Python package no_such_package_as_this"


def test_a_stage_that_hangs_is_ended_and_the_budget_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "GRACE_S", 0.1)
    monkeypatch.setattr(supervising, "LEAST_S", 0.2)
    stages = supervised(tmp_path, "hangs", "goes_on", "fine", budget_s=1.5, limit_s=0.3)
    assert (stages["hangs"]["status"], stages["hangs"]["rows"]) == ("failed", {"half": {}})
    assert stages["hangs"]["reason"].startswith("did not end within")
    assert stages["goes_on"]["status"] in ("stopped", "failed", "skipped")


def test_a_stage_stops_between_two_rows_when_its_time_is_over(tmp_path: Path) -> None:
    stages = supervised(tmp_path, "goes_on", "fine", limit_s=0.05)
    assert stages["goes_on"]["status"] == "stopped"
    assert stages["goes_on"]["reason"] == f"its time was over after {len(stages['goes_on']['rows'])} rows"
    assert stages["fine"]["status"] == "ok"


def test_what_the_budget_leaves_no_time_for_is_said(tmp_path: Path) -> None:
    stages = supervised(tmp_path, "fine", "first", budget_s=1.0)
    assert [one["status"] for one in stages.values()] == ["skipped", "skipped"]
    assert stages["fine"]["reason"] == "the budget of 1 s was spent"


def start(*arguments: object, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=SCRIPT.parent)


def test_an_unknown_stage_is_refused(tmp_path: Path) -> None:
    done = start("--stages", "decode,nothing", "--out", tmp_path / "out.json")
    assert done.returncode == 2
    assert "--stages: no such stage: nothing; there are ceilings, kernels" in done.stderr


@pytest.mark.slow  # torch is loaded
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(tmp_path: Path) -> None:
    done = start("--out", tmp_path / "out.json")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: --device cuda: ")
    assert line.endswith("; --device cpu --quick tries the script itself")


def checked(tmp_path: Path, *arguments: str, script: Path = SCRIPT) -> tuple[str, dict[str, Any]]:
    """What it printed, and its stages."""
    done = start("--device", "cpu", "--quick", "--out", tmp_path / "out.json", *arguments, script=script)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((tmp_path / "out.json").read_text())["stages"]


@pytest.mark.slow
def test_every_stage_runs_on_a_cpu_at_toy_sizes(tmp_path: Path) -> None:
    printed, stages = checked(tmp_path)
    for name, stage in stages.items():
        assert stage["status"] == "ok" or (name == "peer" and stage["status"] == "skipped"), (name, stage)
        assert stage["rows"] or stage["reason"]
    assert stages["runs"]["rows"]["run static"]["completed"] == 4
    assert "not measured" in printed


@pytest.mark.slow
def test_the_core_stages_run_on_a_bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch, Triton and NumPy alone: importing any of the other packages of cbbench fails."""
    for package in ("msgspec", "scipy", "httpx", "aiohttp", "typer", "rich", "gguf", "transformers", "tokenizers"):
        (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('blocked', name='{package}')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _, stages = checked(tmp_path, "--stages", "ceilings,kernels,graphs,decode,runs")
    assert {name: one["status"] for name, one in stages.items()} == {
        "ceilings": "ok", "kernels": "ok", "graphs": "ok", "decode": "ok", "runs": "skipped",
    }  # fmt: skip
    for name in ("kernels", "graphs"):
        assert all(row["ok"] for row in stages[name]["rows"].values())
    cells = stages["decode"]["rows"]
    assert len(cells) == 2
    assert all(cell["over_floor"] > 0.5 for cell in cells.values())


@pytest.mark.slow
def test_every_stage_of_variants_runs_on_a_cpu_at_toy_sizes(tmp_path: Path) -> None:
    _, stages = checked(
        tmp_path, "--stages", "ceilings,products,flashinfer", script=SCRIPT.with_name("gpu_variants.py")
    )
    assert (stages["products"]["status"], stages["flashinfer"]["status"] in ("ok", "skipped")) == ("ok", True)
