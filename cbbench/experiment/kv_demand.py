"""How many KV blocks a plan's requests need: the pool's default size, and what no pool of that size can hold."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cbbench.config import RunConfig, UsageError
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from workloads.columns import IntColumn
from workloads.plan import RequestPlan


def blocks_of_requests(plan: RequestPlan, block_size: int) -> IntColumn:
    """KV blocks each request needs at its end: the last token is never fed back, hence the -1."""
    return -(-(plan.prompt_tokens + plan.output_tokens - 1) // block_size)


def blocks_for_every_seat(plan: RequestPlan, config: RunConfig, max_model_len: int) -> int:
    """KV blocks with which no mix of the plan's requests in the seats ever runs short."""
    possible = plan.prompt_tokens + plan.output_tokens <= max_model_len  # the others are rejected at once
    blocks = np.sort(blocks_of_requests(plan, config.block_size)[possible])
    largest = max(int(blocks[-config.max_num_seqs :].sum()), 1)
    return math.ceil(largest / (1 - config.watermark / 100)) + 1


def refuse_what_never_fits(config: RunConfig, plan: RequestPlan, scheduler: SchedulerConfig) -> None:
    """UsageError, before the run, where the whole KV pool, or all that its tenant may hold of it, is too small for a
    single request."""
    all_of_them = np.ones(len(plan), np.bool_)
    _refuse(config, plan, scheduler, "--kv-blocks", blocks_of_requests(plan, scheduler.block_size), all_of_them)


def refuse_what_never_fits_a_pair(config: RunConfig, plan: RequestPlan, pair: DisaggregatedConfig) -> None:
    """The same for two pools: one for prompts, one for the requests that have more than one output token."""
    prompts = -(-plan.prompt_tokens // pair.prefill.block_size)
    _refuse(config, plan, pair.prefill, "--prefill-kv-blocks", prompts, np.ones(len(plan), np.bool_))
    whole = blocks_of_requests(plan, pair.decode.block_size)
    _refuse(config, plan, pair.decode, "--kv-blocks", whole, plan.output_tokens > 1)


def _refuse(
    config: RunConfig,
    plan: RequestPlan,
    scheduler: SchedulerConfig,
    name: str,
    needed: IntColumn,
    come: NDArray[np.bool_],
) -> None:
    if config.misfit == "reject":
        return
    pools = [(f"{name} {scheduler.kv_blocks}", scheduler.kv_blocks, come)]
    for code, tenant in enumerate(plan.tenants):
        if tenant in scheduler.quotas and (held := scheduler.quotas[tenant].kv_blocks) is not None:
            pools.append((f"--quota {tenant}:kv-blocks={held}", held, come & (plan.tenant == code)))
    for flag, blocks, concerned in pools:
        misfits = np.flatnonzero(concerned & (needed > blocks))
        if misfits.size:
            first = int(misfits[0])
            raise UsageError(
                f"{flag}: too few for {misfits.size} of {np.count_nonzero(concerned)} requests; the first, request "
                f"{first}, needs {needed[first]} blocks of {scheduler.block_size} tokens "
                "(--misfit reject runs the others)"
            )
