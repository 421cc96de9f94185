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

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engines.scheduling.request import Request

if TYPE_CHECKING:
    from engines.scheduling.kv import KVManager


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV of a request on its way into the blocks of the seat it has been given."""

    request: Request
    slot: int
    sources: list[int]  # blocks of the instance it comes from
    targets: list[int]  # as many of the one it goes to


class KeptElsewhere:
    """What SwapSpace is to swapped requests: the blocks that another instance keeps for those that come from there."""

    num_blocks = 0  # of the host's: nothing is ever moved out to there, so who must give way is computed again
    num_free = 0

    def __init__(self, source: KVManager) -> None:
        self._source = source

    def take(self, count: int) -> list[int]:
        assert count == 0, "there is no host pool"
        return []

    def release(self, blocks: list[int]) -> None:
        self._source.give_back(blocks)

    def check_invariants(self, owned: list[int]) -> None:
        assert Counter(owned) == self._source.kept, "blocks kept for nobody, or for two"
