"""Steps with a prompt: launched kernel by kernel, and from the graph of their number of tokens.

A device that waits for launches is idle. So the eager step is run twice: as usual, and behind a kernel that spins until
all launches are queued.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import driving
from benchmarks.gpu.parts import tables_of
from benchmarks.gpu.setting import Row, Setting
from engines.loop import WallClock
from engines.reference.executor import TorchExecutor
from engines.reference.kernels import Kernels
from engines.reference.kv_pool import KVPool
from engines.reference.mixed_graphs import LARGEST, mixed_sizes
from engines.reference.model.llama import Llama
from engines.scheduling.plan import StepPlan
from engines.scheduling.request import Request

ROUNDS = 5
AHEAD_CYCLES = 100_000_000  # of the device's clock: some 50 ms, several times what a step takes to launch


def rows(setting: Setting, llama: Llama, pool: KVPool, kernels: Kernels) -> Iterator[Row]:
    for decodes, context, prompt in setting.mixed_cells:
        plan = mixed_plan(decodes, context, prompt)
        if plan.tables.max() <= pool.blocks:
            yield f"mixed {decodes}+{prompt}", _compared(llama, pool, kernels, plan)


def _compared(llama: Llama, pool: KVPool, kernels: Kernels, plan: StepPlan) -> dict[str, Any]:
    executor = executor_of(llama, pool, kernels, plan)
    step_ms(executor, plan)  # compiles and allocates
    usual = [step_ms(executor, plan) for _ in range(ROUNDS)]
    queued = [step_ms(executor, plan, ahead=llama.device.type == "cuda") for _ in range(ROUNDS)]
    launch_ms, step = (median(numbers) for numbers in zip(*usual, strict=True))
    device_ms = median(device for _, device in queued)
    found = {"launch_ms": launch_ms, "step_ms": step, "device_ms": device_ms, "launch_bound": launch_ms > device_ms}
    tokens = plan.launched_tokens
    if not kernels.captures or tokens > LARGEST:
        return found
    executor = executor_of(llama, pool, kernels, plan, graph_sizes=(size_of(tokens),))
    replayed = [step_ms(executor, plan) for _ in range(ROUNDS + 1)][1:]
    graph_launch_ms, graph_ms = (median(numbers) for numbers in zip(*replayed, strict=True))
    return found | {"graph_launch_ms": graph_launch_ms, "graph_ms": graph_ms, "graph_tokens": size_of(tokens)}


def size_of(tokens: int) -> int:
    """Tokens of the graph that holds such a step."""
    return min(size for size in mixed_sizes(LARGEST) if size >= tokens)


def executor_of(
    llama: Llama, pool: KVPool, kernels: Kernels, plan: StepPlan, graph_sizes: Sequence[int] = ()
) -> TorchExecutor:
    return TorchExecutor(
        llama,
        pool,
        max_num_seqs=len(plan.slots),
        clock=WallClock(),
        kernels=kernels,
        mixed_graph_sizes=graph_sizes,
        max_blocks=plan.tables.shape[1],
    )


def step_ms(executor: TorchExecutor, plan: StepPlan, *, ahead: bool = False) -> tuple[float, float]:
    """(ms to launch it, ms on the device)"""
    if ahead:
        torch.cuda._sleep(AHEAD_CYCLES)
    began = time.perf_counter()
    executor.submit(plan)
    launched = time.perf_counter() - began
    return 1e3 * launched, executor.collect().busy_ns / 1e6


def mixed_plan(decodes: int, context: int, prompt: int) -> StepPlan:
    """`decodes` rows of one token behind `context` positions, and a prompt of that many tokens; blocks from 1 on."""
    known = np.array([context + 1] * decodes + [prompt])
    starts = np.array([context] * decodes + [0])
    nothing = np.empty(0, dtype=np.int64)
    return StepPlan(
        step=1,
        now_ns=0,
        requests=[Request(i, int(tokens), 1, prompt=np.ones(tokens, dtype=np.int32)) for i, tokens in enumerate(known)],
        slots=np.arange(len(known)),
        starts=starts,
        counts=known - starts,
        padding=np.zeros_like(known),
        samples=np.ones(len(known), dtype=np.bool_),
        dead_slots=nothing,
        dead_lengths=nothing,
        dead_tokens=0,
        tables=tables_of(len(known), int(known.max()), driving.BLOCK_SIZE),
    )
