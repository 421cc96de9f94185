"""Load: what the engine holds now, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from engines.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class KVBlocks:
    """Where the KV blocks are; the parts add up to the pool."""

    used: int
    reserved: int
    pending: int  # given back, but a running step may still write them
    cached: int  # kept for a prefix, evicted when they are needed
    free: int

    @property
    def usage(self) -> float:
        """Share of the blocks that no request can have now."""
        held = self.used + self.reserved + self.pending
        return held / (held + self.cached + self.free)


@dataclass(frozen=True, slots=True)
class Load:
    running: int
    waiting: int
    kv: KVBlocks


def load_of(scheduler: Scheduler) -> Load:
    kv = scheduler.kv
    cached = min(kv.pool.num_cached, kv.available)  # the rest is reserved
    blocks = KVBlocks(kv.num_used, kv.num_reserved, kv.pool.num_pending, cached, kv.available - cached)
    return Load(scheduler.slots.num_active, len(scheduler.waiting), blocks)
