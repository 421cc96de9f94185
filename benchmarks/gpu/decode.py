"""Stage: decode steps at several batch sizes and contexts, against the floor that the device's measured limits give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu import driving
from benchmarks.gpu.floor import decode_operators, floor_s
from benchmarks.gpu.setting import Row, Skip, Task
from engines.reference.kv_capacity import free_bytes
from engines.reference.kv_pool import KVPool
from engines.reference.model.weights import LoadedModel

CELL_S = 5.0  # what a cell takes at most; it is not begun with less left
ROOM = 0.9  # of the free memory for the pool


def run(task: Task) -> Iterator[Row]:
    setting = task.setting
    cells = setting.decode_cells
    for name in dict.fromkeys((setting.large, setting.small)):
        if task.left_s() < 2 * CELL_S and not setting.quick:
            yield name, {"skipped": "no time left for it"}
            continue
        model = driving.build(name, setting.device)
        pool = pool_for(model, cells, setting.decode_steps)
        for rows, context in cells:
            yield f"{name} {rows}x{context}", _cell(task, model, pool, rows, context)
        device = model.llama.device
        del pool, model
        driving.release(device)


def pool_for(model: LoadedModel, cells: tuple[tuple[int, int], ...], steps: int) -> KVPool:
    """Enough for the largest cell that fits the device."""
    llama = model.llama
    block_bytes = llama.config.kv_elements_per_token * driving.BLOCK_SIZE * llama.dtype.itemsize
    affordable = int(free_bytes(llama.device) * ROOM) // block_bytes
    wanted = {driving.blocks_for(rows, context + steps + 1) for rows, context in cells}
    if not (fitting := [blocks for blocks in wanted if blocks <= affordable]):
        raise Skip(f"no cell fits the memory: {min(wanted)} blocks are the least, {affordable} there is room for")
    return driving.filled_pool(model, max(fitting))


def _cell(task: Task, model: LoadedModel, pool: KVPool, rows: int, context: int) -> dict[str, Any]:
    steps = task.setting.decode_steps
    if (needed := driving.blocks_for(rows, context + steps + 1)) > pool.blocks:
        return {"skipped": f"needs {needed} KV blocks, and {pool.blocks} fit the device"}
    if task.left_s() < CELL_S and not task.setting.quick:
        return {"skipped": "no time left for it"}
    decoded = driving.decode(model, pool, rows=rows, context=context, steps=steps, graph_sizes=(rows,))
    numbers = timings(decoded.full_steps())
    bytes_per_s, flop_per_s = (task.number("ceilings", row, "per_s") for row in ("bandwidth", "matmul"))
    if bytes_per_s and flop_per_s:
        middle = context + 1 + steps // 2
        operators = decode_operators(
            model.llama.config, rows=rows, context=middle, item_bytes=model.llama.dtype.itemsize
        )
        floor_ms = 1e3 * floor_s(operators, bytes_per_s=bytes_per_s, flop_per_s=flop_per_s)
        numbers |= {"floor_ms": floor_ms, "over_floor": numbers["step_ms"] / floor_ms}
    return numbers | {"graph": decoded.graphs}


def timings(steps: np.ndarray) -> dict[str, float]:
    """steps: ledger rows of equal decode steps, in order. A step lasts from the previous step's end to its own."""
    intervals_ns = np.diff(steps["end_ns"])
    busy_ns = steps["busy_ns"][1:]
    return {
        "step_ms": float(np.median(intervals_ns)) / 1e6,
        "busy_ms": float(np.median(busy_ns)) / 1e6,
        "gap_us": float(np.median(np.maximum(intervals_ns - busy_ns, 0))) / 1e3,
        "device_busy": float(min(busy_ns.sum() / intervals_ns.sum(), 1.0)),
        "steps": len(intervals_ns),
    }
