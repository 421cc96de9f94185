"""ReferenceEngine: the scheduler over the torch runtime, on the wall clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engines.base import EngineError, Observer, RunRecord
from engines.loop import Runtime, WallClock, run_loop
from engines.reference.executor import TorchExecutor
from engines.reference.kernels.choose import choose_kernels
from engines.reference.kv_pool import KVPool, default_blocks, free_bytes
from engines.reference.model.weights import LoadedModel
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepPlan
from engines.scheduling.request import GREEDY, Request, Sampling
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import Incoming, PlanSource

WARM_UP_STEPS = 2

__all__ = ["LoadedModel", "ReferenceEngine", "default_kv_blocks"]


def default_kv_blocks(model: LoadedModel, *, block_size: int, max_num_seqs: int, max_model_len: int) -> int:
    """Usable KV blocks where nobody chose: every seat at full length, within a quarter of the free memory."""
    llama = model.llama
    return default_blocks(
        llama.config,
        block_size,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        dtype=llama.dtype,
        device=llama.device,
    )


class ReferenceEngine:
    """One engine per setting; `run` may be called again, and starts from an idle scheduler each time."""

    client = None  # nothing stands between the plan and the scheduler

    def __init__(
        self,
        model: LoadedModel,
        config: SchedulerConfig,
        *,
        prompt_seed: int = 0,
        ignore_eos: bool = True,
        sampling: Sampling = GREEDY,
        attention: str = "auto",
    ) -> None:
        """`sampling.seed` is mixed with the request's index. EngineError where the KV pool does not fit in memory."""
        if config.max_model_len > model.context_tokens:
            raise EngineError(
                f"--max-model-len {config.max_model_len}: {model.name} has a context of {model.context_tokens} tokens"
            )
        self._model = model
        self._config = config
        self._prompt_seed = prompt_seed
        self._ignore_eos = ignore_eos
        self._sampling = sampling
        self.clock = WallClock()
        llama = model.llama
        pool_bytes = config.kv_blocks * config.block_size * llama.config.kv_elements_per_token * llama.dtype.itemsize
        if pool_bytes > (free := free_bytes(llama.device)):
            raise EngineError(
                f"--kv-blocks {config.kv_blocks}: {pool_bytes / 2**30:.1f} GiB of KV, {free / 2**30:.1f} GiB are free"
            )
        self._pool = KVPool(llama.config, config.kv_blocks, config.block_size, dtype=llama.dtype, device=llama.device)
        self._kernels = choose_kernels(attention, llama.config, llama.device, config.max_num_seqs)
        self._executor = TorchExecutor(
            llama,
            self._pool,
            max_num_seqs=config.max_num_seqs,
            clock=self.clock,
            kernels=self._kernels,
            swap_blocks=config.swap_blocks,
        )
        self.warm_up()

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        prompts = Prompts(plan, self._model.checkpoint.prompt_ids, self._prompt_seed)
        runtime = self.runtime()
        return run_loop(
            runtime.scheduler,
            runtime.executor,
            PlanSource(plan, pacing, prompts),
            runtime.clock,
            observer,
            planned=len(plan),
            make_request=self._request,
            depth=runtime.depth,
        )

    def runtime(self) -> Runtime:
        """For a loop with a source of its own: an idle scheduler, and the clock at zero."""
        scheduler = self._config.build(frozenset(self._model.checkpoint.eos_ids))
        self.clock.restart()
        self._executor.restart()
        return Runtime(scheduler, self._executor, self.clock, depth=1 if self._model.device == "cuda" else 0)

    def warm_up(self) -> None:
        """A few throwaway steps, so that what happens once (oneDNN's kernels, first touch of memory) is in no TTFT."""
        prompt = min(self._config.max_num_batched_tokens, self._config.max_model_len)
        for counts in ([prompt], [1] * self._config.max_num_seqs, [1]):
            for _ in range(WARM_UP_STEPS):
                self._executor.submit(_throwaway_step(counts))
                self._executor.collect()

    def describe(self) -> dict[str, Any]:
        """The `config` of run.json's engine: what ran, on what, and why so."""
        llama, pool = self._model.llama, self._pool
        return {
            "kv_blocks": pool.blocks,
            "block_size": pool.block_size,
            "kv_bytes_per_token": pool.bytes_per_token(),
            "kv_pool_bytes": pool.layers.numel() * pool.layers.element_size(),
            "dtype": str(llama.dtype).removeprefix("torch."),
            "dtype_reason": self._model.dtype_reason,
            "attention": self._kernels.name,
            "linear": "oneDNN, packed weights" if llama.head.packed else "torch",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "parameters": llama.config.parameters,
            "weights": self._model.checkpoint.source,
            "ignore_eos": self._ignore_eos,
        }

    def _request(self, incoming: Incoming) -> Request:
        return Request(
            incoming.index,
            incoming.prompt_tokens,
            incoming.output_tokens,
            prompt=incoming.prompt,
            tenant=incoming.tenant,
            priority=incoming.priority,
            scheduled_ns=incoming.scheduled_ns,
            sent_ns=incoming.sent_ns,
            ignore_eos=self._ignore_eos,
            sampling=replace(self._sampling, seed=(self._sampling.seed << 32) + incoming.index),
        )


def _throwaway_step(counts: list[int]) -> StepPlan:
    """A step of one row per count whose tables are all zero, so that it writes to the dummy block alone."""
    rows = np.arange(len(counts))
    nothing = np.empty(0, dtype=np.int64)
    return StepPlan(
        step=0,
        now_ns=0,
        requests=[Request(-1, count, 1, prompt=np.zeros(count, dtype=np.int32)) for count in counts],
        slots=rows,
        starts=np.zeros_like(rows),
        counts=np.array(counts),
        padding=np.zeros_like(rows),
        samples=np.ones(len(counts), dtype=np.bool_),
        dead_slots=nothing,
        dead_lengths=nothing,
        dead_tokens=0,
        tables=np.zeros((len(counts), max(counts)), dtype=np.int32),
    )
