"""Our own engine, on one instance or on two."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cbbench.config import RunConfig, UsageError
from cbbench.experiment.engine_factories.schedulers import budget_tokens, info_of, pair_of, scheduler_of
from cbbench.experiment.kv_demand import blocks_for_every_seat, refuse_what_never_fits, refuse_what_never_fits_a_pair
from engines.base import Engine
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Sampling
from reports.schema import EngineInfo
from workloads.plan import RequestPlan
from workloads.prompt_texts import Encode

if TYPE_CHECKING:
    from engines.reference.model.weights import LoadedModel


class Reference:
    """Model settings (model, weights, device, dtype) come from `base`; everything else from each run's config."""

    def __init__(self, base: RunConfig) -> None:
        self._base = base

    @cached_property
    def model(self) -> LoadedModel:
        from engines.reference import load_model

        base = self._base
        return load_model(base.model, weights=base.weights, device=base.device, dtype=base.dtype)

    def context_tokens(self, config: RunConfig) -> int:
        return config.max_model_len or self.model.context_tokens

    def encode(self) -> Encode | None:
        from engines.tokenizers.prompt_encoder import prompt_encoder

        return prompt_encoder(self._base.model, random_weights=self._base.weights == "random")

    def scheduler(self, config: RunConfig, kv_blocks: int) -> SchedulerConfig:
        made = scheduler_of(config, kv_blocks, self.context_tokens(config), self.model.device)
        if config.swap_blocks is not None or not made.swap_blocks:
            return made
        from engines.reference.kv_capacity import swap_blocks_for_host

        return replace(made, swap_blocks=min(made.swap_blocks, swap_blocks_for_host(self.model, config.block_size)))

    def kv_blocks_in_memory(self, config: RunConfig) -> int:
        from engines.reference.kv_capacity import GPU_SHARE, default_kv_blocks

        return default_kv_blocks(
            self.model,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=self.context_tokens(config),
            max_num_batched_tokens=budget_tokens(config, self.model.device),
            attention=config.attention,
            gpu_memory_utilization=config.gpu_memory_utilization or GPU_SHARE,
        )

    def kv_blocks(self, config: RunConfig, most: int | None) -> int:
        """Usable blocks of the pool. most: what the plan's requests can ever need, if that is known."""
        if config.gpu_memory_utilization is not None and self.model.device == "cpu":
            raise UsageError("--gpu-memory-utilization: the model runs on a CPU; --kv-blocks N sets its KV cache")
        if config.kv_blocks:
            return config.kv_blocks
        blocks = self.kv_blocks_in_memory(config)
        on_gpu = self.model.device != "cpu"
        if on_gpu and config.disaggregate:
            blocks = max(1, blocks // 2)  # both pools are in the one GPU's memory
        if most is not None and config.gpu_memory_utilization is None:
            blocks = min(blocks, most)
        if on_gpu:
            each = " for each instance" if config.disaggregate else ""
            print(f"{blocks:,} KV blocks of {config.block_size} tokens{each}", file=sys.stderr)
        return blocks

    def engine(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.reference.engine import ReferenceEngine

        if config.disaggregate:
            return self._pair(config, plan)
        most = blocks_for_every_seat(plan, config, self.context_tokens(config))
        scheduler = self.scheduler(config, self.kv_blocks(config, most))
        refuse_what_never_fits(config, plan, scheduler)
        engine = ReferenceEngine(self.model, scheduler, **self._settings(config))
        return engine, info_of("reference", config, scheduler, self.model.name, self.model.device, engine.describe())

    def _pair(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.reference.disaggregated import DisaggregatedReferenceEngine

        most = blocks_for_every_seat(plan, config, self.context_tokens(config))
        pair = pair_of(config, self.scheduler(config, self.kv_blocks(config, most)))
        refuse_what_never_fits_a_pair(config, plan, pair)
        engine = DisaggregatedReferenceEngine(self.model, pair, **self._settings(config))
        return engine, info_of("reference", config, pair.decode, self.model.name, self.model.device, engine.describe())

    @staticmethod
    def _settings(config: RunConfig) -> dict[str, Any]:
        """What an engine wants to know beside its scheduler."""
        return {
            "prompt_seed": config.prompt_seed,
            "ignore_eos": config.ignore_eos,
            "sampling": Sampling(config.temperature, config.top_k, config.top_p, seed=config.prompt_seed),
            "attention": config.attention,
            "cuda_graphs": config.cuda_graphs,
        }
