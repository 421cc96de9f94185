"""Synthetic warm-up steps: a step of a given shape without requests, to measure its time and memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engines.scheduling.plan import StepPlan
from engines.scheduling.request import Request


def synthetic_step(counts: Sequence[int]) -> StepPlan:
    """A step of one row per count, each from position 0. It writes to the dummy block only."""
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
    """Tokens per row of a step that needs the most memory: the whole budget, in max_num_seqs rows."""
    counts, left = [], max_num_batched_tokens
    for others in reversed(range(max_num_seqs)):  # each row that follows gets at least one token
        counts.append(max(min(left - others, max_model_len), 1))
        left -= counts[-1]
    return counts


def warm_up_steps(max_num_seqs: int, prompt_tokens: int, *, every_size: bool = False) -> list[list[int]]:
    """Tokens per row of steps after which no other step meets anything for the first time: a prompt, a prompt beside a
    decode, decodes in every seat, one decode.

    every_size: prompts of any length too. A GPU's library has matrix products of its own for each size, and loads one
    when it is first asked for.
    """
    sizes = [1 << bit for bit in range(4, (prompt_tokens - 1).bit_length())] if every_size else []
    mixed = [[1, prompt_tokens - 1]] if prompt_tokens > 2 and max_num_seqs > 1 else []
    return [[prompt_tokens], *([size] for size in sizes), *mixed, [1] * max_num_seqs, [1]]
