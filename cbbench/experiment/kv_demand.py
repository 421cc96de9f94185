"""How many KV blocks a plan's requests need: the pool's default size, and what no pool of that size can hold."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cbbench.settings.run import RunSettings
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan


def blocks_of_requests(plan: RequestPlan, block_size: int) -> IntColumn:
    """KV blocks each request needs at its end: the last token is never fed back, hence the -1."""
    return -(-(plan.prompt_tokens + plan.output_tokens - 1) // block_size)


def blocks_for_every_slot(plan: RequestPlan, settings: RunSettings, max_model_len: int) -> int:
    """KV blocks with which no mix of the plan's requests in the slots ever runs short."""
    possible = plan.prompt_tokens + plan.output_tokens <= max_model_len  # the others are rejected at once
    blocks = np.sort(blocks_of_requests(plan, settings.scheduler.block_size)[possible])
    largest = max(int(blocks[-settings.scheduler.max_num_seqs :].sum()), 1)
    return math.ceil(largest / (1 - settings.scheduler.watermark / 100)) + 1


def refuse_what_never_fits(settings: RunSettings, plan: RequestPlan, scheduler: SchedulerConfig) -> None:
    """CbbenchError, before the run, where the whole KV pool, or all that its tenant may hold of it, is too small for a
    single request."""
    all_of_them = np.ones(len(plan), np.bool_)
    _refuse(settings, plan, scheduler, "kv_blocks", blocks_of_requests(plan, scheduler.block_size), all_of_them)


def refuse_what_never_fits_two_instances(settings: RunSettings, plan: RequestPlan, pair: DisaggregatedConfig) -> None:
    """The same for two pools: one for prompts, one for the requests that have more than one output token."""
    prompts = -(-plan.prompt_tokens // pair.prefill.block_size)
    _refuse(settings, plan, pair.prefill, "prefill_kv_blocks", prompts, np.ones(len(plan), np.bool_))
    whole = blocks_of_requests(plan, pair.decode.block_size)
    _refuse(settings, plan, pair.decode, "kv_blocks", whole, plan.output_tokens > 1)


def _refuse(
    settings: RunSettings,
    plan: RequestPlan,
    scheduler: SchedulerConfig,
    field: str,
    needed: IntColumn,
    come: NDArray[np.bool_],
) -> None:
    if settings.workload.misfit == "reject":
        return
    pools = [(field, "", scheduler.kv_blocks, come)]
    for code, tenant in enumerate(plan.tenants):
        if tenant in scheduler.quotas and (held := scheduler.quotas[tenant].kv_blocks) is not None:
            pools.append(("quota", f"{tenant}:kv-blocks={held} is ", held, come & (plan.tenant == code)))
    for at_fault, given, blocks, concerned in pools:
        misfits = np.flatnonzero(concerned & (needed > blocks))
        if misfits.size:
            first = int(misfits[0])
            raise CbbenchError(
                at_fault,
                f"{given or f'{blocks} is '}too few for {misfits.size} of {np.count_nonzero(concerned)} "
                f"requests; the first, request {first}, needs {needed[first]} blocks of {scheduler.block_size} tokens "
                "(`misfit` reject runs the others)",
            )
