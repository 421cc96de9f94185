"""SwapSpace: which blocks of the host pool hold whose KV. The copying itself is the executor's.

A plan's moves are carried out in the order out, in, compute, and plans one after another. So a host block may be
handed out again as soon as the plan that brings it back has been launched.
"""

from __future__ import annotations

from collections import deque


class SwapSpace:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: deque[int] = deque(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        return [self._free.popleft() for _ in range(count)]

    def release(self, blocks: list[int]) -> None:
        self._free.extend(blocks)

    def check_invariants(self, owned: list[int]) -> None:
        assert sorted([*self._free, *owned]) == list(range(self.num_blocks)), "host blocks lost or doubled"
