"""Order: who goes first. A rank never changes with time, so waiting is a heap and is never sorted again."""

from __future__ import annotations

from typing import Protocol

from engines.scheduling.request import Request


class Order(Protocol):
    def rank(self, request: Request) -> tuple[float, ...]:
        """Smaller goes first. The scheduler appends the order of submission, so ties are first come, first served."""
        ...


class Fcfs:
    """First come, first served."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return ()
