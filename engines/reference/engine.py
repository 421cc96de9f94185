"""ReferenceEngine: the scheduler over the torch runtime, on the wall clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engines.base import Observer, RunRecord
from engines.garbage import light_garbage_collection
from engines.loop import Instance, WallClock
from engines.recorded_loop import run_loop
from engines.reference.executor import TorchExecutor
from engines.reference.graphs import choose_sizes
from engines.reference.kernels.choose import choose_kernels
from engines.reference.kv_capacity import free_bytes, kv_block_bytes, require_memory
from engines.reference.kv_pool import KVPool
from engines.reference.mixed_graphs import mixed_sizes
from engines.reference.model.weights import LoadedModel
from engines.reference.synthetic_steps import synthetic_step, warm_up_steps
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import GREEDY, Request, Sampling
from workloads.errors import CbbenchError
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import Incoming, PlanSource

WARM_UP_STEPS = 2


class ReferenceEngine:
    """One engine per setting; `run` may be called again, and starts from an idle scheduler each time."""

    client = None  # requests reach the scheduler in process

    def __init__(
        self,
        model: LoadedModel,
        config: SchedulerConfig,
        *,
        prompt_seed: int = 0,
        ignore_eos: bool = True,
        sampling: Sampling = GREEDY,
        attention: str = "auto",
        cuda_graphs: bool | None = None,
        clock: WallClock | None = None,
    ) -> None:
        """sampling: its seed is mixed with each request's index; cuda_graphs: None means where possible; clock: of
        another engine that runs at the same time.

        CbbenchError where the KV pool does not fit in memory, or the kernels or graphs are not available here.
        """
        if config.max_model_len > model.context_tokens:
            raise CbbenchError(
                "max_model_len",
                f"{config.max_model_len} is more than the context of {model.name}, {model.context_tokens} tokens",
            )
        self._model = model
        self._config = config
        self._prompt_seed = prompt_seed
        self._ignore_eos = ignore_eos
        self._sampling = sampling
        self.clock = clock or WallClock()
        llama = model.llama
        block_bytes = kv_block_bytes(model, config.block_size)
        require_memory("kv_blocks", config.kv_blocks, block_bytes, free_bytes(llama.device), "are free")
        if config.swap_blocks:
            host_bytes = free_bytes(torch.device("cpu"))
            require_memory("swap_blocks", config.swap_blocks, block_bytes, host_bytes, "are free on the host")
        self.pool = KVPool(llama.config, config.kv_blocks, config.block_size, dtype=llama.dtype, device=llama.device)
        self._kernels = choose_kernels(attention, llama.config, llama.dtype, llama.device, config.max_num_seqs)
        graph_sizes, self._graphs = choose_sizes(cuda_graphs, self._kernels, llama.device, config.max_num_seqs)
        mixed_graph_sizes = mixed_sizes(config.max_num_batched_tokens) if graph_sizes else ()
        if mixed_graph_sizes:
            self._graphs += f", and for up to {mixed_graph_sizes[-1]} tokens with a prompt"
        self.executor = TorchExecutor(
            llama,
            self.pool,
            max_num_seqs=config.max_num_seqs,
            clock=self.clock,
            kernels=self._kernels,
            swap_blocks=config.swap_blocks,
            graph_sizes=graph_sizes,
            mixed_graph_sizes=mixed_graph_sizes,
            max_blocks=-(-config.max_model_len // config.block_size),
        )
        self.warm_up()

    @property
    def _depth(self) -> int:
        """Steps in flight while the next is planned: none on a CPU, where planning takes cores from a step."""
        return 1 if self._model.device == "cuda" else 0

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        prompts = Prompts(plan, self._model.checkpoint.prompt_ids, self._prompt_seed)
        with light_garbage_collection():  # a pause would raise TPOT; the full collection comes before time 0
            return run_loop(
                self.instance(),
                PlanSource(plan, pacing, prompts),
                self.clock,
                observer,
                planned=len(plan),
                make_request=self.request,
            )

    def instance(self) -> Instance:
        """For a loop with another source: an idle scheduler, and the clock at zero."""
        scheduler = self._config.build(frozenset(self._model.checkpoint.eos_ids))
        self.clock.restart()
        self.executor.restart()
        return Instance(scheduler, self.executor, self._depth)

    def warm_up(self) -> None:
        """Synthetic steps, so that one-time work (compiling kernels, touching memory first) is in no TTFT."""
        prompt = min(self._config.max_num_batched_tokens, self._config.max_model_len)
        for counts in warm_up_steps(self._config.max_num_seqs, prompt, every_size=self._model.device == "cuda"):
            for _ in range(WARM_UP_STEPS):
                self.executor.submit(synthetic_step(counts))
                self.executor.collect()

    def describe(self) -> dict[str, Any]:
        """The `config` of run.json's engine."""
        llama, pool = self._model.llama, self.pool
        return {
            "kv_blocks": pool.blocks,
            "block_size": pool.block_size,
            "kv_bytes_per_token": pool.bytes_per_token(),
            "kv_pool_bytes": pool.layers.numel() * pool.layers.element_size(),
            "dtype": str(llama.dtype).removeprefix("torch."),
            "dtype_reason": self._model.dtype_reason,
            "attention": self._kernels.name,
            "cuda_graphs": self._graphs,
            "overlap_steps": self._depth,
            "linear": "oneDNN, packed weights" if llama.head.packed else "torch",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "parameters": llama.config.parameters,
            "weights": self._model.checkpoint.source,
            "ignore_eos": self._ignore_eos,
        }

    def request(self, incoming: Incoming) -> Request:
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
