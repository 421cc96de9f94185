"""Steps with a prompt, which are launched kernel by kernel: whether the host or the device is slower.

A device that waits for launches inside a step is idle, but `device_busy` counts a step from its first kernel to its
last. So the step is run twice: as usual, and behind a kernel that spins until all launches are queued.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
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
from engines.reference.model.llama import Llama
from engines.scheduling.plan import StepPlan
from engines.scheduling.request import Request

ROUNDS = 5
AHEAD_CYCLES = 100_000_000  # of the device's clock: some 50 ms, several times what a step takes to launch


def rows(setting: Setting, llama: Llama, pool: KVPool, kernels: Kernels) -> Iterator[Row]:
    for decodes, context, prompt in setting.mixed_cells:
        plan = _plan(decodes, context, prompt)
        if plan.tables.max() <= pool.blocks:
            yield f"mixed {decodes}+{prompt}", _compared(llama, pool, kernels, plan)


def _compared(llama: Llama, pool: KVPool, kernels: Kernels, plan: StepPlan) -> dict[str, Any]:
    executor = TorchExecutor(llama, pool, max_num_seqs=len(plan.slots), clock=WallClock(), kernels=kernels)

    def step_ms(ahead: bool) -> tuple[float, float]:
        """(ms to launch it, ms on the device)"""
        if ahead and llama.device.type == "cuda":
            torch.cuda._sleep(AHEAD_CYCLES)
        began = time.perf_counter()
        executor.submit(plan)
        launched = time.perf_counter() - began
        return 1e3 * launched, executor.collect().busy_ns / 1e6

    step_ms(ahead=False)  # compiles and allocates
    usual = [step_ms(ahead=False) for _ in range(ROUNDS)]
    queued = [step_ms(ahead=True) for _ in range(ROUNDS)]
    launch_ms, step = (median(numbers) for numbers in zip(*usual, strict=True))
    device_ms = median(device for _, device in queued)
    return {"launch_ms": launch_ms, "step_ms": step, "device_ms": device_ms, "launch_bound": launch_ms > device_ms}


def _plan(decodes: int, context: int, prompt: int) -> StepPlan:
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
