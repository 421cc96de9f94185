"""Stage: what a preempted request costs: its blocks moved to the host and back, or its tokens computed again.

The cost of moving grows with the KV of a token, that of computing with the parameters: above some model size moving is
cheaper. The stage finds it among the shapes measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import driving
from benchmarks.gpu.setting import Row, Task
from engines.loop import WallClock
from engines.reference.device import open_device
from engines.reference.executor import TorchExecutor
from engines.reference.kernels.choose import choose_kernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.weights import LoadedModel
from engines.reference.swap import HostPool
from engines.scheduling.plan import NO_MOVES, StepPlan
from engines.scheduling.request import Request

MODEL_S = 4.0
ROUNDS = 3


def run(task: Task) -> Iterator[Row]:
    setting = task.setting
    names = ("tiny",) if setting.quick else ("smollm2-135m", "qwen3-0.6b", "llama-3.1-8b")
    lengths = (32, 64) if setting.quick else (512, 2048)
    measured: dict[int, list[tuple[int, float]]] = {tokens: [] for tokens in lengths}
    for name in names:
        if task.left_s() < MODEL_S and not setting.quick:
            yield name, {"skipped": "no time left for it"}
            continue
        model = driving.build(name, setting.device)
        for tokens in lengths:
            numbers = _compared(model, tokens)
            measured[tokens].append((model.llama.config.parameters, numbers["swap_over_recompute"]))
            yield f"{name} {tokens} tokens", numbers
        del model
        driving.release(torch.device(setting.device))
    for tokens, points in measured.items():
        yield f"crossover {tokens} tokens", {"parameters": crossover(points)}


def crossover(points: Sequence[tuple[float, float]]) -> float | None:
    """The size at which the ratio falls below 1, by linear interpolation of log ratio over log size.

    None where it does not within the measured sizes.
    """
    ordered = sorted(points)
    for (small, above), (large, below) in pairwise(ordered):
        if above > 1 >= below:
            share = math.log(above) / (math.log(above) - math.log(below))
            return math.exp(math.log(small) + share * (math.log(large) - math.log(small)))
    return None


def _compared(model: LoadedModel, tokens: int) -> dict[str, Any]:
    llama, clock = model.llama, WallClock()
    blocks = -(-tokens // driving.BLOCK_SIZE)
    pool = driving.filled_pool(model, blocks)
    host = HostPool(pool, blocks, open_device(llama.device, clock))
    pairs = np.stack((np.arange(1, blocks + 1), np.arange(blocks)), axis=1)
    out = _plan(0, blocks, swap_out=pairs)
    back = _plan(0, blocks, swap_in=pairs[:, ::-1].copy())

    def upload(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(llama.device)

    executor = TorchExecutor(
        llama,
        pool,
        max_num_seqs=1,
        clock=clock,
        kernels=choose_kernels("auto", llama.config, llama.dtype, llama.device, 1),
    )
    again = _plan(tokens, blocks)

    def recompute() -> None:
        executor.submit(again)
        executor.collect()

    out_ms, in_ms, recompute_ms = (
        _ms(work, llama.device)
        for work in (lambda: host.queue_moves(out, upload), lambda: host.queue_moves(back, upload), recompute)
    )
    return {
        "out_ms": out_ms,
        "in_ms": in_ms,
        "recompute_ms": recompute_ms,
        "swap_over_recompute": (out_ms + in_ms) / recompute_ms,
        "bytes": pool_bytes(pool),
    }


def pool_bytes(pool: KVPool) -> int:
    """Without the dummy block."""
    return pool.layers[:, 1:].numel() * pool.layers.element_size()


def _ms(work: Callable[[], object], device: torch.device) -> float:
    """The best of a few rounds, after one that compiles and allocates."""
    best = float("inf")
    for round in range(ROUNDS + 1):
        driving.synchronize(device)
        began = time.perf_counter()
        work()
        driving.synchronize(device)
        if round:
            best = min(best, time.perf_counter() - began)
    return best * 1e3


def _plan(tokens: int, blocks: int, **moves: Any) -> StepPlan:
    """A step of one prompt of that many tokens in blocks 1 on, and these moves."""
    rows = np.arange(1 if tokens else 0)
    nothing = np.empty(0, dtype=np.int64)
    return StepPlan(
        step=0,
        now_ns=0,
        requests=[Request(0, tokens, 1, prompt=np.ones(tokens, dtype=np.int32)) for _ in rows],
        slots=rows,
        starts=np.zeros_like(rows),
        counts=np.full_like(rows, tokens),
        padding=np.zeros_like(rows),
        samples=np.ones(len(rows), dtype=np.bool_),
        dead_slots=nothing,
        dead_lengths=nothing,
        dead_tokens=0,
        tables=np.arange(1, blocks + 1, dtype=np.int32)[None, :],
        **{"swap_out": NO_MOVES, "swap_in": NO_MOVES} | moves,
    )
