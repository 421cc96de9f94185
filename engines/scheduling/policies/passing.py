"""Passing: who may get past whom at the door. Two small policies.

HeadOfLine: when the head of a queue does not fit, may those behind it go first? Yielding: must a seated request get up
for one that waits?
"""

from __future__ import annotations

from typing import Protocol

from engines.scheduling.request import Request
from engines.scheduling.rows import Rows


class SkipAhead:
    """Up to `bypasses` requests may go before a head that waits for KV; then blocks are kept for the head alone.

    0 is strict: nobody passes.
    """

    def __init__(self, bypasses: int = 0) -> None:
        self.bypasses = bypasses

    def may_pass(self, head: Request) -> bool:
        return head.bypassed < self.bypasses


class Yielding(Protocol):
    moves: bool  # False if nobody ever gets up

    def who(self, head: Request, rows: Rows) -> int | None:
        """The slot of the request that gets up for `head`, or None."""
        ...


class NobodyYields:
    moves = False

    def who(self, head: Request, rows: Rows) -> int | None:
        return None


class PriorityYields:
    """The last in plan order gets up for a head that is strictly more urgent.

    Needs the priority order: there the last seat has the worst rank, so who got up waits behind the head, and who was
    seated in this very step, before the head, is never asked.
    """

    moves = True

    def who(self, head: Request, rows: Rows) -> int | None:
        slots = rows.in_order()
        if len(slots) == 0:
            return None
        last = rows.request[int(slots[-1])]
        assert last is not None
        return last.slot if last.priority > head.priority and last.rank > head.rank else None
