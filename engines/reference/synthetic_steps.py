"""Synthetic steps: batches of a given shape without real requests, for warm-up and to measure memory and time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engines.scheduling.plan import StepPlan
from engines.scheduling.request import Request


def synthetic_step(counts: Sequence[int]) -> StepPlan:
    """A step with one row per count, each from position 0. It writes to the dummy block only."""
    rows = np.arange(len(counts))
    nothing = np.empty(0, dtype=np.int64)
    return StepPlan(
        step=0,
        now_ns=0,
        requests=[Request(-1, count, 1, prompt=np.zeros(count, dtype=np.int32)) for count in counts],
        slots=rows,
        starts=np.zeros_like(rows),
        counts=np.array(counts),
        padding=np.zeros_like(rows),
        samples=np.ones(len(counts), dtype=np.bool_),
        dead_slots=nothing,
        dead_lengths=nothing,
        dead_tokens=0,
        tables=np.zeros((len(counts), max(counts)), dtype=np.int32),
    )


def largest_step(max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> list[int]:
    """Tokens per row of a step that needs the most memory: the whole budget, in `max_num_seqs` rows."""
    counts, left = [], max_num_batched_tokens
    for others in reversed(range(max_num_seqs)):  # at least one token for each following row
        counts.append(max(min(left - others, max_model_len), 1))
        left -= counts[-1]
    return counts


def warm_up_steps(max_num_seqs: int, prompt_tokens: int, *, every_size: bool = False) -> list[list[int]]:
    """Tokens per row of the steps that do all one-time work: a prompt, a prompt beside a decode, decodes in every slot,
    one decode.

    every_size: prompts of every power of two as well. A GPU's library chooses another kernel by size and loads it at
    its first use.
    """
    sizes = [1 << bit for bit in range(4, (prompt_tokens - 1).bit_length())] if every_size else []
    mixed = [[1, prompt_tokens - 1]] if prompt_tokens > 2 and max_num_seqs > 1 else []
    return [[prompt_tokens], *([size] for size in sizes), *mixed, [1] * max_num_seqs, [1]]
