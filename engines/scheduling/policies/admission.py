"""Admission: how many KV blocks a request must be promised before it may sit. May ask or veto, never grants."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from engines.scheduling.kv import KVManager
from engines.scheduling.request import Request
from engines.scheduling.rows import Rows


class Admission(Protocol):
    vetoes: bool  # False if permits() always does
    watermark_blocks: int  # blocks that must stay available after the promise, unless nobody sits

    def promise(self, request: Request, kv: KVManager, first_end: int) -> int:
        """Blocks to promise in all, when the request's first step would compute its positions up to `first_end`."""
        ...

    def permits(self, request: Request, rows: Rows, kv: KVManager) -> bool:
        """False: not now, though the promise could be kept. Not asked when nobody sits."""
        ...


class FullPrompt:
    """All tokens known now (prompt; after a preemption the outputs too), so that only decodes ask for blocks later."""

    vetoes = False

    def __init__(self, watermark_blocks: int = 0) -> None:
        self.watermark_blocks = watermark_blocks

    def promise(self, request: Request, kv: KVManager, first_end: int) -> int:
        return kv.blocks_for(min(request.known, request.kv_limit))

    def permits(self, request: Request, rows: Rows, kv: KVManager) -> bool:
        return True


class FullReserve:
    """Prompt and every output token it may make: it can never run short. Occupancy pays for that."""

    vetoes = False
    watermark_blocks = 0

    def promise(self, request: Request, kv: KVManager, first_end: int) -> int:
        return kv.blocks_for(request.kv_limit)

    def permits(self, request: Request, rows: Rows, kv: KVManager) -> bool:
        return True


class Optimistic(FullPrompt):
    """The first chunk only: most requests sit soonest, and evict each other most."""

    def promise(self, request: Request, kv: KVManager, first_end: int) -> int:
        return kv.blocks_for(first_end)


class Peak(FullPrompt):
    """As full-prompt, but only while the predicted peak of all who sit fits the pool (the rule of LightLLM).

    With a_j positions held now and b_j still to come, sorted by b descending, requests 0..i are still there when
    request i ends, so the peak is  max over i of  (i + 1) * b_i + a_0 + ... + a_i.  Each request may waste up to
    block_size - 1 positions of its last block. b is the largest number of tokens it may make.
    """

    vetoes = True

    def permits(self, request: Request, rows: Rows, kv: KVManager) -> bool:
        seated = rows.in_order()
        seated = seated[rows.live[seated]]
        held = np.append(rows.known[seated], request.known)
        left = np.append(rows.kv_limit[seated], request.kv_limit) - held
        by_left = np.argsort(-left, kind="stable")
        count = np.arange(1, len(held) + 1)
        peak = np.max(count * left[by_left] + np.cumsum(held[by_left]) + count * (kv.block_size - 1))
        return int(peak) <= kv.num_blocks * kv.block_size
