"""ResourceGate: the one place where seats, step tokens, KV blocks, context and tenant quotas are granted.

It sits below every policy. A policy may rank, veto or ask; whatever it asks, nothing passes the gate that the
resources do not hold. So no priority and no mode can bypass total protection: there is no other door.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.scheduling.kv import KVManager
from engines.scheduling.ledger import Blocked
from engines.scheduling.plan import IntArray
from engines.scheduling.quotas import Quotas
from engines.scheduling.request import Request
from engines.scheduling.rows import Rows


@dataclass(frozen=True, slots=True)
class Denied:
    why: Blocked
    until_ns: int | None = None  # when time alone will lift it


class ResourceGate:
    def __init__(
        self,
        rows: Rows,
        kv: KVManager,
        quotas: Quotas,
        *,
        max_num_batched_tokens: int,
        max_model_len: int,
        chunked: bool,
    ) -> None:
        self._rows = rows
        self._kv = kv
        self._quotas = quotas
        self._max_model_len = max_model_len
        self._chunked = chunked
        self.budget = max_num_batched_tokens

    @property
    def has_quotas(self) -> bool:
        return bool(self._quotas)

    def refusal(self, request: Request) -> str | None:
        """Why this request can never run, with the numbers, or None. Decided at submit, so nothing waits for ever."""
        prompt, output = request.prompt_tokens, request.max_output_tokens
        if prompt < 1 or output < 1:
            return f"needs at least 1 prompt and 1 output token, got {prompt} + {output}"
        if prompt + output > self._max_model_len:
            return (
                f"exceeds_context: {prompt} prompt + {output} output tokens = {prompt + output}, "
                f"max_model_len is {self._max_model_len}"
            )
        blocks = self._kv.blocks_for(request.kv_limit)
        if blocks > self._kv.num_blocks:
            return f"exceeds_kv: needs {blocks} blocks ({request.kv_limit} positions), pool has {self._kv.num_blocks}"
        if not self._chunked and prompt > self.budget:
            return (
                f"prompt_exceeds_step_budget: {prompt} prompt tokens, max_num_batched_tokens is {self.budget} "
                "and chunked prefill is off"
            )
        return self._quotas.refusal(request, blocks)

    def seat(
        self, request: Request, promise: int, hits: list[int], *, set_aside: int, watermark: int, now_ns: int
    ) -> Denied | None:
        """Seat the request with `hits` shared blocks and `promise` blocks in all, or say what is missing.

        set_aside: available blocks that seated requests will take in this very step.
        watermark: blocks that must stay available; a lone request is held to none, or it might wait for ever.
        """
        if self._rows.num_free == 0:
            return Denied(Blocked.ROWS)
        most = self._kv.blocks_for(request.kv_limit)
        at_ns = self._quotas.admits_at_ns(request, most, now_ns)
        if at_ns is None or at_ns > now_ns:
            return Denied(Blocked.QUOTA, at_ns)
        promise = most if self._quotas.reserves(request) else max(promise, len(request.host_blocks))
        # hits that nobody holds leave the cache, so they count like any other block
        needs = promise - len(hits) + self._kv.pool.num_cached_of(hits)
        left = self._kv.available - set_aside - needs
        if left < 0:
            return Denied(Blocked.KV)
        if left < watermark and self._rows.num_live > 0:
            return Denied(Blocked.WATERMARK)
        computed = request.swapped_positions or len(hits) * self._kv.block_size
        slot = self._rows.seat(request, computed)
        self._kv.open(slot, request, promise, hits)
        self._quotas.seated(request, most)
        return None

    def leave(self, request: Request, collected: int) -> None:
        """Seat, blocks and quota go back, behind the last step that has a row for the seat."""
        slot = request.slot
        self._quotas.left(request, self._kv.blocks_for(request.kv_limit))
        self._kv.release(slot, int(self._rows.last_step[slot]), collected)
        self._rows.leave(slot, collected)

    def grow(self, slots: IntArray, ends: IntArray) -> None:
        """Take the blocks a step needs. The scheduler has made room; asking for more than there is, is its bug."""
        self._kv.grow(slots, ends)
        assert self._kv.available >= 0, "a step took blocks that others have been promised"

    def spend(self, launched_tokens: int) -> int:
        """Account a step's launched tokens, padding and dead rows included; returns what is left of the budget."""
        assert launched_tokens <= self.budget, f"step of {launched_tokens} tokens, budget {self.budget}"
        return self.budget - launched_tokens

    def check_invariants(self) -> None:
        self._quotas.check_invariants()
