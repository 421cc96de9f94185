"""What a run and the points of a sweep share: the model, loaded once, and the engines and plans made for it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cbbench.config import RunConfig
from reports.schema import Criteria, PacingInfo, WorkloadInfo
from workloads.plan import RequestPlan
from workloads.spec import build_plan
from workloads.statistics import realised

if TYPE_CHECKING:
    from engines.reference.engine import LoadedModel

BUDGET_TOKENS = {"cpu": 512, "cuda": 8192}


class Bench:
    """Model settings (model, weights, device, dtype) come from `base`; everything else from the config of each run."""

    def __init__(self, base: RunConfig) -> None:
        self._base = base
        self._plans: dict[tuple[Any, ...], RequestPlan] = {}

    @cached_property
    def model(self) -> LoadedModel:
        from engines.reference import load_model

        return load_model(
            self._base.model, weights=self._base.weights, device=self._base.device, dtype=self._base.dtype
        )

    def plan(self, config: RunConfig) -> RequestPlan:
        context = config.max_model_len or self.model.context_tokens
        return build_plan(
            config.workload,
            num_requests=config.num_requests,
            seed=config.seed,
            arrival=config.arrival,
            max_model_len=context,
            misfit=config.misfit,
        )


def blocks_for_every_seat(plan: RequestPlan, config: RunConfig, max_model_len: int) -> int:
    """KV blocks with which no mix of the plan's requests in the seats ever runs short, so that memory is no limit
    unless --kv-blocks says so."""
    positions = np.minimum(plan.prompt_tokens + plan.output_tokens, max_model_len) - 1
    blocks = -(-positions // config.block_size)
    largest = int(np.sort(blocks)[-config.max_num_seqs :].sum())
    return int(np.ceil(largest / (1 - config.watermark / 100))) + 1


def describe_workload(config: RunConfig, plan: RequestPlan) -> WorkloadInfo:
    return WorkloadInfo(
        spec=plan.spec,
        seed=plan.seed,
        sha256=plan.sha256,
        num_requests=len(plan),
        prompt_seed=config.prompt_seed,
        realised=realised(plan),
        pacing=PacingInfo(
            rate_per_s=config.rate,
            concurrency=config.concurrency,
            duration_s=config.duration,
            drain_s=config.drain,
            arrival=config.arrival,
        ),
    )


def criteria_of(config: RunConfig) -> Criteria:
    return Criteria(config.sla, config.confidence, config.max_failure_rate)
