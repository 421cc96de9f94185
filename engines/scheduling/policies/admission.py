"""Admission: how many KV blocks a request must be promised before it may sit. May ask for more, never grants."""

from __future__ import annotations

from typing import Protocol

from engines.scheduling.kv import KVManager
from engines.scheduling.request import Request


class Admission(Protocol):
    watermark_blocks: int  # blocks that must stay available after the promise, unless nobody sits

    def promise(self, request: Request, kv: KVManager) -> int:
        """Blocks to promise at admission."""
        ...


class FullPrompt:
    """All tokens known now (prompt; after a preemption the outputs too), so that only decodes ask for blocks later."""

    def __init__(self, watermark_blocks: int = 0) -> None:
        self.watermark_blocks = watermark_blocks

    def promise(self, request: Request, kv: KVManager) -> int:
        return kv.blocks_for(min(request.known, request.kv_limit))


class FullReserve:
    """Prompt and every output token it may make: it can never run short. Occupancy pays for that."""

    watermark_blocks = 0

    def promise(self, request: Request, kv: KVManager) -> int:
        return kv.blocks_for(request.kv_limit)
