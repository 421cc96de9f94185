"""Pressure: what becomes of a victim when a seated request needs a block and none is available.

Victims are chosen by the scheduler, in reverse plan order among rows not yet planned; this decides their fate.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from engines.scheduling.request import Request


class Fate(Enum):
    RECOMPUTE = "recompute"  # give up all blocks, keep the place in the queue, compute again later
    REJECT = "reject"  # end with finish_reason "rejected"


class Pressure(Protocol):
    def fate(self, victim: Request) -> Fate: ...


class Recompute:
    def fate(self, victim: Request) -> Fate:
        return Fate.RECOMPUTE


class Reject:
    def fate(self, victim: Request) -> Fate:
        return Fate.REJECT


class Delay:
    """Nobody is ever evicted: only admission waits. Sound with full-reserve alone, where seated requests never ask."""

    def fate(self, victim: Request) -> Fate:
        raise AssertionError("delay implies full-reserve admission, under which no seated request runs short")
