"""AdmissionCheck: what a waiting request would get if it joined the running ones now. It answers, and changes nothing.

A question about the running batch without some of its requests (`victims`) comes before every priority preemption.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engines.ledger import Blocked
from engines.scheduling.kv import KVManager
from engines.scheduling.plan import IntArray
from engines.scheduling.policies import Policies
from engines.scheduling.policies.partial_prefills import NONE_PARTIAL, Partial
from engines.scheduling.policies.preemption import fewest
from engines.scheduling.request import Request
from engines.scheduling.resource_gate import AdmissionBudget, Grant, Refusal, ResourceGate, Vacated
from engines.scheduling.running import RunningBatch, Shares
from engines.scheduling.slots import Slots
from engines.scheduling.waiting import Waiting

PREEMPTION_MAY_HELP = {Blocked.ROWS, Blocked.KV, Blocked.WATERMARK, Blocked.PEAK, Blocked.QUOTA}


class AdmissionCheck:
    def __init__(
        self,
        slots: Slots,
        kv: KVManager,
        gate: ResourceGate,
        policies: Policies,
        waiting: Waiting,
        running: RunningBatch,
    ) -> None:
        self._slots = slots
        self._kv = kv
        self._gate = gate
        self._policies = policies
        self._waiting = waiting
        self._running = running
        self.preempted: set[int] = set()  # in this planning: not admitted again in it
        self.bucket: int | None = None  # whose prompts are admitted and computed in this step; None: all

    def share(self, *, prompts: bool = True) -> Shares:
        """Share the step's tokens among the running requests, in plan order. prompts: False leaves them none, as if
        they were not there."""
        wants, computed = self._running.wants(self.bucket), self._slots.computed[self._slots.in_order()]
        if not prompts:
            wants, computed = np.where(wants > 1, 0, wants), np.maximum(computed, 1)
        return Shares(*self._policies.batching.share(wants, computed, self._gate.budget))

    def shares_without(self, victims: Sequence[int]) -> tuple[IntArray, IntArray]:
        """(taken slots but these, in plan order, the tokens each computes in a step without them)."""
        slots, wants = self._slots.in_order(), self._running.wants(self.bucket)
        if victims:
            others = np.isin(slots, victims, invert=True)
            slots, wants = slots[others], wants[others]
        return slots, self._policies.batching.share(wants, self._slots.computed[slots], self._gate.budget)[0]

    def tokens_left(self, counts: IntArray) -> int:
        """Tokens a step leaves for waiting requests when the running ones compute `counts` of it."""
        wants, computed = self._running.wants(self.bucket), self._slots.computed[self._slots.in_order()]
        return self._policies.batching.room(wants, computed, counts, self._gate.budget)

    def budget(self, counts: IntArray) -> AdmissionBudget:
        """What a step leaves for waiting requests when the running ones compute `counts` tokens of it."""
        self._policies.admission.look(self._slots.in_order(), self._slots, self._kv)
        # Without a free slot no request is admitted, whatever blocks there are.
        set_aside = int(self._running.growth(counts).sum()) if self._slots.num_free else 0
        return AdmissionBudget(
            self.tokens_left(counts), set_aside, partial=self._partial(self._slots.in_order(), counts)
        )

    def _partial(self, order: IntArray, counts: IntArray) -> Partial:
        limit = self._policies.partial_prefills
        return limit.left_by(order, counts, self._slots) if limit.limited else NONE_PARTIAL

    def admitted(self, request: Request, takes: int, budget: AdmissionBudget) -> None:
        """The request was admitted and takes so many tokens of what the step leaves."""
        budget.tokens -= takes
        limit = self._policies.partial_prefills
        if limit.limited and self._slots.computed[request.slot] + takes < min(request.known, request.kv_limit):
            budget.partial = limit.beside(request.prompt_tokens, budget.partial)

    def can_take_tokens(self, head: Request) -> bool:
        """Less urgent prompts are computed, which leave it all but one token each."""
        less_urgent = self._slots.less_urgent(head)
        return len(less_urgent) > 0 and bool(
            (self._slots.known[less_urgent] - self._slots.computed[less_urgent] > 1).any()
        )

    def budget_of(self, head: Request, victims: Sequence[int] = (), *, soon: bool = False) -> AdmissionBudget:
        """What a step leaves for `head` when less urgent prompts leave it all but one token each; had the requests in
        the slots `victims` been preempted.

        soon: what waits for the end of the step in flight counts as free.
        """
        batching, slots = self._policies.batching, self._slots
        running, counts = self.shares_without(victims)
        less_urgent = np.isin(running, slots.less_urgent(head))
        counts = np.where(less_urgent, np.minimum(counts, 1), counts)
        wants = self._running.wants(self.bucket)[np.isin(slots.in_order(), running)]
        tokens = batching.room(wants, slots.computed[running], counts, self._gate.budget)
        set_aside = int(self._kv.beyond_reserved(running, slots.computed[running] + counts).sum())
        self._policies.admission.look(running, slots, self._kv)
        partial = self._partial(running, counts)
        if not victims and not soon:
            return AdmissionBudget(tokens, set_aside, partial=partial)
        blocks, unheld = self._kv.freed_by(victims)
        num_slots = len(victims)
        if soon:
            blocks += self._kv.pool.num_pending
            num_slots += slots.num_pending
        requests = tuple(slots.request_in(slot) for slot in victims)
        return AdmissionBudget(tokens, set_aside, Vacated(requests, num_slots, blocks, unheld), partial)

    def can_admit(self, request: Request, budget: AdmissionBudget, now_ns: int) -> Grant | Refusal:
        """What a waiting request gets when it is admitted now, or why it is not. Changes nothing."""
        batching, admission = self._policies.batching, self._policies.admission
        if request.index in self.preempted:
            return Refusal(Blocked.PREEMPTED)
        if batching.patience_ns and self._slots.num_taken == 0:
            due_ns = self.batch_due_ns(request.bucket)
            if due_ns > now_ns:
                return Refusal(Blocked.PATIENCE, due_ns)
        hits = self._kv.match(request)
        computed = request.swapped_positions or len(hits) * self._kv.block_size
        want = min(request.known, request.kv_limit) - computed
        takes = batching.takes(want, budget.tokens, request.preemptions > 0) if budget.tokens > 0 else 0
        if takes == 0:
            return Refusal(batching.blocked)
        if takes < want and not self._policies.partial_prefills.admits(request.prompt_tokens, budget.partial):
            return Refusal(Blocked.PARTIAL)
        if self._slots.num_active > len(budget.vacated.requests) and not admission.permits(request):
            return Refusal(Blocked.PEAK)
        whole = request.preemptions > 0 and self._policies.resume_whole
        first_end = min(request.known, request.kv_limit) if whole else computed + takes
        blocks = self._gate.blocks_to_reserve(request, admission.reserve(request, self._kv, first_end))
        grant = Grant(takes, computed, hits, blocks, admission.must_fit(request, self._kv))
        refusal = self._gate.can_allocate(request, grant, budget, watermark=admission.watermark_blocks, now_ns=now_ns)
        return refusal or grant

    def batch_due_ns(self, bucket: int) -> int:
        """Static batching: until when a batch of the bucket may wait for more requests; 0 where it is full."""
        waiting = self._waiting.of_bucket(bucket)
        if len(waiting) >= self._slots.num_slots:
            return 0
        return min(one.submitted_ns for one in waiting) + self._policies.batching.patience_ns

    def victims_for(self, head: Request, refusal: Refusal, now_ns: int, *, soon: bool) -> list[int]:
        """Slots of the fewest less urgent requests without which `head` would be admitted; none where it would not be,
        or where it will be when the step in flight has ended. Changes nothing."""
        if refusal.why not in PREEMPTION_MAY_HELP:
            return []
        if not (candidates := self._policies.priority.candidates(head, self._slots)):
            return []
        victims = fewest(candidates, lambda some: self.would_admit(head, some, now_ns, soon=soon))
        self._policies.admission.look(self._slots.in_order(), self._slots, self._kv)
        return victims

    def would_admit(self, head: Request, victims: Sequence[int], now_ns: int, *, soon: bool) -> bool:
        return isinstance(self.can_admit(head, self.budget_of(head, victims, soon=soon), now_ns), Grant)
