"""The ledger: per step, where launched tokens, slots and KV blocks went. Three identities hold in every row:

launched_tokens = useful + prompt_padding + bucket_padding + dead_row + recomputed + discarded
max_num_seqs    = active_slots + dead_slots + idle_slots
kv_blocks       = kv_used + kv_reserved + kv_pending + kv_cached + kv_free
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Blocked(IntEnum):
    """Why the head of the waiting queue was not admitted in a step."""

    NO = 0  # no request waits, or all that could be were admitted
    ROWS = 1  # every slot is taken
    TOKENS = 2  # the step's token budget is spent
    KV = 3  # not enough free KV blocks
    WATERMARK = 4  # free KV blocks would fall under the watermark
    BATCH = 5  # static batching: the running batch must end first
    PREEMPTED = 6  # a request was preempted in this step, so none is admitted
    QUOTA = 7  # the tenant is at its limit
    PEAK = 8  # the predicted peak of the batch with it does not fit the KV pool
    PATIENCE = 9  # static batching: the batch is not full yet and may still wait for more
    PARTIAL = 10  # as many prompts are partly computed as may be at a time


LEDGER = np.dtype(
    [
        ("step", "<i8"),  # counts from 1
        ("now_ns", "<i8"),  # the time given to schedule()
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("busy_ns", "<i8"),  # between the first and the last of the step's work on the device
        ("launched_tokens", "<i8"),
        ("useful_tokens", "<i8"),
        ("prompt_padding_tokens", "<i8"),
        ("bucket_padding_tokens", "<i8"),
        ("dead_row_tokens", "<i8"),
        ("recomputed_tokens", "<i8"),
        ("discarded_tokens", "<i8"),
        ("prefix_hit_tokens", "<i8"),  # not computed, as another request's blocks held them
        ("resume_hit_tokens", "<i8"),  # not computed again after a preemption, as the cache still held them
        ("kv_positions", "<i8"),  # positions that running requests hold in KV after the step
        ("decode_kv_positions", "<i8"),  # of these, read by rows with a single token; and by dead rows
        ("prefill_kv_positions", "<i8"),  # positions in KV in front of the chunks (rows with more than one token)
        ("prefill_pairs", "<i8"),  # (query, key) pairs of the chunks: count * start + count * (count + 1) / 2
        ("sampled_tokens", "<i8"),  # output tokens delivered by this step
        ("budget_unused_tokens", "<i8"),
        ("prefill_rows", "<i4"),
        ("decode_rows", "<i4"),
        ("active_slots", "<i4"),
        ("dead_slots", "<i4"),
        ("idle_slots", "<i4"),
        ("kv_used_blocks", "<i4"),  # in a block table
        ("kv_reserved_blocks", "<i4"),  # set aside for a running request, not yet taken
        ("kv_pending_blocks", "<i4"),  # released, but a launched step may still write them
        ("kv_cached_blocks", "<i4"),
        ("kv_free_blocks", "<i4"),
        ("running", "<i4"),  # unfinished requests with a slot, after the step was planned
        ("waiting", "<i4"),
        ("admitted", "<i4"),
        ("preempted", "<i4"),  # lost their slot: to be computed again, or swapped out
        ("evicted_tokens", "<i8"),  # KV positions thrown away by that
        ("swapped_in", "<i4"),
        ("swapped_out", "<i4"),
        ("swap_in_blocks", "<i4"),
        ("swap_out_blocks", "<i4"),
        ("rejected", "<i4"),
        ("blocked", "<i4"),  # a Blocked
        ("instance", "<i4"),  # which of several launched the step: an INSTANCES
        ("kv_kept_blocks", "<i4"),  # of kv_used: of requests that went on elsewhere, until their KV has arrived there
        ("transfers", "<i4"),  # requests of the prefill instance that were admitted, their KV on its way
        ("transfer_blocks", "<i4"),
        # from the end of the step's launch to that of its work on the device, at least 1; 0 where the host computes it
        ("host_ahead_ns", "<i8"),
    ]
)
LAUNCH_BOUND_NS = 100_000  # a device that ends within this after the last launch has waited for launches

KV_KINDS = ("used", "reserved", "pending", "cached", "free")
INSTANCES = ("prefill", "decode")  # of a disaggregated engine; any other is instance 0 alone
WASTE = ("prompt_padding_tokens", "bucket_padding_tokens", "dead_row_tokens", "recomputed_tokens", "discarded_tokens")

StepArray = NDArray[np.void]  # structured, dtype LEDGER


def launch_bound(steps: StepArray) -> NDArray[np.bool_]:
    """Of each step: whether the device waited for the host's launches while the step counted as busy."""
    ahead_ns = steps["host_ahead_ns"]
    bound: NDArray[np.bool_] = (ahead_ns > 0) & (ahead_ns <= LAUNCH_BOUND_NS)
    return bound


def computing_ns(steps: StepArray) -> NDArray[np.int64]:
    """Of each step: the time the device worked; 0 if it was launch-bound, as how much of it was waiting is unknown."""
    computing: NDArray[np.int64] = np.where(launch_bound(steps), 0, steps["busy_ns"])
    return computing


def kv_usage(steps: StepArray) -> NDArray[np.float64]:
    """Of each step: the share of the usable KV blocks in use, reserved, or released behind a fence."""
    used = steps["kv_used_blocks"] + steps["kv_reserved_blocks"] + steps["kv_pending_blocks"]
    usage: NDArray[np.float64] = used / np.maximum(used + steps["kv_cached_blocks"] + steps["kv_free_blocks"], 1)
    return usage


def kv_levels(steps: StepArray) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """KV usage of one instance over wall time: it is level[k] from at_ns[k] on, and 0 before the first and after the
    last.

    What a step planned holds until the next step starts. But a step that runs only what it admitted came after an idle
    time, or right behind the end of all others: no request held KV from the end of the step before, except those whose
    KV was kept for another instance.
    """
    if not steps.size:
        return np.empty(0, np.int64), np.empty(0)
    start_ns, end_ns = steps["start_ns"], steps["end_ns"]
    next_ns = np.append(start_ns[1:], end_ns[-1])
    alone = np.append(steps["running"][1:] == steps["admitted"][1:], True)
    total = sum(int(steps[0][f"kv_{kind}_blocks"]) for kind in KV_KINDS)
    kept = np.append(steps["kv_kept_blocks"][1:], 0) / max(total, 1)
    at_ns = np.column_stack([start_ns, np.where(alone, np.minimum(end_ns, next_ns), next_ns)]).reshape(-1)
    level = np.column_stack([kv_usage(steps), np.where(alone, kept, 0.0)]).reshape(-1)
    level[-1] = 0.0
    return np.maximum.accumulate(at_ns), level
