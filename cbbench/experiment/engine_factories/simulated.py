"""The simulator: our scheduler on a virtual clock, on one instance or on two."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cbbench.experiment.engine_factories.schedulers import budget_tokens, info_of, pair_of, scheduler_of
from cbbench.experiment.kv_demand import blocks_for_every_seat, refuse_what_never_fits, refuse_what_never_fits_a_pair
from cbbench.settings.run import RunSettings
from engines.base import Engine
from reports.schema import EngineInfo
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan
from workloads.prompt_texts import Encode

if TYPE_CHECKING:
    from engines.simulated.data_sheet import Deployment
    from engines.simulated.step_time import StepTimeModel


def deployment_of(config: RunSettings) -> Deployment | None:
    """The GPUs that were asked for; None where the step times are of a run."""
    from engines.simulated.data_sheet import Deployment

    engine = config.engine
    if engine.hardware is None:
        return None
    return Deployment(
        hardware=engine.hardware, gpus=engine.tensor_parallel, weights=engine.weights_dtype, kv=engine.kv_dtype
    )


class Simulated:
    def __init__(self, base: RunSettings) -> None:
        self._base = base

    @cached_property
    def law(self) -> StepTimeModel:
        from engines.simulated.selection import select_step_times

        base = self._base
        path = base.engine.step_time_model
        return select_step_times(Path(path) if path else None, base.engine.model, deployment_of(base))

    def encode(self) -> Encode | None:
        """By the tokenizer of the model that the law is of."""
        from engines.tokenizers.prompt_encoder import prompt_encoder

        return prompt_encoder(self.law.origin.model or self._base.engine.model, random_weights=False)

    def context_tokens(self, config: RunSettings) -> int:
        from engines.simulated.selection import default_context_tokens

        known = default_context_tokens(self.law, config.engine.model)
        if config.scheduler.max_model_len and config.scheduler.max_model_len > known:
            raise CbbenchError(
                "max_model_len", f"the model has a context of {known} tokens, got {config.scheduler.max_model_len}"
            )
        return config.scheduler.max_model_len or known

    def engine(self, config: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.simulated.disaggregated import SimulatedDisaggregatedEngine
        from engines.simulated.engine import SimulatedEngine
        from engines.simulated.selection import (
            default_kv_blocks,
            kv_link_bytes_per_s,
            refuse_free_swaps,
            refuse_untokenised,
        )

        refuse_untokenised(plan, prefix_caching=config.scheduler.prefix_caching)
        if config.scheduler.on_kv_pressure == "swap":
            refuse_free_swaps(self.law)
        law = self.law.with_blocks_of(config.scheduler.block_size)
        context = self.context_tokens(config)
        device = "cpu" if self.law.origin.device == "cpu" else "cuda"  # a law's device may be a GPU's name
        blocks = config.scheduler.kv_blocks or default_kv_blocks(
            law,
            config.engine.model,
            deployment_of(config),
            block_size=config.scheduler.block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=budget_tokens(config, device),
            memory_share=config.engine.gpu_memory_utilization,
        )
        scheduler = scheduler_of(config, blocks or blocks_for_every_seat(plan, config, context), context, device)
        model, device = self.law.origin.model or config.engine.model, config.engine.hardware or device
        if config.disaggregation.disaggregate:
            pair = pair_of(config, scheduler)
            refuse_what_never_fits_a_pair(config, plan, pair)
            link_bytes_per_s = kv_link_bytes_per_s(law, config.engine.hardware, config.disaggregation.kv_link_gb_per_s)
            two = SimulatedDisaggregatedEngine(pair, law, link_bytes_per_s, law.origin.kv_bytes_per_token or 0)
            return two, info_of("simulated", config, scheduler, model, device, two.describe())
        refuse_what_never_fits(config, plan, scheduler)
        engine = SimulatedEngine(scheduler, law)
        return engine, info_of("simulated", config, scheduler, model, device, engine.describe())
