"""Preemption: which running request loses its slot, and what becomes of it.

KV pressure: a running request needs a block and none is available. A Victims policy chooses the request, a Pressure
policy its fate. Priority preemption: a waiting request is more urgent than a running one.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import numpy as np

from engines.scheduling.plan import IntArray
from engines.scheduling.request import Request
from engines.scheduling.slots import Slots


class Fate(Enum):
    RECOMPUTE = "recompute"  # free all blocks, keep the rank in the queue, compute again later
    SWAP = "swap"  # move the blocks to the host, bring them back later; RECOMPUTE where the host pool is full
    REJECT = "reject"  # end with finish_reason "rejected"


class Pressure(Protocol):
    def fate(self, victim: Request) -> Fate: ...


class Recompute:
    def fate(self, victim: Request) -> Fate:
        return Fate.RECOMPUTE


class Swap:
    def fate(self, victim: Request) -> Fate:
        return Fate.SWAP


class Reject:
    def fate(self, victim: Request) -> Fate:
        return Fate.REJECT


class Delay:
    """No request is preempted: only admission waits. Sound with full-reserve alone: it reserves all blocks."""

    def fate(self, victim: Request) -> Fate:
        raise AssertionError("delay implies full-reserve admission, under which no running request lacks a block")


class Victims(Protocol):
    """Chooses the request to preempt, before anything of the step is planned: a victim is never a planned row."""

    def choose(self, candidates: IntArray, slots: Slots) -> int:
        """One of `candidates` (active slots in plan order, best rank first)."""
        ...


class Newest:
    """The last in plan order, prompts (which come after the decodes) first."""

    def choose(self, candidates: IntArray, slots: Slots) -> int:
        prefilling = candidates[slots.known[candidates] - slots.computed[candidates] > 1]
        return int(prefilling[-1] if len(prefilling) else candidates[-1])


class Last:
    """The last in plan order, whatever it computes."""

    def choose(self, candidates: IntArray, slots: Slots) -> int:
        return int(candidates[-1])


class LeastComputed:
    """The one whose preemption throws the least work away; of equals the last in plan order."""

    def choose(self, candidates: IntArray, slots: Slots) -> int:
        backwards = candidates[::-1]
        return int(backwards[np.argmin(slots.computed[backwards])])


class LowestPriority:
    """The least urgent; of equals the last in plan order."""

    def choose(self, candidates: IntArray, slots: Slots) -> int:
        backwards = candidates[::-1]
        return int(backwards[np.argmax(slots.priority[backwards])])


class ForPriority(Protocol):
    preempts: bool  # False if it never does

    def victim_for(self, head: Request, slots: Slots) -> int | None:
        """The slot of the request to preempt for `head`, the head of a queue, or None."""
        ...


class NoPriorityPreemption:
    preempts = False

    def victim_for(self, head: Request, slots: Slots) -> int | None:
        return None


class PriorityPreemption:
    """Preempts the last in plan order for a head that is strictly more urgent.

    Needs the priority order: there the last slot has the worst rank, so the victim waits behind the head, and a request
    that was admitted in this very step, before the head, is never a victim.
    """

    preempts = True

    def victim_for(self, head: Request, slots: Slots) -> int | None:
        if slots.num_taken == 0:
            return None
        last = slots.request_in(int(slots.in_order()[-1]))
        return last.slot if last.priority > head.priority and last.rank > head.rank else None
