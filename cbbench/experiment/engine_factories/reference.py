"""Our own engine, on one instance or on two."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cbbench.experiment.engine_factories.schedulers import budget_tokens, info_of, instances_of, scheduler_of
from cbbench.experiment.kv_demand import (
    blocks_for_every_slot,
    refuse_what_never_fits,
    refuse_what_never_fits_two_instances,
)
from cbbench.settings.run import RunSettings
from engines.base import Engine
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Sampling
from reports.schema import EngineInfo
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan
from workloads.prompt_texts import Encode

if TYPE_CHECKING:
    from engines.reference.model.weights import LoadedModel


class ReferenceFactory:
    """Model settings (model, weights, device, dtype) come from `base`; everything else from each run's settings."""

    def __init__(self, base: RunSettings) -> None:
        self._base = base

    @cached_property
    def model(self) -> LoadedModel:
        from engines.reference import load_model

        base = self._base
        return load_model(
            base.engine.model, weights=base.engine.weights, device=base.engine.device, dtype=base.engine.dtype
        )

    def context_tokens(self, settings: RunSettings) -> int:
        return settings.scheduler.max_model_len or self.model.context_tokens

    def encode(self) -> Encode | None:
        from engines.tokenizers.prompt_encoder import prompt_encoder

        return prompt_encoder(self._base.engine.model, random_weights=self._base.engine.weights == "random")

    def scheduler(self, settings: RunSettings, kv_blocks: int) -> SchedulerConfig:
        made = scheduler_of(settings, kv_blocks, self.context_tokens(settings), self.model.device)
        if settings.scheduler.swap_blocks is not None or not made.swap_blocks:
            return made
        from engines.reference.kv_capacity import swap_blocks_for_host

        return replace(
            made, swap_blocks=min(made.swap_blocks, swap_blocks_for_host(self.model, settings.scheduler.block_size))
        )

    def kv_blocks_in_memory(self, settings: RunSettings) -> int:
        from engines.reference.kv_capacity import GPU_SHARE, default_kv_blocks

        return default_kv_blocks(
            self.model,
            block_size=settings.scheduler.block_size,
            max_num_seqs=settings.scheduler.max_num_seqs,
            max_model_len=self.context_tokens(settings),
            max_num_batched_tokens=budget_tokens(settings, self.model.device),
            attention=settings.engine.attention,
            gpu_memory_utilization=settings.engine.gpu_memory_utilization or GPU_SHARE,
        )

    def kv_blocks(self, settings: RunSettings, most: int | None) -> int:
        """Usable blocks of the pool. most: what the plan's requests can ever need, if that is known."""
        if settings.engine.gpu_memory_utilization is not None and self.model.device == "cpu":
            raise CbbenchError("gpu_memory_utilization", "the model runs on a CPU; `kv_blocks` N sets its KV cache")
        if settings.scheduler.kv_blocks:
            return settings.scheduler.kv_blocks
        blocks = self.kv_blocks_in_memory(settings)
        on_gpu = self.model.device != "cpu"
        if on_gpu and settings.disaggregation.disaggregate:
            blocks = max(1, blocks // 2)  # both pools are in the one GPU's memory
        if most is not None and settings.engine.gpu_memory_utilization is None:
            blocks = min(blocks, most)
        if on_gpu:
            each = " for each instance" if settings.disaggregation.disaggregate else ""
            print(f"{blocks:,} KV blocks of {settings.scheduler.block_size} tokens{each}", file=sys.stderr)
        return blocks

    def engine(self, settings: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.reference.engine import ReferenceEngine

        if settings.disaggregation.disaggregate:
            return self._disaggregated(settings, plan)
        most = blocks_for_every_slot(plan, settings, self.context_tokens(settings))
        scheduler = self.scheduler(settings, self.kv_blocks(settings, most))
        refuse_what_never_fits(settings, plan, scheduler)
        engine = ReferenceEngine(self.model, scheduler, **self._options(settings))
        return engine, info_of("reference", settings, scheduler, self.model.name, self.model.device, engine.describe())

    def _disaggregated(self, settings: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.reference.disaggregated import DisaggregatedReferenceEngine

        most = blocks_for_every_slot(plan, settings, self.context_tokens(settings))
        pair = instances_of(settings, self.scheduler(settings, self.kv_blocks(settings, most)))
        refuse_what_never_fits_two_instances(settings, plan, pair)
        engine = DisaggregatedReferenceEngine(self.model, pair, **self._options(settings))
        return engine, info_of(
            "reference", settings, pair.decode, self.model.name, self.model.device, engine.describe()
        )

    @staticmethod
    def _options(settings: RunSettings) -> dict[str, Any]:
        """What an engine wants to know beside its scheduler."""
        return {
            "prompt_seed": settings.workload.prompt_seed,
            "ignore_eos": settings.workload.ignore_eos,
            "sampling": Sampling(
                settings.workload.temperature,
                settings.workload.top_k,
                settings.workload.top_p,
                seed=settings.workload.prompt_seed,
            ),
            "attention": settings.engine.attention,
            "cuda_graphs": settings.engine.cuda_graphs,
        }
