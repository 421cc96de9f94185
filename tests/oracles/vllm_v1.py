"""A small simulator of vLLM v1's scheduler, to compare ours with. It shares no code with engines/.

Written from the published algorithm, vllm/v1/core/sched/scheduler.py (`schedule`, `_preempt_request`) and
core/kv_cache_manager.py (`allocate_slots`), for text models without prefix cache, LoRA, speculation or connectors:

1. Running requests, in list order, while tokens are left: each takes what it wants, at most `chunk` and what is left,
   and the blocks for it. Where no block is free the last of the list loses its blocks and goes back to the front of
   the queue, until there is one; a request that has to take its own place ends the walk.
2. If none was preempted: waiting requests from the front, while tokens and places are left. The whole sequence must
   fit the free blocks less the watermark (`whole_must_fit`), but only the blocks of the first chunk are taken. The
   first that does not fit ends the walk.
3. What is scheduled counts as computed; a request whose known tokens are all computed gets one more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engines.simulated.step_time import FittedStepTimes


@dataclass(frozen=True)
class Settings:
    num_seqs: int
    budget: int  # tokens of a step
    blocks: int  # usable
    block_size: int
    chunk: int = 0  # long_prefill_token_threshold; 0: none
    watermark_blocks: int = 0
    whole_must_fit: bool = True  # scheduler_reserve_full_isl


@dataclass
class Sequence:
    index: int
    prompt: int
    outputs_wanted: int
    arrives_ns: int
    outputs: int = 0
    computed: int = 0
    blocks: int = 0
    token_steps: list[int] = field(default_factory=list)
    admitted_steps: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.prompt + self.outputs


@dataclass(frozen=True)
class Step:
    start_ns: int
    end_ns: int
    tokens: int
    preempted: int


def simulate(settings: Settings, times: FittedStepTimes, sequences: list[Sequence]) -> list[Step]:
    """All steps; the sequences tell in which they were admitted and got their tokens (from 1)."""
    coming = deque(sorted(sequences, key=lambda one: (one.arrives_ns, one.index)))
    waiting: deque[Sequence] = deque()
    running: list[Sequence] = []
    steps: list[Step] = []
    now_ns = 0
    while coming or waiting or running:
        while coming and coming[0].arrives_ns <= now_ns:
            waiting.append(coming.popleft())
        if not waiting and not running:
            now_ns = coming[0].arrives_ns
            continue
        shares, preempted = _schedule(settings, waiting, running, len(steps) + 1)
        rows = [(one.computed, tokens) for one, tokens in shares]
        start_ns = now_ns + _gap_ns(times, len(rows))
        now_ns = start_ns + _duration_ns(times, rows)
        steps.append(Step(start_ns, now_ns, sum(tokens for _, tokens in shares), preempted))
        for one, tokens in shares:
            one.computed += tokens
            if one.computed == one.known:
                one.outputs += 1
                one.token_steps.append(len(steps))
                if one.outputs == one.outputs_wanted:
                    running.remove(one)
    return steps


def _schedule(
    settings: Settings, waiting: deque[Sequence], running: list[Sequence], step: int
) -> tuple[list[tuple[Sequence, int]], int]:
    """(running sequences with their tokens of this step, how many were preempted)."""

    def free() -> int:
        return settings.blocks - sum(one.blocks for one in running)

    def blocks_of(positions: int) -> int:
        return (positions + settings.block_size - 1) // settings.block_size

    def wanted(one: Sequence) -> int:
        tokens = one.known - one.computed
        return min(tokens, settings.chunk) if settings.chunk else tokens

    left, preempted, at = settings.budget, 0, 0
    shares: list[tuple[Sequence, int]] = []
    while at < len(running) and left > 0:
        one = running[at]
        tokens = min(wanted(one), left)
        needed = blocks_of(one.computed + tokens)
        while needed - one.blocks > free():
            victim = running.pop()
            victim.blocks = victim.computed = 0
            waiting.appendleft(victim)
            preempted += 1
            if victim is one:
                return shares, preempted
        one.blocks = max(one.blocks, needed)
        shares.append((one, tokens))
        left -= tokens
        at += 1
    while not preempted and waiting and left > 0 and len(running) < settings.num_seqs:
        one = waiting[0]
        tokens = min(wanted(one), left)
        must_fit = blocks_of(one.known if settings.whole_must_fit else tokens)
        if must_fit + (settings.watermark_blocks if running else 0) > free():
            break
        waiting.popleft()
        running.append(one)
        one.blocks = blocks_of(tokens)
        one.admitted_steps.append(step)
        shares.append((one, tokens))
        left -= tokens
    return shares, preempted


def _duration_ns(times: FittedStepTimes, rows: list[tuple[int, int]]) -> int:
    """Of a step of rows (KV positions before it, its tokens). Whole ns: the coefficients are whole numbers."""
    num_tokens = sum(tokens for _, tokens in rows)
    read = sum(before + 1 for before, tokens in rows if tokens == 1)
    if num_tokens == len(rows):
        launched = next((bucket for bucket in times.row_buckets if bucket >= len(rows)), len(rows))
        terms = times.decode
        beyond = max(0, launched - terms.knee_rows)
        return int(terms.step + terms.row * launched + terms.beyond_knee * beyond + terms.kv * read)
    mixed, chunks = times.mixed, [(before, tokens) for before, tokens in rows if tokens > 1]
    pairs = sum(before + k for before, tokens in chunks for k in range(1, tokens + 1))
    return int(
        mixed.step
        + mixed.token * num_tokens
        + mixed.beyond_knee * max(0, num_tokens - mixed.knee_tokens)
        + mixed.row * len(rows)
        + mixed.kv * read
        + mixed.pair * pairs
        + mixed.prefill_kv * sum(before for before, _ in chunks)
    )


def _gap_ns(times: FittedStepTimes, rows: int) -> int:
    return int(times.gap.step + times.gap.row * rows)
