"""Admission: how many KV blocks a request reserves when it is admitted. A policy may ask or veto, never grants."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from engines.scheduling.kv import KVManager
from engines.scheduling.plan import IntArray
from engines.scheduling.request import Request
from engines.scheduling.slots import Slots


class Admission(Protocol):
    vetoes: bool  # False if permits() always does
    watermark_blocks: int  # blocks that must stay available after an admission, unless the batch is empty

    def reserve(self, request: Request, kv: KVManager, first_end: int) -> int:
        """Blocks to reserve in all, when the request's first step would compute its positions up to `first_end`."""
        ...

    def must_fit(self, request: Request, kv: KVManager) -> int:
        """Blocks that must be available at admission, held ones included, even if fewer are reserved."""
        ...

    def look(self, running: IntArray, slots: Slots, kv: KVManager) -> None:
        """The requests in these slots run. Called before the first admission of a step, and again where others do or
        would."""
        ...

    def permits(self, request: Request) -> bool:
        """False: not now, though there are blocks for it. Not called while the batch is empty."""
        ...

    def admitted(self, request: Request) -> None:
        """This one is admitted, in addition to those of the last look."""
        ...


class FullPrompt:
    """All tokens known now (prompt; after a preemption the outputs too), so that only decodes ask for blocks later."""

    vetoes = False

    def __init__(self, watermark_blocks: int = 0) -> None:
        self.watermark_blocks = watermark_blocks

    def reserve(self, request: Request, kv: KVManager, first_end: int) -> int:
        return kv.blocks_for(min(request.known, request.kv_limit))

    def must_fit(self, request: Request, kv: KVManager) -> int:
        return 0  # what is reserved is enough

    def look(self, running: IntArray, slots: Slots, kv: KVManager) -> None: ...

    def permits(self, request: Request) -> bool:
        return True

    def admitted(self, request: Request) -> None: ...


class FullReserve(FullPrompt):
    """Prompt and every output token it may make: it can never run short. Occupancy pays for that."""

    def reserve(self, request: Request, kv: KVManager, first_end: int) -> int:
        return kv.blocks_for(request.kv_limit)


class Optimistic(FullPrompt):
    """The first chunk only: requests are admitted soonest, and preempt each other most."""

    def reserve(self, request: Request, kv: KVManager, first_end: int) -> int:
        return kv.blocks_for(first_end)


class PromptFits(Optimistic):
    """The first chunk only, and only where all tokens known now would fit: what is not reserved may be gone when their
    turn comes. vLLM's default (its `scheduler_reserve_full_isl`)."""

    def must_fit(self, request: Request, kv: KVManager) -> int:
        return kv.blocks_for(min(request.known, request.kv_limit))


class Peak(FullPrompt):
    """As full-prompt, but only while the predicted peak of the running batch fits the pool (the rule of LightLLM)."""

    vetoes = True

    def __init__(self, watermark_blocks: int = 0) -> None:
        super().__init__(watermark_blocks)
        self._forecast: Forecast | None = None
        self._positions = 0  # in the pool

    def look(self, running: IntArray, slots: Slots, kv: KVManager) -> None:
        running = running[slots.active[running]]
        held = slots.known[running]
        self._forecast = Forecast(held, slots.kv_limit[running] - held, kv.block_size)
        self._positions = kv.num_blocks * kv.block_size

    def permits(self, request: Request) -> bool:
        assert self._forecast is not None
        return self._forecast.peak_with(request.known, request.kv_limit - request.known) <= self._positions

    def admitted(self, request: Request) -> None:
        assert self._forecast is not None
        self._forecast.add(request.known, request.kv_limit - request.known)


class Forecast:
    """The most KV positions that some requests will ever hold at once, if none other comes.

    With h_j positions held now and l_j still to come, sorted by l descending, requests 0..i are still there when
    request i ends, so the peak is  max over i of  (i + 1) * l_i + h_0 + ... + h_i.  Each request may waste up to
    block_size - 1 positions of its last block, which counts as held. l is the largest number of tokens it may make.

    One more request changes nothing for those before it, and adds  l_i + its h  to each behind it: so two running
    maxima answer "what if?" at once.
    """

    def __init__(self, held: IntArray, left: IntArray, block_size: int) -> None:
        by_left = np.argsort(-left, kind="stable")
        self._waste = block_size - 1
        self._less = -left[by_left]  # ascending, as searchsorted wants it
        self._held = held[by_left] + self._waste
        self._sum_up()

    def _sum_up(self) -> None:
        self._held_before = np.concatenate(([0], np.cumsum(self._held)))
        at_end = self._held_before[1:] - np.arange(1, len(self._less) + 1) * self._less
        self._peak_before = np.maximum.accumulate(np.concatenate(([0], at_end)))
        self._peak_behind = np.maximum.accumulate((at_end - self._less)[::-1])[::-1]

    def peak_with(self, held: int, left: int) -> int:
        """The peak if one more request held so many positions, with so many still to come."""
        at, held = int(np.searchsorted(self._less, -left)), held + self._waste
        peak = max(int(self._peak_before[at]), (at + 1) * left + int(self._held_before[at]) + held)
        return peak if at == len(self._less) else max(peak, int(self._peak_behind[at]) + held)

    def add(self, held: int, left: int) -> None:
        at = int(np.searchsorted(self._less, -left))
        self._less = np.concatenate((self._less[:at], [-left], self._less[at:]))
        self._held = np.concatenate((self._held[:at], [held + self._waste], self._held[at:]))
        self._sum_up()
