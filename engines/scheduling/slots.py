"""Slots: the request in each slot of the batch, as columns indexed by slot.

Columns, so that a step in which 256 requests each decode one token is a handful of array operations. A slot that is
released is handed out again only behind the last step that used it, like a block: a late result must never be taken
for the next request's.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort

import numpy as np

from engines.scheduling.plan import IntArray
from engines.scheduling.request import NO_SLOT, Request

NO_SLOTS: IntArray = np.empty(0, dtype=np.int64)


class Slots:
    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.request: list[Request | None] = [None] * num_slots
        self.computed: IntArray = np.zeros(num_slots, dtype=np.int64)  # positions in KV, launched steps included
        self.known: IntArray = np.zeros(num_slots, dtype=np.int64)  # tokens with a value or being sampled
        self.kv_limit: IntArray = np.zeros(num_slots, dtype=np.int64)  # positions it can ever compute
        self.prompt: IntArray = np.zeros(num_slots, dtype=np.int64)
        self.peak: IntArray = np.zeros(num_slots, dtype=np.int64)  # positions below were computed before a preemption
        self.priority: IntArray = np.zeros(num_slots, dtype=np.int64)
        self.bucket: IntArray = np.zeros(num_slots, dtype=np.int64)
        self.last_step: IntArray = np.zeros(num_slots, dtype=np.int64)  # newest step that has a row for the slot
        # whose request is unfinished
        self.active: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.zeros(num_slots, dtype=np.bool_)
        # whose KV is on its way from another instance
        self.arriving: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.zeros(num_slots, dtype=np.bool_)
        self.num_active = 0
        self.num_resumed = 0  # of requests that were preempted with work to do again
        # (rank, sequence, slot) of every taken slot, best rank first
        self._order: list[tuple[float, int, int]] = []
        self._order_slots: IntArray | None = None
        self._free = list(range(num_slots))  # a heap: the lowest free slot first, so that timelines read well
        self._pending: list[tuple[int, int]] = []  # (fence step, slot)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_taken(self) -> int:
        return len(self._order)

    @property
    def num_pending(self) -> int:
        """Slots that were released and wait behind a fence."""
        return len(self._pending)

    def in_order(self) -> IntArray:
        """All taken slots in plan order (best rank first): int64[num_taken]."""
        if self._order_slots is None:
            self._order_slots = np.array([slot for _, _, slot in self._order], dtype=np.int64)
        return self._order_slots

    def less_urgent(self, request: Request) -> IntArray:
        """Taken slots, in plan order, of a strictly lower priority that also come behind the request by rank."""
        at = bisect_right(self._order, (request.rank, math.inf, 0))
        if at == len(self._order):  # usual, and asked of each request that is admitted
            return NO_SLOTS
        behind = self.in_order()[at:]
        lower: IntArray = behind[self.priority[behind] > request.priority]
        return lower

    def request_in(self, slot: int) -> Request:
        """The request in a taken slot."""
        request = self.request[slot]
        assert request is not None
        return request

    def take(self, request: Request, computed: int = 0) -> int:
        """Give the request the lowest free slot; `computed` of its positions are in KV already."""
        slot = heapq.heappop(self._free)
        request.slot = slot
        self.request[slot] = request
        self.computed[slot] = computed
        self.known[slot] = request.known
        self.kv_limit[slot] = request.kv_limit
        self.prompt[slot] = request.prompt_tokens
        self.peak[slot] = request.computed_peak
        self.priority[slot] = request.priority
        self.bucket[slot] = request.bucket
        self.last_step[slot] = 0
        self.active[slot] = True
        self.num_active += 1
        self.num_resumed += request.computed_peak > 0
        insort(self._order, (request.rank, request.sequence, slot))
        self._order_slots = None
        return slot

    def end(self, slot: int) -> None:
        """The request has finished; the slot is dead until `release`."""
        self.active[slot] = False
        self.num_active -= 1

    def release(self, slot: int, collected: int) -> None:
        """Empty the slot. It is free once the last step that used it is collected."""
        request = self.request_in(slot)
        if self.active[slot]:
            self.end(slot)
        del self._order[bisect_left(self._order, (request.rank, request.sequence, slot))]
        self._order_slots = None
        self.num_resumed -= int(self.peak[slot]) > 0
        request.slot = NO_SLOT
        self.request[slot] = None
        fence = int(self.last_step[slot])
        if fence <= collected:
            heapq.heappush(self._free, slot)
        else:
            self._pending.append((fence, slot))

    def pass_fence(self, collected: int) -> None:
        """Step `collected` has ended: slots that waited for it are free."""
        if not self._pending:
            return
        for fence, slot in self._pending:
            if fence <= collected:
                heapq.heappush(self._free, slot)
        self._pending = [(fence, slot) for fence, slot in self._pending if fence > collected]

    def decoded(self, slots: IntArray, steps: int, last_step: int) -> None:
        """Each of these decoded one token in each of `steps` steps, the newest of them `last_step`."""
        self.computed[slots] += steps
        self.known[slots] += steps
        self.last_step[slots] = last_step

    def check_invariants(self) -> None:
        taken = [slot for _, _, slot in self._order]
        assert sorted([*taken, *self._free, *(slot for _, slot in self._pending)]) == list(range(self.num_slots))
        assert self._order == sorted(self._order)
        assert self.num_active == int(self.active.sum()) <= self.num_slots
        assert self.num_resumed == int((self.peak[taken] > 0).sum())
        for slot in taken:
            request = self.request_in(slot)
            assert request.slot == slot
            assert bool(self.active[slot]) is not request.finished
            assert 0 <= self.computed[slot] <= self.known[slot] <= request.prompt_tokens + request.max_output_tokens
