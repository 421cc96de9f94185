"""The scheduler that the settings describe."""

from __future__ import annotations

from cbbench.settings.run import RunSettings
from engines.scheduling.config import SchedulerConfig


def scheduler_config(
    settings: RunSettings, *, kv_blocks: int, max_model_len: int, max_num_batched_tokens: int
) -> SchedulerConfig:
    """The arguments depend on model, memory and plan. CbbenchError if settings conflict."""
    chosen = settings.scheduler
    return SchedulerConfig(
        kv_blocks=kv_blocks,
        max_model_len=max_model_len,
        max_num_seqs=chosen.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=chosen.block_size,
        mode=chosen.mode,
        chunked_prefill=chosen.chunked_prefill is not False,
        prefill=chosen.prefill or "decode-first",
        static=chosen.static or "padded",
        max_prompt_chunk=chosen.max_prompt_chunk,
        max_num_partial_prefills=chosen.max_num_partial_prefills,
        max_long_partial_prefills=chosen.max_long_partial_prefills,
        prompt_buckets=() if chosen.prompt_buckets is None else chosen.prompt_buckets.lengths,
        static_patience_s=chosen.static_patience or 0.0,
        order=chosen.order,
        ageing=chosen.ageing,
        skip_ahead=chosen.skip_ahead,
        preempt_for_priority=chosen.preempt_for_priority,
        admission=chosen.admission,
        watermark=chosen.watermark / 100,
        on_kv_pressure=chosen.on_kv_pressure,
        victim=chosen.victim,
        swap_blocks=chosen.swap_blocks or (kv_blocks if chosen.on_kv_pressure == "swap" else 0),
        prefix_caching=chosen.prefix_caching,
        quotas={one.tenant: one.limits for one in chosen.quota},
        tenant_weights={one.tenant: one.weight for one in chosen.tenant_weight},
    )
