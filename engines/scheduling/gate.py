"""ResourceGate: the one place where seats, step tokens, KV blocks and context are granted.

It sits below every policy. A policy may rank, veto or ask; whatever it asks, nothing passes the gate that the
resources do not hold. So no priority and no mode can bypass total protection: there is no other door.
"""

from __future__ import annotations

from engines.scheduling.kv import KVManager
from engines.scheduling.ledger import Blocked
from engines.scheduling.plan import IntArray
from engines.scheduling.request import Request
from engines.scheduling.rows import Rows


class ResourceGate:
    def __init__(
        self, rows: Rows, kv: KVManager, *, max_num_batched_tokens: int, max_model_len: int, chunked: bool
    ) -> None:
        self._rows = rows
        self._kv = kv
        self._max_model_len = max_model_len
        self._chunked = chunked
        self.budget = max_num_batched_tokens

    def refusal(self, request: Request) -> str | None:
        """Why this request can never run, with the numbers, or None. Decided at submit, so nothing waits for ever."""
        total = request.prompt_tokens + request.max_output_tokens
        if request.prompt_tokens < 1 or request.max_output_tokens < 1:
            return (
                f"needs at least 1 prompt and 1 output token, got {request.prompt_tokens} + {request.max_output_tokens}"
            )
        if total > self._max_model_len:
            return (
                f"exceeds_context: {request.prompt_tokens} prompt + {request.max_output_tokens} output tokens "
                f"= {total}, max_model_len is {self._max_model_len}"
            )
        blocks = self._kv.blocks_for(request.kv_limit)
        if blocks > self._kv.num_blocks:
            return f"exceeds_kv: needs {blocks} blocks ({request.kv_limit} positions), pool has {self._kv.num_blocks}"
        if not self._chunked and request.prompt_tokens > self.budget:
            return (
                f"prompt_exceeds_step_budget: {request.prompt_tokens} prompt tokens, max_num_batched_tokens is "
                f"{self.budget} and chunked prefill is off"
            )
        return None

    def seat(self, request: Request, promise: int, *, set_aside: int, watermark: int) -> Blocked:
        """Seat the request with `promise` blocks, or say what is missing. Blocked.NO means it sits.

        set_aside: available blocks that seated requests will take in this very step.
        watermark: blocks that must stay available; a lone request is held to none, or it might wait for ever.
        """
        if self._rows.num_free == 0:
            return Blocked.ROWS
        left = self._kv.available - set_aside - promise
        if left < 0:
            return Blocked.KV
        if left < watermark and self._rows.num_live > 0:
            return Blocked.WATERMARK
        self._kv.promise(self._rows.seat(request), promise)
        return Blocked.NO

    def grow(self, slots: IntArray, ends: IntArray) -> None:
        """Take the blocks a step needs. The scheduler has made room; asking for more than there is, is its bug."""
        assert int(self._kv.beyond_promise(slots, ends).sum()) <= self._kv.available
        self._kv.grow(slots, ends)

    def spend(self, launched_tokens: int) -> int:
        """Account a step's launched tokens, padding and dead rows included; returns what is left of the budget."""
        assert launched_tokens <= self.budget, f"step of {launched_tokens} tokens, budget {self.budget}"
        return self.budget - launched_tokens
