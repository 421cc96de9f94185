"""Other ways beside the shipped one: which is called the best, and what never is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import interpreter
from benchmarks.gpu.replays import Replays, Timing
from benchmarks.gpu.setting import Setting, Task
from benchmarks.gpu.variants import choice, products, tuning
from benchmarks.gpu.variants.choice import Trial, compared, over_all
from benchmarks.gpu.variants.report import variants_table, ways_table
from benchmarks.gpu.variants.trials import Way, error_of, tried

TASK = Task(Setting("cpu", quick=True))


def test_the_fastest_right_way_is_the_best() -> None:
    found = compared((100.0, 102.0), [Trial("a", 90.0, 0.001), Trial("b", 80.0, 0.009), Trial("c", 95.0, 0.0)])
    assert (found["best"], found["best_us"], found["gain"]) == ("b", 80.0, 0.25)
    assert found["tried"] == {"a": 90.0, "b": 80.0, "c": 95.0}


@pytest.mark.parametrize("error", [0.02, 1.0, None])
def test_a_wrong_way_is_reported_and_never_the_best(error: float | None) -> None:
    found = compared((100.0, 101.0), [Trial("wrong", 10.0, error), Trial("right", 90.0, 0.001)])
    assert found["best"] == "right"
    assert found["wrong"] == {"wrong": error}
    assert found["tried"] == {"right": 90.0}
    assert compared((100.0, 101.0), [Trial("wrong", 10.0, error)])["best"] == "shipped"


def test_what_is_not_beyond_the_noise_is_no_gain() -> None:
    found = compared((110.0, 100.0), [Trial("a", 92.0, 0.0)])  # 1.087 times, and 1.1 are noise
    assert (found["best"], found["gain"], found["us"]) == ("shipped", 0.0, 100.0)
    assert compared((110.0, 100.0), [Trial("a", 90.0, 0.0)])["best"] == "a"
    slower = compared((100.0, 100.0), [Trial("a", 120.0, 0.0), Trial("b", problem="no room")])
    assert (slower["best"], slower["gain"], slower["failed"]) == ("shipped", 0.0, {"b": "no room"})


def cell(us: float, noise: float = 0.01, **tried_us: float) -> dict[str, Any]:
    return {"us": us, "noise": noise, "tried": tried_us}


def test_the_best_of_all_cells_is_right_in_each_of_them() -> None:
    cells = [cell(100, a=50, b=90, c=80), cell(200, b=160, c=210)]  # a is wrong in the second; 1.18 of b, 1.09 of c
    assert over_all(cells)["best"] == "b"
    assert over_all(cells)["gain"] == pytest.approx((100 / 90 * 200 / 160) ** 0.5 - 1)
    assert over_all([cell(100, a=99), cell(100, noise=0.02, a=99)]) == {"best": "shipped", "gain": 0.0, "cells": 2}
    assert over_all([cell(100, a=120)])["best"] == "shipped"
    assert over_all([]) == {"best": "shipped", "gain": 0.0, "cells": 0}


def way(factor: float, calls: list[float]) -> Way:
    def result() -> torch.Tensor:
        return factor * torch.arange(1.0, 9.0)

    return Way(result, [lambda: calls.append(factor)])


def fails() -> Way:
    raise MemoryError("no\nroom")


def test_ways_are_compared_with_the_shipped_result(monkeypatch: pytest.MonkeyPatch) -> None:
    times_us = iter([10.0, 5.0, 4.0, 6.0, 10.1])
    replays = Replays(torch.device("cpu"))
    monkeypatch.setattr(replays, "timed", lambda work: (work(), Timing(next(times_us), None))[1])
    calls: list[float] = []
    others = {"fails": fails} | {f"times {n}": partial(way, n, calls) for n in (1.0, 1.2, float("nan"))}
    found = tried(TASK, replays, way(1.0, calls), others, passes=1)
    assert (found["best"], found["gain"]) == ("times 1.0", 1.0)
    assert found["wrong"] == {"times 1.2": pytest.approx(0.2), "times nan": None}
    assert found["failed"] == {"fails": "MemoryError: no room"}
    assert (len(calls), found["not_tried"]) == (5, 0)  # the shipped way twice


def test_when_the_time_is_over_the_rest_is_left_out_and_said() -> None:
    left_s = iter([10.0, 0.5])
    task = Task(Setting("cuda", quick=False), left_s=lambda: next(left_s))
    found = tried(task, Replays(torch.device("cpu")), way(1.0, []), {name: partial(way, 1.0, []) for name in "abc"}, 1)
    assert (list(found["tried"]), found["not_tried"]) == (["a"], 2)


def test_results_of_zeros_or_of_another_shape_are_wrong() -> None:
    expected = torch.full((4, 4), 1e-3)  # a sum of absolute and relative error would let zeros pass
    assert error_of(torch.zeros(4, 4), expected) == pytest.approx(1.0)
    assert error_of(torch.zeros(4), expected) is None
    assert error_of(expected + float("nan"), expected) is None
    assert choice.LARGEST_ERROR < 0.05


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 8, 64, 256])
def test_every_way_to_ask_for_a_product_gives_it(rows: int) -> None:
    x, weights = torch.randn(rows, 32), [torch.randn(48, 32) for _ in range(2)]
    others = products._others(x, weights)
    padded = {1: ["16 rows", "64 rows"], 8: ["16 rows", "64 rows", "128 rows"], 64: ["128 rows"], 256: []}[rows]
    assert sorted(others) == sorted(["weight first", "columns", *padded])
    for name, make in others.items():
        made = make()
        assert error_of(made.result(), x @ weights[0].t()) < 1e-5, name
        assert len(made.works) == 2


def test_a_product_beside_its_floor() -> None:
    """tiny's `down`: 64 x 128 weights of 2 bytes, 16,384 FLOPs a row."""
    ceilings = {"ceilings": {"bandwidth": {"per_s": 16_384e6}, "matmul": {"per_s": 32_768e6}}}
    task = Task(Setting("cpu", quick=True), ceilings)
    one, four = (products._against_floor(task, "down", rows, us=4.0) for rows in (1, 4))
    assert (one["floor_us"], one["over_floor"], one["bytes_per_s"]) == (1.0, 4.0, 16_384e6 / 4)
    assert (four["floor_us"], four["over_floor"]) == (2.0, 2.0)
    assert products._against_floor(TASK, "down", 1, us=4.0)["over_floor"] is None


def test_the_table_shows_gains_and_what_went_wrong() -> None:
    faster = compared((100.0, 101.0), [Trial("a", 80.0, 0.0), Trial("b", 10.0, 0.3), Trial("c", problem="no room")])
    rows = {
        "silu 64 rows": compared((10.0, 10.1), [Trial("d", 9.0, 0.0)]) | {"not_tried": 2},
        "decode attention 64x512": faster,
        "add norm 64 rows": compared((10.0, 10.1), [Trial("d", 10.0, 0.0)]),
        "decode attention": over_all([faster]),
        "prefill attention": {"skipped": "no time left for it"},
    }
    assert list(ways_table(rows)) == [
        "faster        decode attention 64x512, a: 100.0 to 80.0 µs, 25.0% (noise 1.0%)",
        "faster        silu 64 rows, d: 10.0 to 9.0 µs, 11.1% (noise 1.0%)",
        "not tried     silu 64 rows: 2 ways, its time was over",
        "wrong way     decode attention 64x512, b: off by 0.3",
        "failed way    decode attention 64x512, c: no room",
    ]
    report = {"stages": {"tuning": {"rows": rows}}}
    assert variants_table(report)[1] == "faster        decode attention in all cells, a: 25.0%"
    rows["decode attention"] = over_all([])
    assert variants_table(report) == ["", *ways_table(rows)]
    assert variants_table({"stages": {}}) == []


@pytest.mark.slow
def test_what_is_tried_fits_a_multiprocessor_without_spilling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")
    from engines.reference.kernels import triton_decode, triton_prefill
    from tests.engines.kernels.aot import compiled, recorded

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    q, kv = torch.zeros(8, 32, 128, dtype=torch.bfloat16), torch.zeros(2, 2, 8, 16, 128, dtype=torch.bfloat16)
    tables, lengths = torch.zeros(8, 16, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    splits = triton_decode.DecodeSplits(8, 32, 32, 128, torch.device("cpu"))
    for setting in tuning.DECODE:
        made = triton_decode.Tuning(*setting)
        launch = partial(triton_decode.decode_attention, q, kv, tables, lengths, splits, tuning=made)
        built = compiled(recorded(triton_decode, "_attend", launch), 90, tmp_path)
        side_by_side = min(228 * 1024 // (built.shared_bytes + 1024), 65_536 // (built.registers * built.threads))
        assert (built.stack_bytes, made.programs_per_sm <= side_by_side) == (0, made.programs_per_sm < 12), setting
    for setting in tuning.PREFILL:
        tiling = triton_prefill.Tiling(*setting)
        starts = torch.zeros(9, dtype=torch.int32)
        launch = partial(triton_prefill.prefill_attention, q, kv, tables, lengths, starts, tiling=tiling)
        assert compiled(recorded(triton_prefill, "_attend_chunks", launch), 90, tmp_path).stack_bytes == 0, setting


def test_every_product_is_tried_in_every_way() -> None:
    rows = dict(products.run(TASK))
    assert len(rows) == 5 * len(TASK.setting.product_rows)
    for name, one in rows.items():
        assert not one["wrong"], (name, one)
        assert not one["failed"], (name, one)
        assert len(one["tried"]) == 4
        assert one["us"] > 0


@pytest.mark.slow
def test_every_setting_of_every_kernel_is_right(tmp_path: Path) -> None:
    """Interpreted, in a process that has not loaded triton yet."""
    pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")
    if problem := interpreter.why_not():
        pytest.skip(problem)
    out = tmp_path / "out.json"
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_variants.py"
    command = [sys.executable, str(script), "--device", "cpu", "--quick", "--stages", "tuning", "--out", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    stage = json.loads(out.read_text())["stages"]["tuning"]
    assert (done.returncode, stage["status"]) == (0, "ok"), stage
    rows = stage["rows"]
    number = {"decode attention 2x20": len(tuning.DECODE), "prefill attention": len(tuning.PREFILL), "silu 2 rows": 6}
    for name, one in rows.items():
        if "tried" in one:
            assert (one["wrong"], one["failed"], one["not_tried"]) == ({}, {}, 0), name
            assert len(one["tried"]) == number.get(name, len(one["tried"]))
    assert rows["decode attention"]["cells"] == 1
