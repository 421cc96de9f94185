"""Preemption: which running request loses its slot, and what becomes of it.

KV pressure: a running request needs a block and none is available. A Victims policy chooses the request, a Pressure
policy its fate. Priority preemption: a waiting request is more urgent than a running one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def candidates(self, head: Request, slots: Slots) -> list[int]:
        """Slots of the requests that may be preempted for `head`, the head of a queue; the least urgent first."""
        ...

    def may_lose(self, running: IntArray, slots: Slots) -> IntArray:
        """Those of `running` that a KV shortage may preempt, in the same order."""
        ...


class NoPriorityPreemption:
    preempts = False

    def candidates(self, head: Request, slots: Slots) -> list[int]:
        return []

    def may_lose(self, running: IntArray, slots: Slots) -> IntArray:
        return running


class PriorityPreemption:
    """Preempts for a head that is strictly more urgent, and where KV is short the least urgent.

    Needs the priority order: there the last slots have the worst rank, so a victim waits behind the head. A request is
    preempted for a head only after it has computed a position that it never had before: so each preemption costs one
    recomputation at most, and there are no more of them than positions.
    """

    preempts = True

    def candidates(self, head: Request, slots: Slots) -> list[int]:
        behind = slots.less_urgent(head)
        advanced = (slots.last_step[behind] > 0) & (slots.computed[behind] > slots.peak[behind])
        found: list[int] = behind[advanced & slots.active[behind] & ~slots.arriving[behind]][::-1].tolist()
        return found

    def may_lose(self, running: IntArray, slots: Slots) -> IntArray:
        priority = slots.priority[running]
        least_urgent: IntArray = running[priority == priority.max()]
        return least_urgent


def fewest(candidates: Sequence[int], enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """Candidates that are `enough`, the first ones where there is a choice, and of which none can be left out; empty
    where not even all are, or where none is needed.

    enough: whether the preemption of these would do; more of them do it too.
    """
    if not candidates or not enough(candidates) or enough(()):
        return []
    too_few, count = 0, len(candidates)  # so many of the first are not enough, are enough
    while count - too_few > 1:
        middle = (too_few + count) // 2
        too_few, count = (too_few, middle) if enough(candidates[:middle]) else (middle, count)
    return without_spare(candidates[:count], enough)


def without_spare(victims: Sequence[int], enough: Callable[[Sequence[int]], bool]) -> list[int]:
    """The victims, less those that can be left out; the last ones are left out first."""
    needed = list(victims)
    for one in reversed(victims):
        rest = [other for other in needed if other != one]
        if rest and enough(rest):
            needed = rest
    return needed
