"""Handover: a request goes from the instance that computed its prompt to the one that decodes it.

    prefill instance                                 decode instance
    seat ── first token ──► gone, its blocks kept ─► Waiting ── the gate ──► seat, blocks of its own
                                       │                                       │
                                       └───────────── Transfer ───────────────►┘ here: it decodes from now on
                              given back ◄───────────────┘ when all has arrived

To the decode instance it is a request that was swapped out, only that its KV is in another instance's pool and not on
the host. So until there is room for it there, its blocks stay where they are, and the prefill instance has fewer for
new prompts: back-pressure, and never a drop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.scheduling.kv import KVManager
from engines.scheduling.request import Request
from engines.scheduling.slots import Slots


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV of a request on its way into the blocks of the seat it has been given."""

    request: Request
    slot: int
    sources: list[int]  # blocks of the instance it comes from
    targets: list[int]  # as many of the one it goes to


class Arrivals:
    """Seats whose KV is on its way from another instance. Until it is there, nobody else gets them or their blocks."""

    def __init__(self, rows: Slots, kv: KVManager) -> None:
        self._rows = rows
        self._kv = kv
        self._transfers: dict[int, Transfer] = {}  # by seat
        self._not_started: list[Transfer] = []  # of these

    def __bool__(self) -> bool:
        return bool(self._transfers)

    def __contains__(self, slot: int) -> bool:
        return slot in self._transfers

    def send_for(self, request: Request) -> None:
        """It has just been seated, with blocks of its own."""
        slot = request.slot
        transfer = Transfer(request, slot, request.host_blocks, self._kv.blocks(slot))
        self._rows.arriving[slot] = True
        self._transfers[slot] = transfer
        self._not_started.append(transfer)

    def take(self) -> list[Transfer]:
        """Those that can start now."""
        transfers, self._not_started = self._not_started, []
        return transfers

    def end(self, transfer: Transfer) -> None:
        """All of it is here, so that where it came from need not keep it."""
        del self._transfers[transfer.slot]
        self._rows.arriving[transfer.slot] = False
        self._kv.host.release(transfer.sources)

    @property
    def sources(self) -> list[int]:
        """Blocks that are still wanted where they are kept."""
        return [block for transfer in self._transfers.values() for block in transfer.sources]

    def check_invariants(self) -> None:
        assert sorted(self._transfers) == np.flatnonzero(self._rows.arriving).tolist()
