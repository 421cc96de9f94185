"""Models of random weights, and decode steps at a context of any length without computing the prompts before them.

The scheduler, the executor and what overlaps the two (engines.loop.Instance) are the engine's own. Only steps with a
prompt are answered without being run: their tokens are all 0, and their KV is what the pool was filled with. The cost
of a decode step depends on neither. Needs torch, Triton and NumPy alone.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engines.ledger import LEDGER, StepArray
from engines.loop import Clock, Instance, WallClock
from engines.reference.executor import TorchExecutor
from engines.reference.kernels.choose import choose_kernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.weights import LoadedModel, load_model
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import Request

BLOCK_SIZE = 16


def build(name: str, device: str, dtype: str = "bf16") -> LoadedModel:
    """Random weights of a known shape, made on the device."""
    return load_model(name, weights="random", dtype=dtype, device=device)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Return unreferenced memory to the driver, which reports what is free: torch caches it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def filled_pool(model: LoadedModel, blocks: int) -> KVPool:
    """Random numbers, so that matrix products draw as much power as real ones."""
    llama = model.llama
    pool = KVPool(llama.config, blocks, BLOCK_SIZE, dtype=llama.dtype, device=llama.device)
    for layer in pool.layers:
        layer.normal_()
    return pool


@dataclass
class PromptsSkipped:
    """An executor that answers steps with prompts at once and runs the others."""

    inner: TorchExecutor
    clock: Clock
    _order: deque[StepResult | None] = field(default_factory=deque)

    def submit(self, plan: StepPlan) -> None:
        if (plan.counts > 1).any():
            now_ns = self.clock.now_ns()
            tokens = np.zeros(int(plan.samples.sum()), dtype=np.int32)
            self._order.append(StepResult(plan.step, tokens, now_ns, now_ns, 0))
        else:
            self.inner.submit(plan)
            self._order.append(None)

    def collect(self) -> StepResult:
        return self._order.popleft() or self.inner.collect()


@dataclass(frozen=True, eq=False)
class Decoded:
    steps: StepArray  # the ledger
    outputs: list[list[int]]  # of each request, without the first token, which no step has computed
    rows: int
    graphs: bool

    def full_steps(self) -> StepArray:
        """Ledger rows of the decode steps with all requests in them, after the first few."""
        steps = self.steps
        full = steps[(steps["prefill_rows"] == 0) & (steps["decode_rows"] == self.rows)]
        return full[min(4, len(full) // 3) :]


def decode(
    model: LoadedModel, pool: KVPool, *, rows: int, context: int, steps: int, graph_sizes: Sequence[int] = ()
) -> Decoded:
    """`rows` requests with prompts of `context` tokens, which are not computed, and `steps` tokens after them.

    graph_sizes: batch sizes captured as graphs, where the kernels can be captured.
    """
    llama = model.llama
    release(llama.device)  # graphs and scratch of an executor before this one
    clock = WallClock()
    # At most `most` tokens: the last one sampled is never fed back.
    most = context + steps + 1
    kernels = choose_kernels("auto", llama.config, llama.dtype, llama.device, rows)
    graph_sizes = graph_sizes if kernels.captures else ()
    executor = TorchExecutor(
        llama,
        pool,
        max_num_seqs=rows,
        clock=clock,
        kernels=kernels,
        graph_sizes=graph_sizes,
        max_blocks=-(-most // pool.block_size),
    )
    config = SchedulerConfig(
        kv_blocks=pool.blocks,
        block_size=pool.block_size,
        max_model_len=most,
        max_num_seqs=rows,
        max_num_batched_tokens=rows * most,
        watermark=0.0,
    )
    random = np.random.default_rng(0)
    ids = model.checkpoint.prompt_ids
    requests = [Request(i, context, steps + 1, prompt=random.choice(ids, context)) for i in range(rows)]
    instance = Instance(
        config.build(frozenset()), PromptsSkipped(executor, clock), depth=int(llama.device.type == "cuda")
    )
    clock.restart()
    executor.restart()
    ledger = _run(instance, requests, clock)
    outputs = [np.asarray(one.tokens)[context + 1 : context + 1 + steps].tolist() for one in requests]
    return Decoded(ledger, outputs, rows, graphs=bool(graph_sizes))


def _run(instance: Instance, requests: Sequence[Request], clock: Clock) -> StepArray:
    """All requests from time 0 to their end; the ledger of the steps."""
    for request in requests:
        instance.submit(request, 0)
    rows: list[np.void] = []
    while not instance.idle:
        instance.launch(clock.now_ns())
        for outcome, _ in instance.collect(clock, lambda: None):
            if outcome.ledger_row is not None:
                rows.append(outcome.ledger_row)
    return np.array(rows, LEDGER)


def blocks_for(rows: int, tokens: int) -> int:
    return rows * -(-tokens // BLOCK_SIZE)
