"""KVManager: block tables by slot, and the promises that make admission safe.

A seated request owns the blocks in its table and may hold a *promise* of more. Table of one slot:

    position  0 ............................ computed ......... promised end
              |<- held blocks (in the table) -->|<- promised: still in the pool, but nobody else's ->|

`available` is what neither sits in a table nor is promised. A request grows into its promise first, then into what is
available; who may do the latter is the scheduler's business (pressure), never this class's.
"""

from __future__ import annotations

import numpy as np

from engines.scheduling.blocks import BlockPool
from engines.scheduling.plan import IntArray, Tables


class KVManager:
    def __init__(self, num_blocks: int, block_size: int, num_slots: int, max_model_len: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        width = min(self.blocks_for(max_model_len), num_blocks)
        self.tables: Tables = np.zeros((num_slots, width), dtype=np.int32)  # 0: no block yet
        self._held: IntArray = np.zeros(num_slots, dtype=np.int64)  # blocks in the table of each slot
        self._promised: IntArray = np.zeros(num_slots, dtype=np.int64)  # blocks promised beyond the table
        self._num_promised = 0
        self._num_held = 0

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold `positions` KV positions."""
        return -(-positions // self.block_size)

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_used(self) -> int:
        return self._num_held

    @property
    def num_promised(self) -> int:
        return self._num_promised

    @property
    def available(self) -> int:
        """Free blocks that nobody has been promised."""
        return self.pool.num_free - self._num_promised

    def promise(self, slot: int, blocks: int) -> None:
        """Set `blocks` more blocks aside for a slot. The gate has checked `available`."""
        self._promised[slot] += blocks
        self._num_promised += blocks

    def beyond_promise(self, slots: IntArray, ends: IntArray) -> IntArray:
        """Blocks each slot needs from `available` to hold positions 0..end-1: int64[len(slots)]."""
        missing: IntArray = (
            (ends + (self.block_size - 1)) // self.block_size - self._held[slots] - self._promised[slots]
        )
        return missing.clip(0)

    def grow(self, slots: IntArray, ends: IntArray) -> None:
        """Extend tables so that slot i holds positions 0..ends[i]-1. Touches only rows that cross a block boundary."""
        missing = (ends + (self.block_size - 1)) // self.block_size - self._held[slots]
        for i in np.flatnonzero(missing > 0).tolist():
            slot, count = int(slots[i]), int(missing[i])
            held = int(self._held[slot])
            self.tables[slot, held : held + count] = self.pool.take(count)
            self._held[slot] = held + count
            self._num_held += count
            kept = min(count, int(self._promised[slot]))
            self._promised[slot] -= kept
            self._num_promised -= kept

    def release(self, slot: int, fence: int, collected: int) -> None:
        """Give back all blocks and promises of a slot, usable by others once step `fence` is collected."""
        held = int(self._held[slot])
        if held:
            self.pool.release(self.tables[slot, :held].tolist(), fence, collected)
            self.tables[slot, :held] = 0
        self._num_held -= held
        self._num_promised -= int(self._promised[slot])
        self._held[slot] = self._promised[slot] = 0

    def held(self, slot: int) -> int:
        return int(self._held[slot])

    def check_invariants(self) -> None:
        owned = [int(b) for slot, held in enumerate(self._held.tolist()) for b in self.tables[slot, :held]]
        self.pool.check_invariants(owned)
        assert self._num_held == len(owned)
        assert self._num_promised == self._promised.sum()
        assert (self._promised >= 0).all()
        assert self.available >= 0, "more promised than is free"
        for slot, held in enumerate(self._held.tolist()):
            assert not self.tables[slot, held:].any(), f"slot {slot}: entries beyond the table"
