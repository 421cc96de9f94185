"""Batching: when to admit, how a step's tokens are shared among the slots, and when a finished request frees its slot.

All modes of the engine differ here and nowhere else. `wants` is what each taken slot still has to compute of its known
tokens: 0 for a finished request that holds its slot, 1 for a decode, more for a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from engines.ledger import Blocked
from engines.scheduling.plan import IntArray


class Batching(Protocol):
    holds: bool  # finished requests keep slot and blocks until the whole batch has ended
    joins: bool  # requests join a running batch, whose prompts may leave them tokens
    stalls: bool  # decodes wait while a prompt is computed
    blocked: Blocked  # the reason where takes() is 0
    buckets: tuple[int, ...]  # prompt-length limits, ascending; prompts of different buckets are batched apart
    patience_ns: int  # how long an empty engine waits for a full batch, from the submission of the oldest request

    def turn(self, prefilling: Sequence[int], waiting: Sequence[int], step: int) -> int | None:
        """The bucket whose prompts are admitted and computed in this step; None: all. Called only with buckets.

        prefilling: buckets of the running prompts; waiting: of the waiting requests, in the order of their heads.
        """
        ...

    def room(self, wants: IntArray, computed: IntArray, counts: IntArray, budget: int) -> int:
        """Tokens that newly admitted requests may use in this step; 0 closes admission."""
        ...

    def takes(self, want: int, room: int, resumed: bool) -> int:
        """Tokens of `room` a request would use if admitted now; 0: it must wait."""
        ...

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        """(counts, padding) per slot: own tokens and dead tokens to launch. Their sum is at most `budget`."""
        ...


class Continuous:
    """Iteration-level batching: at every step finished requests leave and waiting ones join.

    decode_first: every decode gets its token, prompts share what is left of the budget.
    prefill_first (decode_first=False): while any prompt is unfinished, a step is all prompts and decodes wait.
    chunked=False: a prompt is computed whole or not at all in a step. One exception: a request that was preempted may
    have outgrown the budget, so its recomputation is always split.
    max_chunk: no prompt takes more of one step, so that a long one leaves something to the short ones behind it.
    buckets: in one step only the prompts of one bucket are computed; buckets with work take turns, step by step.
    """

    holds = False
    joins = True
    blocked = Blocked.TOKENS
    patience_ns = 0

    def __init__(
        self,
        *,
        chunked: bool = True,
        decode_first: bool = True,
        max_chunk: int | None = None,
        buckets: tuple[int, ...] = (),
    ) -> None:
        self.chunked = chunked
        self.decode_first = decode_first
        self.stalls = not decode_first
        self.max_chunk = max_chunk
        self.buckets = buckets

    def turn(self, prefilling: Sequence[int], waiting: Sequence[int], step: int) -> int | None:
        present = sorted({*prefilling, *waiting})
        return present[step % len(present)] if present else None

    def room(self, wants: IntArray, computed: IntArray, counts: IntArray, budget: int) -> int:
        if not self.decode_first:  # admitted prompts push the decodes out of this step
            counts = counts[~_decoding(wants, computed)]
        return budget - int(counts.sum())

    def takes(self, want: int, room: int, resumed: bool) -> int:
        if self.chunked or resumed:
            return min(want, room, self.max_chunk or room)
        return want if want <= room else 0

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        counts = wants if self.max_chunk is None else np.minimum(wants, self.max_chunk)
        if not self.decode_first:
            decoding = _decoding(wants, computed)
            if not decoding.all():
                counts = np.where(decoding, 0, counts)
        if int(counts.sum()) > budget:
            # budget >= max_num_seqs, so single tokens always fit; prompts take what is left in plan order
            single = np.minimum(counts, 1)
            rest = counts - single
            before = np.cumsum(rest) - rest
            counts = single + np.clip(budget - int(single.sum()) - before, 0, rest)
        return counts, np.zeros_like(counts)


class InOrder(Continuous):
    """As decode-first, but a step is shared in plan order, decodes and prompts alike, while the budget lasts: what vLLM
    v1 does. A prompt whose chunk takes the rest of the budget leaves nothing to the decodes behind it."""

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        counts = wants if self.max_chunk is None else np.minimum(wants, self.max_chunk)
        if int(counts.sum()) > budget:
            before = np.cumsum(counts) - counts
            counts = np.clip(budget - before, 0, counts)
        return counts, np.zeros_like(counts)


class Static:
    """Request-level batching: a batch is admitted into an empty engine and runs until its longest member ends.

    holds=False (`compact-freed`): finished rows are not launched and freed; the slot stays empty until the batch ends.
    holds=True (`compact-held`):   finished rows are not launched, but keep slot and blocks until the batch ends.
    patience_ns: an empty engine waits so long for a full batch before it starts with fewer requests.
    buckets: a batch is formed from the prompts of one bucket, that of the request that goes first.
    """

    joins = False
    stalls = False
    blocked = Blocked.BATCH

    def __init__(self, *, holds: bool, patience_ns: int = 0, buckets: tuple[int, ...] = ()) -> None:
        self.holds = holds
        self.patience_ns = patience_ns
        self.buckets = buckets

    def turn(self, prefilling: Sequence[int], waiting: Sequence[int], step: int) -> int | None:
        return waiting[0] if waiting and not prefilling else None

    def room(self, wants: IntArray, computed: IntArray, counts: IntArray, budget: int) -> int:
        return budget if len(wants) == 0 else 0

    def takes(self, want: int, room: int, resumed: bool) -> int:
        return min(1, room)  # a batch is bounded by slots and KV; the budget only shapes its steps

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        return _DECODE_FIRST.share(wants, computed, budget)


class PaddedStatic(Static):
    """The padded rectangle: prompts are left-padded to the longest, finished rows are launched until the batch ends.

        columns       |<------------ longest prompt ------------>|
        row 0         pad pad pad pad pad  t0  t1  t2  t3  t4  t5 |  decode ...
        row 1          t0  t1  t2  t3  t4  t5  t6  t7  t8  t9 t10 |  decode ...
                      |<- step 1: budget // rows columns ->|<- step 2 ...

    Left padding means that a row's remaining tokens are the last `want` of the remaining columns, so one formula
    covers prefill and decode; no row decodes before the rectangle's last column, where all get their first token.
    """

    def __init__(self, *, patience_ns: int = 0, buckets: tuple[int, ...] = ()) -> None:
        super().__init__(holds=True, patience_ns=patience_ns, buckets=buckets)

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        if len(wants) == 0:
            return wants, wants
        remaining_columns = int(wants.max())
        width = min(remaining_columns, budget // len(wants))
        counts = np.maximum(width - (remaining_columns - wants), 0)
        return counts, width - counts


_DECODE_FIRST = Continuous()


def _decoding(wants: IntArray, computed: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Slots that are past their prompt. A last prompt chunk of one token counts too: it costs the same."""
    return (wants <= 1) & (computed > 0)
