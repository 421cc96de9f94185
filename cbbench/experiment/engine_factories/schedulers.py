"""The scheduler of an engine of ours, or the two of a disaggregated one, and its entry in run.json."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from cbbench.settings.run import RunSettings
from cbbench.settings.scheduler_config import scheduler_config
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from reports.schema import EngineInfo
from workloads.errors import CbbenchError

BUDGET_TOKENS = {"cpu": 512, "cuda": 8192}


def scheduler_of(settings: RunSettings, kv_blocks: int, max_model_len: int, device: str) -> SchedulerConfig:
    return scheduler_config(
        settings,
        kv_blocks=kv_blocks,
        max_model_len=max_model_len,
        max_num_batched_tokens=budget_tokens(settings, device),
    )


def instances_of(settings: RunSettings, scheduler: SchedulerConfig) -> DisaggregatedConfig:
    """The scheduler that was asked for, to decode, and one beside it that computes prompts."""
    slots = settings.disaggregation.prefill_max_num_seqs or scheduler.max_num_seqs
    budget = settings.disaggregation.prefill_max_num_batched_tokens or max(scheduler.max_num_batched_tokens, slots)
    if budget < slots:
        raise CbbenchError(
            "prefill_max_num_batched_tokens",
            f"{budget} is less than the {slots} slots of the prefill instance, so a "
            f"full batch could not decode; raise it to at least {slots}",
        )
    prefill = replace(
        scheduler,
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        kv_blocks=settings.disaggregation.prefill_kv_blocks or scheduler.kv_blocks,
    )
    return DisaggregatedConfig(prefill, scheduler)


def budget_tokens(settings: RunSettings, device: str) -> int:
    # A default must not contradict a setting: every slot gets a token per step.
    return settings.scheduler.max_num_batched_tokens or max(BUDGET_TOKENS[device], settings.scheduler.max_num_seqs)


def info_of(
    kind: str, settings: RunSettings, scheduler: SchedulerConfig, model: str, device: str, described: dict[str, Any]
) -> EngineInfo:
    described = asdict(scheduler) | {"admission": scheduler.effective_admission} | described
    return EngineInfo(kind=kind, mode=settings.scheduler.mode, model=model, device=device, config=described)
