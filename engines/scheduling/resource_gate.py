"""ResourceGate: the one place where seats, step tokens, KV blocks, context and tenant quotas are granted.

It sits below every policy. A policy may rank, veto or ask; whatever it asks, nothing passes the gate that the
resources do not hold. So no priority and no mode can bypass total protection: there is no other door.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.ledger import Blocked
from engines.scheduling.kv import KVManager
from engines.scheduling.plan import IntArray
from engines.scheduling.request import Request
from engines.scheduling.slots import Slots

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    """None: no limit."""

    max_num_seqs: int | None = None
    kv_blocks: int | None = None
    tokens_per_s: float | None = None


@dataclass(slots=True)
class _Account:
    slots: int = 0
    kv_blocks: int = 0
    tokens: float = 0.0
    at_ns: int = 0


UNLIMITED = Quota()


class Quotas:
    def __init__(self, by_tenant: Mapping[str, Quota] | None = None) -> None:
        self._quota = dict(by_tenant or {})
        self._accounts = {t: _Account(tokens=q.tokens_per_s or 0.0) for t, q in self._quota.items()}

    def __bool__(self) -> bool:
        return bool(self._quota)

    def reserves(self, request: Request) -> bool:
        """A tenant with a block quota is promised all it may need, so that the quota holds without evicting anybody."""
        return self._quota.get(request.tenant, UNLIMITED).kv_blocks is not None

    def refusal(self, request: Request, blocks: int) -> str | None:
        quota = self._quota.get(request.tenant, UNLIMITED)
        if quota.kv_blocks is not None and blocks > quota.kv_blocks:
            return f"exceeds_quota: needs {blocks} KV blocks, tenant {request.tenant} may hold {quota.kv_blocks}"
        if quota.max_num_seqs == 0:
            return f"exceeds_quota: tenant {request.tenant} may hold 0 seats"
        return None

    def admits_at_ns(self, request: Request, blocks: int, now_ns: int) -> int | None:
        """now_ns if the tenant may seat it now, a later time if only the rate forbids it, None if a seat must free."""
        quota, account = self._quota.get(request.tenant), self._accounts.get(request.tenant)
        if quota is None or account is None:
            return now_ns
        if quota.max_num_seqs is not None and account.slots >= quota.max_num_seqs:
            return None
        if quota.kv_blocks is not None and account.kv_blocks + blocks > quota.kv_blocks:
            return None
        if quota.tokens_per_s is not None and request.fresh:
            self._recover(account, quota.tokens_per_s, now_ns)
            if account.tokens < 0:
                return now_ns + max(1, round(-account.tokens / quota.tokens_per_s * NS))
        return now_ns

    def seated(self, request: Request, blocks: int) -> None:
        if (account := self._accounts.get(request.tenant)) is not None:
            account.slots += 1
            account.kv_blocks += blocks
            if request.fresh:
                account.tokens -= request.prompt_tokens + request.max_output_tokens

    def left(self, request: Request, blocks: int) -> None:
        if (account := self._accounts.get(request.tenant)) is not None:
            account.slots -= 1
            account.kv_blocks -= blocks

    @staticmethod
    def _recover(account: _Account, tokens_per_s: float, now_ns: int) -> None:
        account.tokens = min(account.tokens + (now_ns - account.at_ns) / NS * tokens_per_s, tokens_per_s)
        account.at_ns = now_ns

    def check_invariants(self) -> None:
        for tenant, account in self._accounts.items():
            quota = self._quota[tenant]
            assert account.slots >= 0, tenant
            assert quota.max_num_seqs is None or account.slots <= quota.max_num_seqs, tenant
            assert account.kv_blocks >= 0, tenant
            assert quota.kv_blocks is None or account.kv_blocks <= quota.kv_blocks, tenant


@dataclass(frozen=True, slots=True)
class Denied:
    why: Blocked
    until_ns: int | None = None  # when time alone will lift it


class ResourceGate:
    def __init__(
        self,
        rows: Slots,
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
