"""Batching: when to admit, how a step's tokens are shared among the seats, and when a finished request lets go.

All modes of the engine differ here and nowhere else. `wants` is what each seat still has to compute of its known
tokens: 0 for a finished request that holds its seat, 1 for a decode, more for a prompt.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from engines.scheduling.ledger import Blocked
from engines.scheduling.plan import IntArray


class Batching(Protocol):
    holds: bool  # finished requests keep seat and blocks until the whole batch has ended
    blocked: Blocked  # what to say when takes() is 0

    def room(self, wants: IntArray, computed: IntArray, counts: IntArray, budget: int) -> int:
        """Tokens that newly admitted requests may use in this step; 0 closes admission."""
        ...

    def takes(self, want: int, room: int, resumed: bool) -> int:
        """Tokens of `room` a request would use if admitted now; 0: it must wait."""
        ...

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        """(counts, padding) per seat: own tokens and dead tokens to launch. Their sum is at most `budget`."""
        ...


class Continuous:
    """Iteration-level batching: at every step finished requests leave and waiting ones join.

    decode_first: every decode gets its token, prompts share what is left of the budget.
    prefill_first (decode_first=False): while any prompt is unfinished, a step is all prompts and decodes wait.
    chunked=False: a prompt is computed whole or not at all in a step. One exception: a request that was preempted may
    have outgrown the budget, so its recomputation is always split.
    """

    holds = False
    blocked = Blocked.TOKENS

    def __init__(self, *, chunked: bool = True, decode_first: bool = True) -> None:
        self.chunked = chunked
        self.decode_first = decode_first

    def room(self, wants: IntArray, computed: IntArray, counts: IntArray, budget: int) -> int:
        if not self.decode_first:  # admitted prompts push the decodes out of this step
            counts = counts[~_decoding(wants, computed)]
        return budget - int(counts.sum())

    def takes(self, want: int, room: int, resumed: bool) -> int:
        if self.chunked or resumed:
            return min(want, room)
        return want if want <= room else 0

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        counts = wants
        if not self.decode_first:
            decoding = _decoding(wants, computed)
            if not decoding.all():
                counts = np.where(decoding, 0, wants)
        if int(counts.sum()) > budget:
            # budget >= seats, so single tokens always fit; prompts take what is left in plan order
            single = np.minimum(counts, 1)
            rest = counts - single
            before = np.cumsum(rest) - rest
            counts = single + np.clip(budget - int(single.sum()) - before, 0, rest)
        return counts, np.zeros_like(counts)


class Static:
    """Request-level batching: a batch is admitted into an empty engine and runs until its longest member ends.

    `compact_freed`: finished rows are dropped from the launch and freed; the seat stays empty until the batch ends.
    `compact_held`:  finished rows are dropped from the launch, but keep seat and blocks until the batch ends.
    """

    blocked = Blocked.BATCH

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds

    def room(self, wants: IntArray, computed: IntArray, counts: IntArray, budget: int) -> int:
        return budget if len(wants) == 0 else 0

    def takes(self, want: int, room: int, resumed: bool) -> int:
        return min(1, room)  # a batch is bounded by seats and KV; the budget only shapes its steps

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        return _DECODE_FIRST.share(wants, computed, budget)


class PaddedStatic(Static):
    """The padded rectangle: prompts are left-padded to the longest, finished rows are launched until the batch ends.

        columns       |<------------ longest prompt ------------>|
        row 0         pad pad pad pad pad  t0  t1  t2  t3  t4  t5 |  decode ...
        row 1          t0  t1  t2  t3  t4  t5  t6  t7  t8  t9 t10 |  decode ...
                      |<- step 1: budget // rows columns ->|<- step 2 ...

    Left padding means that a row's remaining tokens are the last `want` of the remaining columns, so one formula
    covers prefill and decode; nobody decodes before the rectangle's last column, where all get their first token.
    """

    def __init__(self) -> None:
        super().__init__(holds=True)

    def share(self, wants: IntArray, computed: IntArray, budget: int) -> tuple[IntArray, IntArray]:
        if len(wants) == 0:
            return wants, wants
        remaining_columns = int(wants.max())
        width = min(remaining_columns, budget // len(wants))
        counts = np.maximum(width - (remaining_columns - wants), 0)
        return counts, width - counts


_DECODE_FIRST = Continuous()


def _decoding(wants: IntArray, computed: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Seats that are past their prompt. A last prompt chunk of one token counts too: it costs the same."""
    return (wants <= 1) & (computed > 0)
