"""Stage: where the time of a decode step goes. Each part alone, against its floor; the sum of the parts
against the step as a graph replays it; and that against the step as the engine runs it.

    sum of the parts ──► the step's graph ──► the device's time of a step ──► a step of the engine
                   between              copies                          gap
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from benchmarks.gpu import driving, mixed
from benchmarks.gpu.decode import pool_for
from benchmarks.gpu.floor import decode_operators, floor_s
from benchmarks.gpu.parts import DecodeStep
from benchmarks.gpu.replays import Replays, Timing
from benchmarks.gpu.setting import Row, Task
from engines.reference.kernels.choose import PDL_FROM, choose_kernels
from engines.reference.model.config import ModelConfig

CELL_S = 3.0  # what a cell takes at most; it is not begun with less left
LARGEST_ERROR = 1e-2  # |difference| / |logits|, of 16-bit numbers
CALLS = 64  # in a graph at least, of a part that is short: beside one call its start would show

Numbers = dict[str, Any]


def run(task: Task) -> Iterator[Row]:
    setting = task.setting
    model = driving.build(setting.large, setting.device)
    llama = model.llama
    pool = pool_for(model, setting.operator_cells, setting.decode_steps)
    replays = Replays(llama.device)
    for rows, context in setting.operator_cells:
        cell = f"{rows}x{context}"
        middle = context + setting.decode_steps // 2  # of the steps that `decode` takes
        if (needed := driving.blocks_for(rows, middle + 1)) > pool.blocks:
            yield cell, {"skipped": f"needs {needed} KV blocks, and {pool.blocks} fit the device"}
        elif task.left_s() < CELL_S and not setting.quick:
            yield cell, {"skipped": "no time left for it"}
        else:
            driving.release(llama.device)
            kernels = choose_kernels("auto", llama.config, llama.dtype, llama.device, rows)
            step = DecodeStep(llama, pool, kernels, rows=rows, context=middle)
            floors_us = _floors_us(task, llama.config, rows, middle + 1, llama.dtype.itemsize)
            engine = task.results.get("decode", {}).get(f"{setting.large} {cell}", {})
            timed = dict(_timed(step, replays, floors_us, engine))
            yield from ((f"{cell} {name}", one) for name, one in timed.items())
            if _launches_early(llama.device):
                early = choose_kernels("triton-pdl", llama.config, llama.dtype, llama.device, rows)
                afresh = (DecodeStep(llama, pool, one, rows=rows, context=middle) for one in (kernels, early))
                yield f"pdl {cell}", compared(*afresh, replays, timed["step"]["graph_us"])
    if task.left_s() > CELL_S or setting.quick:
        kernels = choose_kernels("auto", llama.config, llama.dtype, llama.device, setting.mixed_cells[0][0] + 1)
        yield from mixed.rows(setting, llama, pool, kernels)


def _launches_early(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= PDL_FROM


@torch.inference_mode()
def compared(usual: DecodeStep, early: DecodeStep, replays: Replays, graph_us: float) -> Numbers:
    """A step whose kernels start while the previous ones end, against the usual one, both at their first step.
    graph_us: of the usual one."""
    expected, logits = usual.whole().float(), early.whole().float()
    error = float((logits - expected).norm() / expected.norm())
    us = replays.each([early.whole], passes=1).us
    return {"us": us, "gain": graph_us / us - 1, "error": error, "ok": error <= LARGEST_ERROR}


def _floors_us(task: Task, config: ModelConfig, rows: int, context: int, item_bytes: int) -> dict[str, float]:
    """us of one call of each operator with a floor; empty where stage `ceilings` has not run."""
    bytes_per_s, flop_per_s = (task.number("ceilings", row, "per_s") for row in ("bandwidth", "matmul"))
    if not bytes_per_s or not flop_per_s:
        return {}
    operators = decode_operators(config, rows=rows, context=context, item_bytes=item_bytes)
    return {
        one.name: 1e6 * floor_s([one], bytes_per_s=bytes_per_s, flop_per_s=flop_per_s) / one.count for one in operators
    }


def _timed(step: DecodeStep, replays: Replays, floors_us: Mapping[str, float], engine: Numbers) -> Iterator[Row]:
    whole = replays.each([step.whole], passes=1)
    with torch.inference_mode():
        made = step.parts()
    parts: dict[str, Numbers] = {}
    for part in made:
        count = len(part.works)
        long = part.name in floors_us and count > 1
        timing = replays.each(part.works, 1 if long else -(-CALLS // count))
        parts[part.name] = numbers(timing, count, floors_us.get(part.name, 0.0) if floors_us else None, whole.us)
        yield part.name, parts[part.name]
    yield "step", summed(parts, whole, engine)


def numbers(timing: Timing, count: int, floor_us: float | None, step_us: float) -> Numbers:
    """The numbers of one part. floor_us: of a call; 0 for what is free, None where the ceilings are unknown."""
    return {
        "us": timing.us,
        "count": count,
        "launches": timing.launches,
        "share": count * timing.us / step_us,
        "floor_us": floor_us,
        "over_floor": timing.us / floor_us if floor_us else None,
        "lost_us": None if floor_us is None else count * (timing.us - floor_us),
    }


def summed(parts: Mapping[str, Numbers], whole: Timing, engine: Mapping[str, Any]) -> Numbers:
    """The sums of the step. engine: the result of stage `decode`, if any; worst: the part that loses most, or
    takes most, where no floor is known."""
    sum_us = sum(one["count"] * one["us"] for one in parts.values())
    known = all(one["floor_us"] is not None for one in parts.values())
    floor_us = sum(one["count"] * one["floor_us"] for one in parts.values()) if known else None
    return {
        "graph_us": whole.us,
        "launches": whole.launches,
        "sum_us": sum_us,
        "between_us": whole.us - sum_us,
        "copies_us": 1e3 * engine["busy_ms"] - whole.us if "busy_ms" in engine else None,
        "gap_us": engine.get("gap_us"),
        "floor_us": floor_us,
        "over_floor": whole.us / floor_us if floor_us else None,
        "worst": max(parts, key=lambda name: parts[name]["lost_us" if known else "share"]),
    }
