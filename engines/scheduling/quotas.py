"""Quotas: what one tenant may hold at a time, and how fast it may spend. Part of the gate, below every policy.

Tokens per second are a debt account: admission charges prompt + largest output, the account recovers at the tenant's
rate up to one second's worth, and a tenant in debt is not admitted. So any request can run, and the rate holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.scheduling.request import Request

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    """None: no limit."""

    rows: int | None = None
    kv_blocks: int | None = None
    tokens_per_s: float | None = None


@dataclass(slots=True)
class _Account:
    rows: int = 0
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
        if quota.rows == 0:
            return f"exceeds_quota: tenant {request.tenant} may hold 0 seats"
        return None

    def admits_at_ns(self, request: Request, blocks: int, now_ns: int) -> int | None:
        """now_ns if the tenant may seat it now, a later time if only the rate forbids it, None if a seat must free."""
        quota, account = self._quota.get(request.tenant), self._accounts.get(request.tenant)
        if quota is None or account is None:
            return now_ns
        if quota.rows is not None and account.rows >= quota.rows:
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
            account.rows += 1
            account.kv_blocks += blocks
            if request.fresh:
                account.tokens -= request.prompt_tokens + request.max_output_tokens

    def left(self, request: Request, blocks: int) -> None:
        if (account := self._accounts.get(request.tenant)) is not None:
            account.rows -= 1
            account.kv_blocks -= blocks

    @staticmethod
    def _recover(account: _Account, tokens_per_s: float, now_ns: int) -> None:
        account.tokens = min(account.tokens + (now_ns - account.at_ns) / NS * tokens_per_s, tokens_per_s)
        account.at_ns = now_ns

    def check_invariants(self) -> None:
        for tenant, account in self._accounts.items():
            quota = self._quota[tenant]
            assert 0 <= account.rows <= (quota.rows if quota.rows is not None else account.rows), tenant
            assert 0 <= account.kv_blocks <= (quota.kv_blocks if quota.kv_blocks is not None else account.kv_blocks)
