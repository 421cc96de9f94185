"""The simulator: our scheduler on a virtual clock, on one instance or on two."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cbbench.experiment.engine_factories.schedulers import budget_tokens, info_of, instances_of, scheduler_of
from cbbench.experiment.kv_demand import (
    blocks_for_every_slot,
    refuse_what_never_fits,
    refuse_what_never_fits_two_instances,
)
from cbbench.settings.run import RunSettings
from engines.base import Engine
from reports.schema import EngineInfo
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan
from workloads.prompt_texts import Encode

if TYPE_CHECKING:
    from engines.simulated.data_sheet import Deployment
    from engines.simulated.step_time import StepTimeModel


def deployment_of(settings: RunSettings) -> Deployment | None:
    """The GPUs that were asked for; None where the step times are of a run."""
    from engines.simulated.data_sheet import Deployment
    from engines.simulated.speculation import SpeculationTerms

    engine = settings.engine
    if engine.hardware is None:
        return None
    speculation = None
    if engine.speculative_tokens is not None:
        speculation = SpeculationTerms(
            draft_tokens=engine.speculative_tokens, acceptance=engine.acceptance, draft_cost=engine.draft_cost
        )
    return Deployment(
        hardware=engine.hardware,
        gpus=engine.tensor_parallel,
        weights=engine.weights_dtype,
        kv=engine.kv_dtype,
        host_floor_ms=engine.host_floor_ms,
        speculation=speculation,
    )


class SimulatedFactory:
    def __init__(self, base: RunSettings, *, many_runs: bool = False) -> None:
        self._base = base
        self._many_runs = many_runs

    @cached_property
    def step_times(self) -> StepTimeModel:
        from engines.simulated.selection import select_step_times

        base = self._base
        path = base.engine.step_time_model
        return select_step_times(Path(path) if path else None, base.engine.model, deployment_of(base))

    def encode(self) -> Encode | None:
        """By the tokenizer of the model that the step times are of."""
        from engines.tokenizers.prompt_encoder import prompt_encoder

        return prompt_encoder(self.step_times.origin.model or self._base.engine.model, random_weights=False)

    def context_tokens(self, settings: RunSettings) -> int:
        from engines.simulated.selection import default_context_tokens

        known = default_context_tokens(self.step_times, settings.engine.model)
        if settings.scheduler.max_model_len and settings.scheduler.max_model_len > known:
            raise CbbenchError(
                "max_model_len", f"the model has a context of {known} tokens, got {settings.scheduler.max_model_len}"
            )
        return settings.scheduler.max_model_len or known

    def engine(self, settings: RunSettings, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        from engines.simulated.compiled_run import MIN_REQUESTS
        from engines.simulated.disaggregated import SimulatedDisaggregatedEngine
        from engines.simulated.engine import SimulatedEngine
        from engines.simulated.selection import (
            default_kv_blocks,
            kv_link_bytes_per_s,
            refuse_free_swaps,
            refuse_untokenised,
        )

        refuse_untokenised(plan, prefix_caching=settings.scheduler.prefix_caching)
        if settings.scheduler.on_kv_pressure == "swap":
            refuse_free_swaps(self.step_times)
        step_times = self.step_times.with_blocks_of(settings.scheduler.block_size)
        context = self.context_tokens(settings)
        device = "cpu" if self.step_times.origin.device == "cpu" else "cuda"  # its device may be a GPU's name
        blocks = settings.scheduler.kv_blocks or default_kv_blocks(
            step_times,
            settings.engine.model,
            deployment_of(settings),
            block_size=settings.scheduler.block_size,
            max_num_seqs=settings.scheduler.max_num_seqs,
            max_num_batched_tokens=budget_tokens(settings, device),
            memory_share=settings.engine.gpu_memory_utilization,
        )
        scheduler = scheduler_of(settings, blocks or blocks_for_every_slot(plan, settings, context), context, device)
        model, device = self.step_times.origin.model or settings.engine.model, settings.engine.hardware or device
        if settings.disaggregation.disaggregate:
            pair = instances_of(settings, scheduler)
            refuse_what_never_fits_two_instances(settings, plan, pair)
            link_bytes_per_s = kv_link_bytes_per_s(
                step_times, settings.engine.hardware, settings.disaggregation.kv_link_gb_per_s
            )
            two = SimulatedDisaggregatedEngine(
                pair, step_times, link_bytes_per_s, step_times.origin.kv_bytes_per_token or 0
            )
            return two, info_of("simulated", settings, scheduler, model, device, two.describe())
        refuse_what_never_fits(settings, plan, scheduler)
        least = 0 if self._many_runs else MIN_REQUESTS
        engine = SimulatedEngine(scheduler, step_times, least_compiled_requests=least)
        return engine, info_of(
            "simulated", settings, scheduler, model, device, engine.describe(plan, settings.load.duration)
        )
