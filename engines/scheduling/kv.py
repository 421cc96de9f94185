"""KVManager: block tables by slot, and the reserved blocks that make admission safe. Two places hold KV that
has left the pool: SwapSpace (the host) and KeptElsewhere (another instance).

A running request holds the blocks in its table and may have *reserved* more. Table of one slot:

    position  0 ......... hit ................ computed .............. reserved end
              |<- shared ->|                  |
              |<- held blocks (in the table) ->|<- reserved: still in the pool, for this request alone ->|

`available` blocks are in no table and not reserved. A request takes its reserved blocks first, then available ones;
which request may do the latter is decided by the scheduler (preemption), never here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from engines.scheduling.blocks import BlockPool
from engines.scheduling.plan import IntArray, StepPlan, Tables
from engines.scheduling.prefix import PrefixIndex
from engines.scheduling.request import Request


class KVManager:
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        max_model_len: int,
        *,
        swap_blocks: int = 0,
        prefix_caching: bool = False,
        source: KVManager | None = None,
    ) -> None:
        """source: of the instance whose requests continue here, if there is one."""
        self.block_size = block_size
        self.index = PrefixIndex(block_size, prefix_caching)
        self.pool = BlockPool(num_blocks, self.index)
        self.host = SwapSpace(swap_blocks) if source is None else KeptElsewhere(source)
        self.kept: Counter[int] = Counter()  # blocks in no table, of requests that continue elsewhere
        self.num_kept = 0
        width = min(self.blocks_for(max_model_len), num_blocks)
        self.tables: Tables = np.zeros((num_slots, width), dtype=np.int32)  # 0: no block yet
        self._held: IntArray = np.zeros(num_slots, dtype=np.int64)  # blocks in the table of each slot
        self._reserved: IntArray = np.zeros(num_slots, dtype=np.int64)  # blocks reserved beyond the table
        self._num_reserved = 0
        self._published: IntArray = np.zeros(num_slots, dtype=np.int64)  # blocks of the table that are in the index
        self._node: IntArray = np.zeros(num_slots, dtype=np.int64)  # parent of the next block to be published

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold `positions` KV positions."""
        return -(-positions // self.block_size)

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_used(self) -> int:
        return self.pool.num_held

    @property
    def num_reserved(self) -> int:
        return self._num_reserved

    @property
    def available(self) -> int:
        """Blocks that can be handed out and are not reserved."""
        return self.pool.num_free - self._num_reserved

    # -- admission -----------------------------------------------------------------------------------------------

    def match(self, request: Request) -> list[int]:
        """Blocks in the pool that already hold the beginning of what the request must compute."""
        if not self.index.enabled or request.tokens is None or request.host_blocks:
            return []
        blocks = self.index.match(request.tenant, request.tokens, min(request.known, request.kv_limit + 1))
        for i, block in enumerate(blocks):
            if not self.pool.sharable(block):  # given back behind a fence that has not been passed yet
                return blocks[:i]
        return blocks

    def open(self, slot: int, request: Request, reserve: int, hits: list[int]) -> None:
        """Begin the table of a request with `hits`, and reserve blocks until it has `reserve` in all."""
        self.pool.share(hits)
        self.tables[slot, : len(hits)] = hits
        self._held[slot] = self._published[slot] = len(hits)
        self._reserved[slot] = max(reserve - len(hits), 0)
        self._num_reserved += int(self._reserved[slot])
        if self.index.enabled:
            self._node[slot] = self.index.node(hits[-1]) if hits else self.index.root(request.tenant)

    # -- growing -------------------------------------------------------------------------------------------------

    def beyond_reserved(self, slots: IntArray, ends: IntArray) -> IntArray:
        """Blocks each slot needs from `available` to hold positions 0..end-1: int64[len(slots)]."""
        blocks: IntArray = (ends + (self.block_size - 1)) // self.block_size
        beyond: IntArray = np.maximum(blocks - self._held[slots] - self._reserved[slots], 0)
        return beyond

    def capacity(self, slots: IntArray) -> IntArray:
        """Positions that fit the blocks each slot holds or has reserved: int64[len(slots)]."""
        return (self._held[slots] + self._reserved[slots]) * self.block_size

    def table_room(self, slots: IntArray) -> IntArray:
        """Positions that fit the blocks in the table of each slot: int64[len(slots)]."""
        return self._held[slots] * self.block_size

    def grow(self, slots: IntArray, ends: IntArray) -> None:
        """Extend tables so that slot i holds positions 0..ends[i]-1. Touches only rows that cross a block boundary."""
        held = self._held[slots]
        missing = (ends + (self.block_size - 1)) // self.block_size - held
        growing = (missing > 0).nonzero()[0]
        if not len(growing):
            return
        slots, held, missing = slots[growing], held[growing], missing[growing]
        last = np.cumsum(missing)
        blocks = self.pool.take(int(last[-1]))
        # Blocks go to the slots in their order: the k-th new one of a slot behind its `held`.
        at = np.arange(len(blocks)) + np.repeat(held - (last - missing), missing)
        self.tables[np.repeat(slots, missing), at] = blocks
        self._held[slots] = held + missing
        if self._num_reserved:
            kept = np.minimum(missing, self._reserved[slots])
            self._reserved[slots] -= kept
            self._num_reserved -= int(kept.sum())

    def publish(self, plan: StepPlan) -> None:
        """The plan's step has been computed: enter the blocks it filled into the prefix index."""
        if not self.index.enabled:
            return
        full = (plan.starts + plan.counts) // self.block_size
        for row in np.flatnonzero(full > self._published[plan.slots]).tolist():
            request, slot = plan.requests[row], int(plan.slots[row])
            if request.slot != slot or request.tokens is None:  # it left the slot while the step ran
                continue
            for number in range(int(self._published[slot]), int(full[row])):
                tokens = request.tokens[number * self.block_size : (number + 1) * self.block_size]
                block = int(self.tables[slot, number])
                self._node[slot] = self.index.publish(int(self._node[slot]), tokens, block)
            self._published[slot] = full[row]

    # -- letting go ----------------------------------------------------------------------------------------------

    def release(self, slot: int, fence: int, collected: int) -> None:
        """Give back all blocks of a slot, held and reserved, usable by others once step `fence` is collected."""
        held = int(self._held[slot])
        if held:
            self.pool.release(self.tables[slot, :held].tolist(), fence, collected)
            self.tables[slot, :held] = 0
        self._num_reserved -= int(self._reserved[slot])
        self._held[slot] = self._reserved[slot] = self._published[slot] = 0

    def keep(self, slot: int) -> list[int]:
        """Take the blocks out of the table of a slot: they keep their content until `give_back`."""
        blocks = self.blocks(slot)
        self.tables[slot, : len(blocks)] = 0
        self._held[slot] = self._published[slot] = 0
        self.kept.update(blocks)
        self.num_kept += len(blocks)
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        """Release kept blocks: their content has arrived at the other instance, or is not needed there."""
        self.kept.subtract(blocks)
        self.kept += Counter()  # those that reached 0 are gone
        self.num_kept -= len(blocks)
        self.pool.release(blocks, fence=0, collected=0)

    def freed_by(self, slots: Sequence[int]) -> tuple[int, frozenset[int]]:
        """(how many more blocks would be available without the tables of these slots, the published ones of them that
        no table would hold)."""
        reserved = int(self._reserved[list(slots)].sum())
        if not self.index.enabled:
            return reserved + int(self._held[list(slots)].sum()), frozenset()
        holders = Counter(block for slot in slots for block in self.blocks(slot))
        unheld = frozenset(block for block, count in holders.items() if self.pool.references(block) == count)
        return reserved + len(unheld), unheld

    def held(self, slot: int) -> int:
        return int(self._held[slot])

    def blocks(self, slot: int) -> list[int]:
        """The table of a slot."""
        table: list[int] = self.tables[slot, : self.held(slot)].tolist()
        return table

    def check_invariants(self, swapped: list[int]) -> None:
        """`swapped`: host blocks of all requests that are swapped out."""
        owned = [int(b) for slot, held in enumerate(self._held.tolist()) for b in self.tables[slot, :held]]
        self.pool.check_invariants([*owned, *self.kept.elements()])
        assert self.num_kept == self.kept.total()
        self.host.check_invariants(swapped)
        assert self._num_reserved == self._reserved.sum()
        assert (self._reserved >= 0).all()
        assert self.available >= 0, "more reserved than is free"
        for slot, held in enumerate(self._held.tolist()):
            assert not self.tables[slot, held:].any(), f"slot {slot}: entries beyond the table"


class SwapSpace:
    """Which blocks of the host pool hold the KV of which request. The executor does the copying.

    A plan's moves are carried out in the order out, in, compute, and plans one after another. So a host block may be
    handed out again as soon as the plan that brings it back has been launched.
    """

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


class KeptElsewhere:
    """SwapSpace of a decode instance: the blocks that the prefill instance keeps for requests from there."""

    num_blocks = 0  # of the host's: nothing is moved out to it, so a preempted request is computed again
    num_free = 0

    def __init__(self, source: KVManager) -> None:
        self._source = source

    def take(self, count: int) -> list[int]:
        assert count == 0, "there is no host pool"
        return []

    def release(self, blocks: list[int]) -> None:
        if blocks:
            self._source.give_back(blocks)

    def check_invariants(self, owned: list[int]) -> None:
        assert Counter(owned) == self._source.kept, "blocks are kept for no request, or for two"
