"""StepLedger: fills one ledger row, first when a step is launched and again when its result is in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.ledger import LEDGER, Blocked
from engines.scheduling.kv import KVManager
from engines.scheduling.plan import IntArray, StepPlan, StepResult
from engines.scheduling.slots import Slots


@dataclass(slots=True)
class Traffic:
    """What happened to requests since the last launched step; columns of its ledger row."""

    admitted: int = 0
    preempted: int = 0
    swapped_out: int = 0  # of those, with their KV moved to the host
    evicted_tokens: int = 0  # KV positions that preemptions threw away, to be computed again
    swapped_in: int = 0
    rejected: int = 0
    prefix_hit_tokens: int = 0
    resume_hit_tokens: int = 0
    blocked: Blocked = Blocked.NO
    transfers: int = 0  # admitted, with KV that comes from another instance
    transfer_blocks: int = 0


class StepLedger:
    """The ledger row of one step. Tokens count as useful until their request turns out to have ended already."""

    __slots__ = ("_counts", "_recomputed", "row")

    def __init__(
        self,
        plan: StepPlan,
        slots: Slots,
        kv: KVManager,
        traffic: Traffic,
        *,
        waiting: int,
        budget_unused: int,
        instance: int,
    ) -> None:
        """Before the plan's tokens count as computed in `slots`."""
        planned, starts, counts = plan.slots, plan.starts, plan.counts
        num_dead = len(plan.dead_slots)
        computed_tokens = int(counts.sum())
        recomputed = np.clip(slots.peak[planned] - starts, 0, counts) if slots.num_resumed else None
        recomputed_tokens = 0 if recomputed is None else int(recomputed.sum())
        decode_rows = int(np.count_nonzero((starts >= slots.prompt[planned]) & (counts == 1)))
        pairs = counts * starts + counts * (counts + 1) // 2
        num_pairs, prefill_pairs, prefill_kv = int(pairs.sum()), 0, 0
        if computed_tokens != len(counts):
            chunk = counts > 1
            prefill_pairs, prefill_kv = int(pairs[chunk].sum()), int(starts[chunk].sum())
        row = np.zeros((), LEDGER)
        row["step"] = plan.step
        row["now_ns"] = plan.now_ns
        row["recomputed_tokens"] = recomputed_tokens
        row["useful_tokens"] = computed_tokens - recomputed_tokens
        row["prompt_padding_tokens"] = padding_tokens = int(plan.padding.sum())
        row["dead_row_tokens"] = dead_tokens = num_dead * plan.dead_tokens
        row["launched_tokens"] = computed_tokens + padding_tokens + dead_tokens
        row["budget_unused_tokens"] = budget_unused
        row["decode_rows"] = decode_rows
        row["prefill_rows"] = len(planned) - decode_rows
        row["active_slots"] = row["running"] = slots.num_active
        row["dead_slots"] = num_dead
        row["idle_slots"] = slots.num_slots - slots.num_active - num_dead
        row["kv_used_blocks"] = kv.num_used
        row["kv_reserved_blocks"] = kv.num_reserved
        row["kv_pending_blocks"] = kv.pool.num_pending
        row["kv_cached_blocks"] = cached = min(kv.pool.num_cached, kv.available)  # the rest is reserved
        row["kv_free_blocks"] = kv.available - cached
        if kv.num_kept:
            row["kv_kept_blocks"] = kv.num_kept
        row["kv_positions"] = int(slots.computed[slots.active].sum()) + computed_tokens
        row["decode_kv_positions"] = num_pairs - prefill_pairs + int(plan.dead_lengths.sum())
        row["prefill_kv_positions"] = prefill_kv
        row["prefill_pairs"] = prefill_pairs
        row["waiting"] = waiting
        row["swap_out_blocks"] = len(plan.swap_out)
        row["swap_in_blocks"] = len(plan.swap_in)
        for name in Traffic.__slots__:
            if value := getattr(traffic, name):  # most are 0 in most steps, and so is the row
                row[name] = value
        if instance:
            row["instance"] = instance
        self.row = row
        self._counts: IntArray = counts
        self._recomputed: IntArray | None = recomputed

    def discard(self, row_numbers: list[int]) -> None:
        """The requests of these rows had ended before the result came: their tokens are discarded."""
        recomputed = 0 if self._recomputed is None else int(self._recomputed[row_numbers].sum())
        discarded = int(self._counts[row_numbers].sum())
        self.row["discarded_tokens"] += discarded
        self.row["recomputed_tokens"] -= recomputed
        self.row["useful_tokens"] -= discarded - recomputed

    def close(self, result: StepResult, delivered: int) -> None:
        self.row["start_ns"] = result.start_ns
        self.row["end_ns"] = result.end_ns
        self.row["busy_ns"] = result.busy_ns
        self.row["host_ahead_ns"] = result.host_ahead_ns
        self.row["bucket_padding_tokens"] = result.bucket_padding_tokens
        self.row["launched_tokens"] += result.bucket_padding_tokens
        self.row["sampled_tokens"] = delivered
