"""What a run and the points of a sweep share: the model, loaded once, and the engines and plans made for it."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cbbench.config import RunConfig, UsageError
from engines.base import Engine
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Sampling
from reports.schema import Criteria, EngineInfo, PacingInfo, WorkloadInfo
from workloads.plan import IntColumn, RequestPlan
from workloads.spec import build_plan
from workloads.statistics import realised

if TYPE_CHECKING:
    from engines.reference.model.weights import LoadedModel

BUDGET_TOKENS = {"cpu": 512, "cuda": 8192}


class Bench:
    """Model settings (model, weights, device, dtype) come from `base`; everything else from the config of each run."""

    def __init__(self, base: RunConfig) -> None:
        self._base = base

    @cached_property
    def model(self) -> LoadedModel:
        from engines.reference import load_model

        base = self._base
        return load_model(base.model, weights=base.weights, device=base.device, dtype=base.dtype)

    def context_tokens(self, config: RunConfig) -> int:
        """Longest prompt + output a request may have."""
        return config.max_model_len or self.model.context_tokens

    def plan(self, config: RunConfig) -> RequestPlan:
        return build_plan(
            config.workload,
            num_requests=config.num_requests,
            seed=config.seed,
            arrival=config.arrival or "poisson",
            max_model_len=self.context_tokens(config),
            misfit=config.misfit,
        )

    def engine(self, config: RunConfig, plan: RequestPlan) -> tuple[Engine, EngineInfo]:
        """An engine with these settings on the shared model, and what run.json says of it."""
        from engines.reference.engine import ReferenceEngine

        scheduler = config.scheduler(
            kv_blocks=config.kv_blocks or self._default_blocks(config, plan),
            max_model_len=self.context_tokens(config),
            # A default must not contradict a flag: every seat gets a token per step.
            max_num_batched_tokens=config.max_num_batched_tokens
            or max(BUDGET_TOKENS[self.model.device], config.max_num_seqs),
        )
        if config.misfit == "error":
            refuse_what_never_fits(plan, scheduler)
        engine = ReferenceEngine(
            self.model,
            scheduler,
            prompt_seed=config.prompt_seed,
            ignore_eos=config.ignore_eos,
            sampling=Sampling(config.temperature, config.top_k, config.top_p, seed=config.prompt_seed),
        )
        info = EngineInfo(
            kind="reference",
            mode=config.mode,
            model=self.model.name,
            device=self.model.device,
            config=asdict(scheduler) | {"admission": scheduler.effective_admission} | engine.describe(),
        )
        return engine, info

    def _default_blocks(self, config: RunConfig, plan: RequestPlan) -> int:
        """Memory is no limit unless --kv-blocks, or this machine, says so."""
        from engines.reference.engine import default_kv_blocks

        context = self.context_tokens(config)
        in_memory = default_kv_blocks(
            self.model, block_size=config.block_size, max_num_seqs=config.max_num_seqs, max_model_len=context
        )
        return min(blocks_for_every_seat(plan, config, context), in_memory)


def blocks_of_requests(plan: RequestPlan, block_size: int) -> IntColumn:
    """KV blocks each request needs at its end: the last token is never fed back, hence the -1."""
    return -(-(plan.prompt_tokens + plan.output_tokens - 1) // block_size)


def blocks_for_every_seat(plan: RequestPlan, config: RunConfig, max_model_len: int) -> int:
    """KV blocks with which no mix of the plan's requests in the seats ever runs short."""
    possible = plan.prompt_tokens + plan.output_tokens <= max_model_len  # the others are rejected at once
    blocks = np.sort(blocks_of_requests(plan, config.block_size)[possible])
    largest = max(int(blocks[-config.max_num_seqs :].sum()), 1)
    return math.ceil(largest / (1 - config.watermark / 100)) + 1


def refuse_what_never_fits(plan: RequestPlan, scheduler: SchedulerConfig) -> None:
    """UsageError, before the run, where the whole KV pool is too small for a single request."""
    needed = blocks_of_requests(plan, scheduler.block_size)
    misfits = np.flatnonzero(needed > scheduler.kv_blocks)
    if misfits.size:
        first = int(misfits[0])
        raise UsageError(
            f"--kv-blocks {scheduler.kv_blocks}: too few for {misfits.size} of {len(plan)} requests; the first, "
            f"request {first}, needs {needed[first]} blocks of {scheduler.block_size} tokens "
            "(--misfit reject runs the others)"
        )


def rate_per_s(config: RunConfig, plan: RequestPlan) -> float | None:
    """The rate asked for, or a trace's own; None where requests follow no schedule."""
    if config.rate is None and config.arrival == "trace":
        return float(plan.notes["trace_rate_per_s"])
    return config.rate


def describe_workload(config: RunConfig, plan: RequestPlan) -> WorkloadInfo:
    return WorkloadInfo(
        spec=plan.spec,
        seed=plan.seed,
        sha256=plan.sha256,
        num_requests=len(plan),
        prompt_seed=config.prompt_seed,
        realised=realised(plan),
        pacing=PacingInfo(
            rate_per_s=rate_per_s(config, plan),
            concurrency=config.concurrency,
            duration_s=config.duration,
            drain_s=config.drain,
            arrival=config.arrival or (None if config.rate is None else "poisson"),
        ),
    )


def criteria_of(config: RunConfig) -> Criteria:
    return Criteria(config.sla, config.confidence, config.max_failure_rate)
