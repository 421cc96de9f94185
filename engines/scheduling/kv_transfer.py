"""KV transfers: a request goes from the instance that computed its prompt to the one that decodes it.

    prefill instance                                  decode instance
    slot ── first token ──► gone, its blocks kept ──► Waiting ── admit ──► slot, blocks of its own
                                       │                                     │
                                       └───────────── Transfer ─────────────►┘ complete: it decodes from now on
                              given back ◄──────────────┘ when complete

To the decode instance it is a request that was swapped out, with its KV in another instance's pool instead of on the
host. So until the decode instance has room for it, its blocks stay where they are, and the prefill instance has fewer
for new prompts: back-pressure, and no request is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.scheduling.kv import KVManager
from engines.scheduling.request import Request
from engines.scheduling.slots import Slots


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV of a request on its way into the blocks of its slot at the decode instance."""

    request: Request
    slot: int
    sources: list[int]  # blocks of the prefill instance
    targets: list[int]  # as many of the decode instance


class Arrivals:
    """Slots whose KV is on its way from the prefill instance. Until it is complete, slot and blocks stay taken."""

    def __init__(self, slots: Slots, kv: KVManager) -> None:
        self._slots = slots
        self._kv = kv
        self._transfers: dict[int, Transfer] = {}  # by slot
        self._not_started: list[Transfer] = []  # of these

    def __bool__(self) -> bool:
        return bool(self._transfers)

    def __contains__(self, slot: int) -> bool:
        return slot in self._transfers

    def request_kv(self, request: Request) -> None:
        """It has just been admitted, with blocks of its own."""
        slot = request.slot
        transfer = Transfer(request, slot, request.host_blocks, self._kv.blocks(slot))
        self._slots.arriving[slot] = True
        self._transfers[slot] = transfer
        self._not_started.append(transfer)

    def take(self) -> list[Transfer]:
        """Transfers to start now."""
        transfers, self._not_started = self._not_started, []
        return transfers

    def end(self, transfer: Transfer) -> None:
        """The transfer is complete; the prefill instance need not keep the blocks."""
        del self._transfers[transfer.slot]
        self._slots.arriving[transfer.slot] = False
        self._kv.host.release(transfer.sources)

    @property
    def sources(self) -> list[int]:
        """Blocks that the prefill instance must keep."""
        return [block for transfer in self._transfers.values() for block in transfer.sources]

    def check_invariants(self) -> None:
        assert sorted(self._transfers) == np.flatnonzero(self._slots.arriving).tolist()
