"""Seats: what the executor knows of them from earlier steps, so that a step costs no loop over those who just go on.

What a seat decodes next is the token that was sampled for it last, and that stays where it was sampled:

    position   0 ............. next
               |<- in KV ->|   fed from `last_token`
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engines.reference import sampling
from engines.scheduling.plan import IntArray, StepPlan
from engines.scheduling.request import Request

NOTHING = -1


class Seats:
    def __init__(self, num_seats: int, tokens: IntArray | None = None) -> None:
        """tokens: [seats] the last one sampled for each, where the host can read it and never runs ahead of it."""
        # What to feed, or in place of it the seat's name: see Batch.ids.
        self.fed: IntArray = np.arange(-1, -1 - num_seats, -1) if tokens is None else tokens
        self._requests: list[Request | None] = [None] * num_seats
        self._next: IntArray = np.full(num_seats, NOTHING)
        self._prompt: IntArray = np.zeros(num_seats, dtype=np.int64)  # tokens
        self._sampling: IntArray = np.zeros((sampling.COLUMNS, num_seats), dtype=np.int64)

    def meet(self, plan: StepPlan) -> None:
        """See who sits where. Call it before anything else is asked of a step."""
        slots = plan.slots.tolist()
        if [self._requests[slot] for slot in slots] == plan.requests:
            return
        new = [(slot, one) for slot, one in zip(slots, plan.requests, strict=True) if self._requests[slot] is not one]
        for slot, request in new:
            self._requests[slot] = request
        at = [slot for slot, _ in new]
        self._next[at] = NOTHING
        self._prompt[at] = [request.prompt_tokens for _, request in new]
        self._sampling[:, at] = sampling.columns([request.sampling for _, request in new], [0] * len(new))

    def feed_themselves(self, plan: StepPlan) -> NDArray[np.bool_]:
        """bool[rows]: all that the row computes is the token that was sampled for its seat last."""
        themselves: NDArray[np.bool_] = (plan.counts == 1) & (self._next[plan.slots] == plan.starts)
        return themselves

    def sample(self, slots: IntArray, ends: IntArray) -> IntArray:
        """Those in these seats get the token of position `end`. Returns int64[5, rows]: see sampling.columns."""
        self._next[slots] = ends
        columns: IntArray = self._sampling.take(slots, axis=1)  # not [:, slots]: the kernel wants rows side by side
        columns[sampling.OUTPUT_INDEX] = ends - self._prompt[slots]
        return columns
