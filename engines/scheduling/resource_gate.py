"""ResourceGate: the one place where slots, step tokens, KV blocks, context and tenant quotas are granted.

It is below every policy. A policy may rank, veto or ask for blocks; whatever it asks, the gate grants only what there
is. So no priority and no mode can overcommit the engine or pass a quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from engines.ledger import Blocked
from engines.scheduling.kv import KVManager
from engines.scheduling.plan import IntArray
from engines.scheduling.policies.partial_prefills import NONE_PARTIAL, Partial
from engines.scheduling.request import Request
from engines.scheduling.slots import Slots

NS = 1_000_000_000


class Vacated(NamedTuple):
    """What would be free if some running requests were not: for a question, nothing is preempted."""

    requests: tuple[Request, ...] = ()  # the running ones left out; all are active
    slots: int = 0  # theirs, and those that are free once the step in flight has ended
    blocks: int = 0  # available blocks, likewise
    unheld: frozenset[int] = frozenset()  # published blocks that no table would hold


NOTHING = Vacated()


@dataclass(slots=True)
class AdmissionBudget:
    """What a step leaves for waiting requests."""

    tokens: int
    set_aside: int  # available blocks that running requests take in this step
    vacated: Vacated = NOTHING
    partial: Partial = NONE_PARTIAL  # prompts that it leaves partly computed


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a waiting request is not admitted now."""

    why: Blocked
    until_ns: int | None = None  # when the passing of time alone will end it
    needs_blocks: int = 0  # where KV is short: available blocks that the request needs

    @property
    def lacks_kv(self) -> bool:
        return self.why is Blocked.KV or self.why is Blocked.WATERMARK


class Grant(NamedTuple):
    """What a request gets when it is admitted."""

    takes: int  # tokens of this step
    computed: int  # positions that are in KV already: shared, or copied back
    hits: list[int]  # blocks of other requests that it shares
    blocks: int  # held and reserved, hits included
    must_fit: int = 0  # blocks that must be available, hits included, if those are more


class ResourceGate:
    def __init__(
        self,
        slots: Slots,
        kv: KVManager,
        quotas: Quotas,
        *,
        max_num_batched_tokens: int,
        max_model_len: int,
        chunked: bool,
    ) -> None:
        self._slots = slots
        self._kv = kv
        self._quotas = quotas
        self._max_model_len = max_model_len
        self._chunked = chunked
        self.budget = max_num_batched_tokens

    @property
    def has_quotas(self) -> bool:
        return bool(self._quotas)

    def never_fits(self, request: Request) -> str | None:
        """Why this request can never run, with the numbers, or None. Asked at submit, so no request waits for ever."""
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
        return self._quotas.never_fits(request, blocks)

    def can_allocate(
        self, request: Request, grant: Grant, budget: AdmissionBudget, *, watermark: int, now_ns: int
    ) -> Refusal | None:
        """None if there are a slot, a quota and blocks for the grant, else what is missing.

        watermark: blocks that must stay available; a lone request is held to none, or it might wait for ever.
        """
        vacated = budget.vacated
        if self._slots.num_free + vacated.slots == 0:
            return Refusal(Blocked.ROWS)
        blocks = self._kv.blocks_for(request.kv_limit)
        held = [self._kv.blocks_for(one.kv_limit) for one in vacated.requests if one.tenant == request.tenant]
        at_ns = self._quotas.admits_at_ns(request, blocks, now_ns, len(held), sum(held))
        if at_ns is None or at_ns > now_ns:
            return Refusal(Blocked.QUOTA, at_ns)
        # hits that no request holds leave the cache, so they count like any other block
        needs = grant.blocks if grant.blocks > grant.must_fit else grant.must_fit
        if grant.hits:
            needs += self._kv.pool.num_cached_of(grant.hits) - len(grant.hits)
            if vacated.unheld:
                needs += len(vacated.unheld.intersection(grant.hits))
        left = self._kv.available + vacated.blocks - budget.set_aside - needs
        if left < 0:
            return Refusal(Blocked.KV, needs_blocks=needs)
        if left < watermark and self._slots.num_active > len(vacated.requests):
            return Refusal(Blocked.WATERMARK, needs_blocks=needs)
        return None

    def blocks_to_reserve(self, request: Request, asked: int) -> int:
        """Blocks for the request in all: as many as the admission policy asks, or more to hold its swapped KV, or all
        that it can ever need where a quota counts them."""
        if self._quotas.reserves(request):
            return self._kv.blocks_for(request.kv_limit)
        return max(asked, len(request.host_blocks))

    def allocate(self, request: Request, grant: Grant) -> None:
        """Give the request a slot, its blocks and its part of the quota. Checked by can_allocate."""
        slot = self._slots.take(request, grant.computed)
        self._kv.open(slot, request, grant.blocks, grant.hits)
        self._quotas.admitted(request, self._kv.blocks_for(request.kv_limit))

    def release(self, request: Request, collected: int) -> None:
        """Take slot, blocks and quota back, behind the last step that has a row for the slot."""
        slot = request.slot
        self._quotas.released(request, self._kv.blocks_for(request.kv_limit))
        self._kv.release(slot, int(self._slots.last_step[slot]), collected)
        self._slots.release(slot, collected)

    def settle(self, request: Request) -> None:
        """The request has ended, here or where it was handed over to: its tenant pays the tokens that it has used."""
        if self._quotas:
            self._quotas.settle(request)

    def grow(self, slots: IntArray, ends: IntArray) -> None:
        """Take the blocks a step needs. The scheduler has made room; asking for more than there is, is a bug there."""
        self._kv.grow(slots, ends)
        assert self._kv.available >= 0, "a step took blocks that are reserved for other requests"

    def spend(self, launched_tokens: int) -> int:
        """Account a step's launched tokens, padding and dead rows included; returns what is left of the budget."""
        assert launched_tokens <= self.budget, f"step of {launched_tokens} tokens, budget {self.budget}"
        return self.budget - launched_tokens

    def check_invariants(self) -> None:
        self._quotas.check_invariants()


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may hold at a time, and how fast it may spend. None: no limit."""

    max_num_seqs: int | None = None
    kv_blocks: int | None = None
    tokens_per_s: float | None = None


@dataclass(slots=True)
class _Account:
    slots: int = 0
    kv_blocks: int = 0
    tokens: float = 0.0
    at_ns: int = 0
    charged: dict[int, int] = field(default_factory=dict)  # tokens, by index, of admitted requests that have not ended


UNLIMITED = Quota()


class Quotas:
    """Tokens per second are a debt account: admission charges prompt + largest output, the end of the request gives
    back what it has not used, the account recovers at the tenant's rate up to one second's worth, and a tenant in debt
    is not admitted. So any request can run, and the rate holds."""

    def __init__(self, by_tenant: Mapping[str, Quota] | None = None) -> None:
        self._quota = dict(by_tenant or {})
        self._accounts = {t: _Account(tokens=q.tokens_per_s or 0.0) for t, q in self._quota.items()}

    def __bool__(self) -> bool:
        return bool(self._quota)

    def reserves(self, request: Request) -> bool:
        """A tenant with a block quota reserves all it may need, so that the quota holds without a preemption."""
        return self._quota.get(request.tenant, UNLIMITED).kv_blocks is not None

    def never_fits(self, request: Request, blocks: int) -> str | None:
        """As ResourceGate.never_fits."""
        quota = self._quota.get(request.tenant, UNLIMITED)
        if quota.kv_blocks is not None and blocks > quota.kv_blocks:
            return f"exceeds_quota: needs {blocks} KV blocks, tenant {request.tenant} may hold {quota.kv_blocks}"
        if quota.max_num_seqs == 0:
            return f"exceeds_quota: tenant {request.tenant} may hold 0 slots"
        return None

    def admits_at_ns(
        self, request: Request, blocks: int, now_ns: int, vacated_slots: int = 0, vacated_blocks: int = 0
    ) -> int | None:
        """now_ns if the quota admits it now, a later time if only the rate forbids it, None if a request must end.

        vacated_slots, vacated_blocks: what the tenant would no longer hold.
        """
        quota, account = self._quota.get(request.tenant), self._accounts.get(request.tenant)
        if quota is None or account is None:
            return now_ns
        if quota.max_num_seqs is not None and account.slots - vacated_slots >= quota.max_num_seqs:
            return None
        if quota.kv_blocks is not None and account.kv_blocks - vacated_blocks + blocks > quota.kv_blocks:
            return None
        if quota.tokens_per_s is not None and request.fresh:
            self._recover(account, quota.tokens_per_s, now_ns)
            if account.tokens < 0:
                return now_ns + max(1, round(-account.tokens / quota.tokens_per_s * NS))
        return now_ns

    def admitted(self, request: Request, blocks: int) -> None:
        if (account := self._accounts.get(request.tenant)) is not None:
            account.slots += 1
            account.kv_blocks += blocks
            if request.fresh:
                charged = request.prompt_tokens + request.max_output_tokens
                account.tokens -= charged
                account.charged[request.index] = charged

    def released(self, request: Request, blocks: int) -> None:
        if (account := self._accounts.get(request.tenant)) is not None:
            account.slots -= 1
            account.kv_blocks -= blocks

    def settle(self, request: Request) -> None:
        """As ResourceGate.settle. Nothing was charged where it was never admitted, or where another instance did it."""
        if (account := self._accounts.get(request.tenant)) is not None:
            charged = account.charged.pop(request.index, None)
            if charged is not None:
                account.tokens += charged - request.used_tokens

    @staticmethod
    def _recover(account: _Account, tokens_per_s: float, now_ns: int) -> None:
        """Bring the account up to `now_ns`."""
        account.tokens = min(account.tokens + (now_ns - account.at_ns) / NS * tokens_per_s, tokens_per_s)
        account.at_ns = now_ns

    def check_invariants(self) -> None:
        for tenant, account in self._accounts.items():
            quota = self._quota[tenant]
            assert account.slots >= 0, tenant
            assert quota.max_num_seqs is None or account.slots <= quota.max_num_seqs, tenant
            assert account.kv_blocks >= 0, tenant
            assert quota.kv_blocks is None or account.kv_blocks <= quota.kv_blocks, tenant
