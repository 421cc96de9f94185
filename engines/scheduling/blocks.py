"""BlockPool: which KV blocks are free, and which are released but not yet safe to hand out.

Usable blocks are 1..num_blocks; block 0 is the dummy that absorbs padding writes and is never handed out.
A released block stays *pending* until the last step that may still write it has been collected (its fence), so that a
step planned meanwhile can never give it to somebody else.
"""

from __future__ import annotations

from collections import deque


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: deque[int] = deque(range(1, num_blocks + 1))
        self._pending: list[tuple[int, list[int]]] = []  # (fence step, blocks)
        self._num_pending = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_pending(self) -> int:
        return self._num_pending

    def take(self, count: int) -> list[int]:
        """`count` free blocks, longest free first. The caller has checked num_free."""
        return [self._free.popleft() for _ in range(count)]

    def release(self, blocks: list[int], fence: int, collected: int) -> None:
        """Give blocks back; they are free once step `fence` is collected (`collected` is the newest such step)."""
        if fence <= collected:
            self._free.extend(blocks)
        else:
            self._pending.append((fence, blocks))
            self._num_pending += len(blocks)

    def pass_fence(self, collected: int) -> None:
        """Step `collected` has ended: what waited for it is free."""
        if not self._pending:
            return
        still = []
        for fence, blocks in self._pending:
            if fence <= collected:
                self._free.extend(blocks)
                self._num_pending -= len(blocks)
            else:
                still.append((fence, blocks))
        self._pending = still

    def check_invariants(self, owned: list[int]) -> None:
        """Every usable block is in exactly one place: free, pending, or in one of the `owned` table entries."""
        pending = [block for _, blocks in self._pending for block in blocks]
        assert self._num_pending == len(pending)
        everything = sorted([*self._free, *pending, *owned])
        assert everything == list(range(1, self.num_blocks + 1)), f"blocks lost or doubled: {everything}"
