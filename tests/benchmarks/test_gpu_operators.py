"""A decode step taken apart: nothing is left out, nothing is there twice, and the sums are right."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import driving, mixed, operators
from benchmarks.gpu.diagnosis import operators_headline, operators_table
from benchmarks.gpu.floor import decode_operators, floor_s
from benchmarks.gpu.parts import DecodeStep
from benchmarks.gpu.replays import Replays, Timing
from benchmarks.gpu.setting import Setting, Task
from benchmarks.gpu.table import DECODE_OVER_FLOOR
from benchmarks.gpu_check import STAGES
from benchmarks.gpu_variants import STAGES as VARIANTS
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.model.linear import Linear

ROWS, CONTEXT = 3, 40
CEILINGS = {"ceilings": {"bandwidth": {"per_s": 2e9}, "matmul": {"per_s": 5e9}}}


class Counting(TorchKernels):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.prepare = self._counted("prepare", self.prepare)
        for name in ("kv_index", "rms_norm", "project_and_norm", "rope_and_write", "silu_mul", "sample"):
            setattr(self, name, self._counted(name, getattr(self, name)))

    def _counted(self, name: str, call: Any) -> Any:
        def count(*args: Any) -> Any:
            self.calls[name] += 1
            return call(*args)

        return count


def step_of(kernels: TorchKernels, rows: int = ROWS, context: int = CONTEXT) -> DecodeStep:
    model = driving.build("tiny", "cpu", "fp32")
    pool = driving.filled_pool(model, driving.blocks_for(rows, context + 1))
    return DecodeStep(model.llama, pool, kernels, rows=rows, context=context)


@torch.inference_mode()
def test_the_parts_do_what_the_step_does_and_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Counting()
    step = step_of(kernels)
    products = kernels.calls
    call = Linear.__call__

    def counted(self: Linear, *args: Any, **more: Any) -> Any:
        products[f"product {tuple(self.weight.shape)}"] += 1
        return call(self, *args, **more)

    monkeypatch.setattr(Linear, "__call__", counted)
    step.whole()
    whole = Counter(kernels.calls)
    made = step.parts()
    kernels.calls.clear()
    for part in made:
        for work in part.works:
            work()
    assert kernels.calls == whole
    assert whole["project_and_norm"] == 3  # 2 a layer but for the last, whose norm is the head's


def test_the_step_is_one_of_the_engine() -> None:
    """Its tokens are those that the executor gives for the same pool, table and fed tokens."""
    model = driving.build("tiny", "cpu", "fp32")
    pool = driving.filled_pool(model, driving.blocks_for(ROWS, CONTEXT + 3))
    before = pool.layers.clone()
    decoded = driving.decode(model, pool, rows=ROWS, context=CONTEXT, steps=1)
    pool.layers.copy_(before)
    step = DecodeStep(model.llama, pool, TorchKernels(), rows=ROWS, context=CONTEXT)
    step._last_token.zero_()  # what the prompts that were skipped have "sampled"
    with torch.inference_mode():
        step.whole()
    assert step._sampled.tolist() == [one[0] for one in decoded.outputs]


@torch.inference_mode()
def test_every_operator_of_the_floor_is_a_part_as_often_as_it_counts() -> None:
    parts = {part.name: part for part in step_of(TorchKernels()).parts()}
    for one in decode_operators(driving.build("tiny", "cpu").llama.config, rows=ROWS, context=CONTEXT, item_bytes=4):
        assert len(parts[one.name].works) == one.count, one.name


def stage() -> dict[str, dict[str, Any]]:
    return dict(operators.run(Task(Setting("cpu", quick=True), CEILINGS)))


def test_the_floors_of_the_parts_sum_to_the_floor_of_the_step() -> None:
    rows = stage()
    config = driving.build("tiny", "cpu").llama.config
    for batch, context in Setting("cpu", quick=True).operator_cells:
        cell = f"{batch}x{context} "
        parts = [one for name, one in rows.items() if name.startswith(cell) and name != f"{cell}step"]
        step = rows[f"{cell}step"]
        made = decode_operators(config, rows=batch, context=context + 3 + 1, item_bytes=2)
        floor_us = 1e6 * floor_s(made, bytes_per_s=2e9, flop_per_s=5e9)
        assert step["floor_us"] == pytest.approx(floor_us)
        assert sum(one["count"] * one["floor_us"] for one in parts) == pytest.approx(floor_us)
        assert step["sum_us"] == pytest.approx(sum(one["count"] * one["us"] for one in parts))
        assert step["sum_us"] + step["between_us"] == pytest.approx(step["graph_us"])
        assert sum(one["lost_us"] for one in parts) == pytest.approx(step["sum_us"] - floor_us)


def test_the_worst_part_is_the_one_that_loses_most_in_a_step() -> None:
    """Not the one of the worst ratio, nor the slowest: 32 calls that lose 5 µs are worse than one that loses 100."""
    parts = {
        "attention": operators.numbers(Timing(100.0, 1), 32, 95.0, 5000.0),
        "head": operators.numbers(Timing(300.0, 1), 1, 200.0, 5000.0),
        "norm": operators.numbers(Timing(10.0, 1), 2, 0.0, 5000.0),
    }
    step = operators.summed(parts, Timing(5000.0, 66), engine={"busy_ms": 5.25, "gap_us": 30.0})
    assert step["worst"] == "attention"
    assert (parts["attention"]["lost_us"], parts["norm"]["over_floor"], parts["head"]["over_floor"]) == (
        160.0,
        None,
        1.5,
    )
    assert (step["sum_us"], step["between_us"]) == (3520.0, 1480.0)
    assert (step["copies_us"], step["gap_us"]) == (250.0, 30.0)


def test_without_ceilings_there_is_no_floor_and_the_worst_is_the_longest() -> None:
    parts = {name: operators.numbers(Timing(us, 1), 1, None, 30.0) for name, us in (("a", 10.0), ("b", 20.0))}
    step = operators.summed(parts, Timing(30.0, 2), engine={})
    assert (step["floor_us"], step["over_floor"], step["worst"]) == (None, None, "b")
    assert (step["copies_us"], step["gap_us"]) == (None, None)
    assert parts["a"]["lost_us"] is None


def test_a_timing_is_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    replays = Replays(torch.device("cpu"))
    monkeypatch.setattr(replays, "timed", lambda work: (work(), Timing(60.0, 12))[1])
    timing = replays.each([lambda: calls.append("a"), lambda: calls.append("b")], passes=3)
    assert calls == ["a", "b"] * 3
    assert timing == Timing(10.0, 2)


def test_the_table_shows_the_parts_that_lose_most() -> None:
    parts = {
        name: operators.numbers(Timing(us, 1), count, floor_us, 4000.0)
        for name, us, count, floor_us in (
            ("attention", 100.0, 32, 90.0), ("rope", 4.0, 32, 0.0), ("head", 250.0, 1, 240.0), ("norm", 3.0, 2, 0.0),
        )
    }  # fmt: skip
    near = operators.summed(parts, Timing(3700.0, 67), engine={"busy_ms": 3.75, "gap_us": 20.0})
    rows = {f"64x512 {name}": one for name, one in (parts | {"step": near}).items()}
    rows |= {"256x512": {"skipped": "no time left for it"}}
    far = near | {"worst": "head", "over_floor": 2.0, "graph_us": 6240.0}
    rows |= {f"8x512 {name}": one for name, one in (parts | {"step": far}).items()}
    assert operators_headline(rows) == "8x512: head loses most, 10 of 3,120 µs over the floor"
    lines = list(operators_table(rows))
    assert lines[1] == (
        "step 64x512: graph 3,700 µs, 1.19 times the floor; parts 3,584, between them 116, copies 50, gap 20"
    )
    assert [line.split()[0] for line in lines[2:5]] == ["attention", "rope", "head"]
    assert lines[2] == "  attention   32 x    100.0 µs, 1.11 times its floor; loses 320 µs a step"
    mixed = {"launch_ms": 9.5, "device_ms": 8.25, "launch_bound": True}
    assert list(operators_table({"mixed 63+128": mixed}))[1:] == [
        "step mixed 63+128, launched one by one: 9.50 ms to launch, 8.25 ms of the device: it waits for the host"
    ]
    mixed |= {"graph_launch_ms": 0.25, "graph_ms": 8.5, "graph_tokens": 192}
    [_, line] = operators_table({"mixed 63+128": mixed})
    assert line.endswith("it waits for the host; from a graph 0.25 ms to launch, 8.50 of the device")
    assert operators_headline({"256x512": {"skipped": "no time left for it"}}) == "no step was taken apart"


def test_a_mixed_step_is_the_engines_and_writes_where_the_plan_says() -> None:
    model = driving.build("tiny", "cpu", "fp32")
    pool = driving.filled_pool(model, driving.blocks_for(4, 21))
    before = pool.layers.clone()
    [(name, found)] = mixed.rows(Setting("cpu", quick=True), model.llama, pool, TorchKernels())
    assert name == "mixed 3+9"
    assert found["launch_bound"] == (found["launch_ms"] > found["device_ms"])
    changed = (pool.layers != before).flatten(2).any(-1).any(0)  # blocks; two for each row
    assert changed.nonzero().flatten().tolist() == [2, 4, 6, 7]  # decodes write to their second, a prompt to its first


def test_a_step_with_other_kernels_is_compared_before_it_is_timed() -> None:
    model = driving.build("tiny", "cpu", "fp32")
    pool = driving.filled_pool(model, driving.blocks_for(3, 21))

    class Wrong(TorchKernels):
        def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
            return super().silu_mul(gate_up) * 1.5

    def found(kernels: TorchKernels) -> dict[str, Any]:
        usual, other = (DecodeStep(model.llama, pool, one, rows=3, context=20) for one in (TorchKernels(), kernels))
        return operators.compared(usual, other, Replays(torch.device("cpu")), graph_us=100.0)

    right = found(TorchKernels())
    assert (right["ok"], right["error"]) == (True, 0.0)
    assert right["gain"] == pytest.approx(100.0 / right["us"] - 1)
    assert not found(Wrong())["ok"]


def test_what_the_pool_has_no_room_for_is_left_out() -> None:
    model = driving.build("tiny", "cpu", "fp32")
    pool = driving.filled_pool(model, driving.blocks_for(4, 21) - 1)
    assert list(mixed.rows(Setting("cpu", quick=True), model.llama, pool, TorchKernels())) == []


def test_what_a_stage_takes_from_another_is_found_before_it() -> None:
    order = [one.name for one in STAGES]
    for before, behind in (("ceilings", "decode"), ("decode", "operators"), ("ceilings", "operators")):
        assert order.index(before) < order.index(behind)
    setting = Setting("cuda", quick=False)
    assert set(setting.operator_cells) <= set(setting.decode_cells)
    assert set(DECODE_OVER_FLOOR) <= set(setting.operator_cells)


def test_the_stages_that_the_docs_name_are_there_in_this_order() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    order = [one.name for one in STAGES]
    commands = re.findall(r"gpu_check\.py --stages ([a-z,]+)", text)
    assert commands
    for command in commands:
        names = command.split(",")
        assert names == sorted(names, key=order.index)
    for stages, heading in ((STAGES, "| stage |"), (VARIANTS, "| stage of variants |")):
        rows = re.findall(r"^\| `(\w+)` \|", text.partition(heading)[2].partition("\n\n")[0], re.MULTILINE)
        assert rows == [one.name for one in stages]
