"""The scheduler that an engine of ours gets, or the two of a disaggregated one; and what run.json says of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from cbbench.config import RunConfig, UsageError
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from reports.schema import EngineInfo

BUDGET_TOKENS = {"cpu": 512, "cuda": 8192}


def scheduler_of(config: RunConfig, kv_blocks: int, max_model_len: int, device: str) -> SchedulerConfig:
    return config.scheduler(
        kv_blocks=kv_blocks, max_model_len=max_model_len, max_num_batched_tokens=budget_tokens(config, device)
    )


def pair_of(config: RunConfig, scheduler: SchedulerConfig) -> DisaggregatedConfig:
    """The scheduler that was asked for, to decode, and one beside it that computes prompts."""
    seats = config.prefill_max_num_seqs or scheduler.max_num_seqs
    budget = config.prefill_max_num_batched_tokens or max(scheduler.max_num_batched_tokens, seats)
    if budget < seats:
        raise UsageError(
            f"--prefill-max-num-batched-tokens: {budget} is less than the {seats} seats of the prefill instance, so a "
            f"full batch could not go on; raise it to at least {seats}"
        )
    prefill = replace(
        scheduler,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        kv_blocks=config.prefill_kv_blocks or scheduler.kv_blocks,
    )
    return DisaggregatedConfig(prefill, scheduler)


def budget_tokens(config: RunConfig, device: str) -> int:
    # A default must not contradict a flag: every seat gets a token per step.
    return config.max_num_batched_tokens or max(BUDGET_TOKENS[device], config.max_num_seqs)


def info_of(
    kind: str, config: RunConfig, scheduler: SchedulerConfig, model: str, device: str, described: dict[str, Any]
) -> EngineInfo:
    settings = asdict(scheduler) | {"admission": scheduler.effective_admission} | described
    return EngineInfo(kind=kind, mode=config.mode, model=model, device=device, config=settings)
