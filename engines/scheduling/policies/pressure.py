"""Pressure: who must give way when a seated request needs a block and none is available, and what becomes of it."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import numpy as np

from engines.scheduling.plan import IntArray
from engines.scheduling.request import Request
from engines.scheduling.rows import Rows


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

    def choose(self, slots: IntArray, rows: Rows) -> int:
        """One of `slots` (live seats in plan order, best rank first)."""
        ...


class Newest:
    """The last in plan order, prompts (which come after the decodes) first."""

    def choose(self, slots: IntArray, rows: Rows) -> int:
        prefilling = slots[rows.known[slots] - rows.computed[slots] > 1]
        return int(prefilling[-1] if len(prefilling) else slots[-1])


class LeastComputed:
    """The one whose eviction throws the least work away; of equals the last in plan order."""

    def choose(self, slots: IntArray, rows: Rows) -> int:
        backwards = slots[::-1]
        return int(backwards[np.argmin(rows.computed[backwards])])


class LowestPriority:
    """The least urgent; of equals the last in plan order."""

    def choose(self, slots: IntArray, rows: Rows) -> int:
        backwards = slots[::-1]
        return int(backwards[np.argmax(rows.priority[backwards])])
