"""Pressure: who must give way when a seated request needs a block and none is available, and what becomes of it."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import numpy as np

from engines.scheduling.plan import IntArray
from engines.scheduling.request import Request
from engines.scheduling.slots import Slots


class Fate(Enum):
    RECOMPUTE = "recompute"  # give up all blocks, keep the place in the queue, compute again later
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
    """Nobody is ever evicted: only admission waits. Sound with full-reserve alone, where seated requests never ask."""

    def fate(self, victim: Request) -> Fate:
        raise AssertionError("delay implies full-reserve admission, under which no seated request runs short")


class Victims(Protocol):
    """Who gives way. Called before anything of the step is planned, so a victim is never a planned row."""

    def choose(self, slots: IntArray, rows: Slots) -> int:
        """One of `slots` (live seats in plan order, best rank first)."""
        ...


class Newest:
    """The last in plan order, prompts (which come after the decodes) first."""

    def choose(self, slots: IntArray, rows: Slots) -> int:
        prefilling = slots[rows.known[slots] - rows.computed[slots] > 1]
        return int(prefilling[-1] if len(prefilling) else slots[-1])


class LeastComputed:
    """The one whose eviction throws the least work away; of equals the last in plan order."""

    def choose(self, slots: IntArray, rows: Slots) -> int:
        backwards = slots[::-1]
        return int(backwards[np.argmin(rows.computed[backwards])])


class LowestPriority:
    """The least urgent; of equals the last in plan order."""

    def choose(self, slots: IntArray, rows: Slots) -> int:
        backwards = slots[::-1]
        return int(backwards[np.argmax(rows.priority[backwards])])


class Yielding(Protocol):
    moves: bool  # False if nobody ever gets up

    def who(self, head: Request, rows: Slots) -> int | None:
        """The slot of the request that gets up for `head`, or None."""
        ...


class NoPriorityPreemption:
    moves = False

    def who(self, head: Request, rows: Slots) -> int | None:
        return None


class PriorityPreemption:
    """The last in plan order gets up for a head that is strictly more urgent.

    Needs the priority order: there the last seat has the worst rank, so who got up waits behind the head, and who was
    seated in this very step, before the head, is never asked.
    """

    moves = True

    def who(self, head: Request, rows: Slots) -> int | None:
        slots = rows.in_order()
        if len(slots) == 0:
            return None
        last = rows.request[int(slots[-1])]
        assert last is not None
        return last.slot if last.priority > head.priority and last.rank > head.rank else None
