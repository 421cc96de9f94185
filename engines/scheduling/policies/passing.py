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
    def who(self, head: Request, rows: Rows) -> int | None:
        """The slot of the request that gets up for `head`, or None."""
        ...


class NobodyYields:
    def who(self, head: Request, rows: Rows) -> int | None:
        return None


class PriorityYields:
    """The least urgent seated request gets up for a strictly more urgent one (the last in plan order of equals)."""

    def who(self, head: Request, rows: Rows) -> int | None:
        slots = rows.in_order()
        slots = slots[rows.live[slots]][::-1]
        if len(slots) == 0:
            return None
        worst = int(slots[rows.priority[slots].argmax()])
        return worst if rows.priority[worst] > head.priority else None
