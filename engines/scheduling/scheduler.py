"""Scheduler: each step hands out tokens so that what is computed catches up with what is known.

Prefill, chunk, decode and resume after a preemption are one case: a slot wants min(known, kv_limit) - computed tokens.
The caller alternates  schedule(now) -> plan,  update(result) -> outcome;  one more plan may be asked for before the
result of the last is in (overlap), and everything released waits behind the step that may still write it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engines.ledger import Blocked
from engines.scheduling.admission_check import AdmissionCheck
from engines.scheduling.delivery import Outcome, deliver
from engines.scheduling.kv import KVManager
from engines.scheduling.plan import IntArray, StepNumbers, StepPlan, StepResult
from engines.scheduling.policies import Policies
from engines.scheduling.policies.preemption import Fate, without_spare
from engines.scheduling.request import Request, State
from engines.scheduling.resource_gate import Grant, Refusal, ResourceGate
from engines.scheduling.running import RunningBatch, Shares
from engines.scheduling.slots import Slots
from engines.scheduling.step_ledger import StepLedger
from engines.scheduling.waiting import Waiting

MAX_STEPS_IN_FLIGHT = 2


class Scheduler:
    def __init__(
        self,
        slots: Slots,
        kv: KVManager,
        gate: ResourceGate,
        policies: Policies,
        *,
        eos_ids: frozenset[int] = frozenset(),
        numbers: StepNumbers | None = None,
        instance: int = 0,
        first_slot: int = 0,
    ) -> None:
        """instance, first_slot: of several instances, which one this is, and what its slot 0 is in the records."""
        self.slots = slots
        self.kv = kv
        self.gate = gate
        self.policies = policies
        self.waiting = Waiting(policies.order, policies.batching.buckets)
        self.running = RunningBatch(slots, kv, gate, first_slot)
        self.admission = AdmissionCheck(slots, kv, gate, policies, self.waiting, self.running)
        self.numbers = numbers or StepNumbers()
        self.num_steps = 0  # launched here
        self.wake_at_ns: int | None = None  # after a schedule() of None: when time alone will admit a request
        self._eos_ids = eos_ids
        self._stop_ids = eos_ids  # these, and what ends a live request; emptied of others when none is left
        self._instance = instance
        self._live: dict[int, Request] = {}  # unfinished requests by index
        self._in_flight: deque[tuple[StepPlan, StepLedger]] = deque()
        self._rejected: list[Request] = []  # under KV pressure; part of the next outcome

    # -- requests come and go ------------------------------------------------------------------------------------

    def submit(self, request: Request, now_ns: int, rejected: str | None = None) -> Outcome:
        """Queue the request; one that can never run is rejected at once, with the numbers. rejected: why it could never
        run at the instance where it continues."""
        if request.index in self._live:
            raise ValueError(f"request {request.index} is already live")
        request.submitted_ns = now_ns
        self._live[request.index] = request
        if request.stop_token_ids:
            self._stop_ids |= request.stop_token_ids
        outcome = Outcome()
        if (reason := rejected or self.gate.never_fits(request)) is not None:
            self.running.traffic.rejected += 1
            self.end(request, "rejected", outcome, reason)
        else:
            self.waiting.add(request)
        return outcome

    def receive(self, request: Request) -> None:
        """Queue a request that another instance has handed over; at submit it was asked whether it fits here."""
        request.output_limit = request.max_output_tokens
        self._live[request.index] = request
        if request.stop_token_ids:
            self._stop_ids |= request.stop_token_ids
        self.waiting.add(request)

    def ended_elsewhere(self, request: Request) -> None:
        """A request that was handed over has ended: what it was charged here is settled, and some orders learn."""
        self.gate.settle(request)
        self.policies.order.ended(request)

    def abort(self, index: int) -> Outcome:
        """End a request wherever it is. Unknown or ended already: nothing happens."""
        outcome = Outcome()
        if (request := self._live.get(index)) is not None:
            self.end(request, "aborted", outcome)
        return outcome

    def end(self, request: Request, reason: str, outcome: Outcome, error: str | None = None) -> None:
        """The request has ended, wherever it is: `outcome` tells of it."""
        request.finish_reason, request.error = reason, error
        self._finish(request)
        outcome.finished.append(request)

    def _finish(self, request: Request) -> None:
        state, request.state = request.state, State.FINISHED
        if state is State.WAITING:
            self.waiting.forget()
            self.running.forget_swapped(request)
        elif state is State.RUNNING:
            self.running.finish(request, holds=self.policies.batching.holds)
        self.gate.settle(request)
        self.policies.order.ended(request)
        del self._live[request.index]
        if not self._live:
            self._stop_ids = self._eos_ids

    @property
    def idle(self) -> bool:
        return not self._live and not self._in_flight and not self._awaits_instance

    @property
    def _awaits_instance(self) -> bool:
        """Another instance will free blocks that are kept for it, or KV is on its way from there."""
        return self.kv.num_kept > 0 or self.running.awaits_kv

    @property
    def num_in_flight(self) -> int:
        """Steps that are launched and not collected."""
        return len(self._in_flight)

    @property
    def has_rejected(self) -> bool:
        """Requests were rejected under KV pressure; the next outcome tells of them."""
        return bool(self._rejected)

    def live_indices(self) -> list[int]:
        return list(self._live)

    # -- one step ------------------------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> StepPlan | None:
        """The next step to launch, or None when nothing can run now."""
        if len(self._in_flight) >= MAX_STEPS_IN_FLIGHT:
            raise RuntimeError(f"{len(self._in_flight)} steps are in flight: collect one first")
        self.begin_step(now_ns)
        plan = self._plan(now_ns)
        if plan is None and self.admission.bucket is not None:
            self.admission.bucket = None  # nothing of this bucket can run
            plan = self._plan(now_ns)
        if plan is None and self._live and not self._in_flight and self.wake_at_ns is None:
            assert self._awaits_instance, f"nothing can run, yet {len(self.waiting)} wait"
        return plan

    def begin_step(self, now_ns: int) -> None:
        """The next step is planned from here on."""
        self.running.begin(self.numbers.last + 1)
        self.wake_at_ns = None
        self.admission.bucket = None
        self.admission.preempted.clear()
        if self.policies.batching.buckets:
            prefilling = self.slots.bucket[self.slots.in_order()[self.running.wants() > 1]].tolist()
            buckets = self.waiting.buckets()
            if self.policies.batching.patience_ns:  # a batch that is due before one that may wait for more requests
                buckets.sort(key=lambda bucket: max(self.admission.batch_due_ns(bucket), now_ns))
            self.admission.bucket = self.policies.batching.turn(prefilling, buckets, self.num_steps + 1)

    def _plan(self, now_ns: int) -> StepPlan | None:
        shares, preempted = self._preempt_until_kv_fits()
        if preempted:
            self.running.traffic.blocked = Blocked.PREEMPTED if len(self.waiting) else Blocked.NO
        elif self._admit_waiting(shares.counts, now_ns):
            shares = self._share_what_fits()
        return self._launch(now_ns, shares)

    def _share_what_fits(self) -> Shares:
        """The shares after an admission. A request that was admitted before others may get more tokens than it has
        reserved blocks for; it takes available ones, or computes only what its own blocks hold."""
        shares = self.admission.share()
        fits = int(self.running.growth(shares.counts).sum()) <= self.kv.available
        return shares if fits else self._cut_to_available(shares)

    def _cut_to_available(self, shares: Shares) -> Shares:
        """Shares that fit the blocks there are. Decodes that wait for prompts go on where no prompt has a block."""
        cut = self.running.cut_to_available(shares)
        if cut.counts.any() or not self.policies.batching.stalls:
            return cut
        return self.running.cut_to_available(self.admission.share(prompts=False))

    def _preempt_until_kv_fits(self) -> tuple[Shares, bool]:
        """(shares whose blocks are available, whether a request was preempted for that). No step is planned yet, so a
        victim is never a row of the plan."""
        preempted = False
        while True:
            shares = self.admission.share()
            short = int(self.running.growth(shares.counts).sum()) - self.kv.available
            if short <= 0:
                return shares, preempted
            if short <= self.kv.pool.num_pending + self.kv.num_kept:
                # A step in flight or another instance frees enough: the last rows wait for that, without a preemption.
                return self._cut_to_available(shares), preempted
            for slot in self._pressure_victims():
                victim = self.slots.request_in(slot)
                self._preempt(victim, self.policies.pressure.fate(victim), resumes_first=True)
            preempted = True

    def _pressure_victims(self) -> list[int]:
        """One, or with priority preemption the least urgent that are enough, and no more of them."""
        priority, choose = self.policies.priority, self.policies.victims.choose
        candidates = self.running.preemptible()
        if not priority.preempts:
            return [choose(candidates, self.slots)]
        victims: list[int] = []
        while len(candidates) and not self._kv_fits_without(victims):
            victims.append(choose(priority.may_lose(candidates, self.slots), self.slots))
            candidates = candidates[candidates != victims[-1]]
        return without_spare(victims[::-1], self._kv_fits_without)[::-1]

    def _kv_fits_without(self, victims: Sequence[int]) -> bool:
        """Whether the growth of all other running requests is available."""
        slots, counts = self.admission.shares_without(victims)
        growth = int(self.kv.beyond_reserved(slots, self.slots.computed[slots] + counts).sum())
        return growth <= self.kv.available + self.kv.freed_by(victims)[0]

    def _preempt(self, request: Request, fate: Fate, *, resumes_first: bool) -> None:
        if fate is Fate.REJECT:
            held, needs = self.kv.held(request.slot), self.kv.blocks_for(request.kv_limit)
            request.finish_reason = "rejected"
            request.error = f"kv_exhausted: holds {held} of {needs} blocks it may need, none is available"
            self.running.traffic.rejected += 1
            self._rejected.append(request)
            self._finish(request)
            return
        self.admission.preempted.add(request.index)
        self.running.preempt(request, fate, resumes_first=resumes_first)
        self.waiting.push(request)

    def _launch(self, now_ns: int, shares: Shares) -> StepPlan | None:
        plan = self.running.plan(now_ns, shares)
        if plan is None:
            return None
        self.numbers.last = plan.step
        self.num_steps += 1
        ledger = StepLedger(
            plan,
            self.slots,
            self.kv,
            self.running.take_traffic(),
            waiting=len(self.waiting),
            budget_unused=self.gate.spend(plan.launched_tokens),
            instance=self._instance,
        )
        self.running.launched(plan)
        self._in_flight.append((plan, ledger))
        return plan

    def update(self, result: StepResult) -> Outcome:
        """Take the oldest launched step's result: deliver its tokens, and end what has ended."""
        plan, ledger = self._in_flight.popleft()
        assert result.step == plan.step, f"result of step {result.step}, expected {plan.step}"
        self.running.collected(plan.step)
        self.kv.publish(plan)
        outcome = Outcome(finished=self._rejected)
        self._rejected = []
        ended = [row for row, request in enumerate(plan.requests) if request.state is State.FINISHED]
        if ended:
            ledger.discard(ended)
        for request, reason in deliver(plan, result, self._eos_ids, self._stop_ids, outcome):
            self.end(request, reason, outcome)
        for request in outcome.handed_over:
            self._hand_over(request)
        self.policies.order.served(outcome.delivered)
        ledger.close(result, len(outcome.delivered))
        outcome.ledger_row = ledger.row
        return outcome

    def _hand_over(self, request: Request) -> None:
        """One that was preempted while its first token was sampled has no KV here: it is computed again there."""
        if request.state is State.WAITING:
            self.waiting.take_out(request)
        else:
            self.running.hand_over(request)
        request.state = State.NEW
        del self._live[request.index]

    # -- admission -----------------------------------------------------------------------------------------------

    def _admit_waiting(self, counts: IntArray, now_ns: int) -> bool:
        """Admit waiting requests in order while slots, tokens and KV last; the running ones compute `counts`
        tokens. True if the running batch has changed.

        The first request that does not fit holds back all behind it in its queue and in those of later turn; a tenant
        at its quota holds back its own queue alone.
        """
        if not len(self.waiting):
            return False
        held_back = self.waiting.queues_outside(self.admission.bucket)
        skipped: list[Request] = []
        passed_over: list[Request] = []  # long prompts, where shorter ones may be partly computed
        changed = False
        by_urgency = self.policies.order.urgency and self.policies.batching.joins
        budget = self.admission.budget(counts)
        while (head := self.waiting.head(held_back)) is not None:
            claims = by_urgency and self.admission.can_take_tokens(head)
            verdict = self.admission.can_admit(head, self.admission.budget_of(head) if claims else budget, now_ns)
            if isinstance(verdict, Grant):
                self._admit(head, verdict)
                self.admission.admitted(head, verdict.takes, budget)
                if claims:
                    budget = self.admission.budget(self.admission.share().counts)
                for one in skipped:
                    one.times_skipped += 1
                changed = True
            elif victims := self.admission.victims_for(head, verdict, now_ns, soon=bool(self._in_flight)):
                changed = True
                if not self._leave_now(head, victims, now_ns):
                    self._note(verdict)
                    break
                budget = self.admission.budget(self.admission.share().counts)
            else:
                self._note(verdict)
                if verdict.why is Blocked.QUOTA:
                    held_back.add(head.queue)
                elif verdict.why is Blocked.PARTIAL and not self.policies.partial_prefills.full(budget.partial):
                    self.waiting.pop(head)
                    passed_over.append(head)
                elif verdict.lacks_kv and self.policies.skip_ahead.may_skip(head):
                    self.waiting.pop(head)
                    skipped.append(head)
                else:
                    break
        for one in (*skipped, *passed_over):
            self.waiting.push(one)
        return changed

    def _admit(self, request: Request, grant: Grant) -> None:
        self.waiting.pop(request)
        self.running.admit(request, grant)
        self.policies.admission.admitted(request)
        self.policies.order.admitted(request)

    def _leave_now(self, head: Request, victims: list[int], now_ns: int) -> bool:
        """Preempt the victims: `head` is admitted next. False: the step in flight holds what they have, so they get no
        tokens of this step, and all is decided again in the next."""
        if self._in_flight and (
            self.running.in_flight(victims) or not self.admission.would_admit(head, victims, now_ns, soon=False)
        ):
            self.running.pause(victims)
            return False
        for slot in victims:
            self._preempt(self.slots.request_in(slot), Fate.SWAP, resumes_first=False)
        return True

    def _note(self, refusal: Refusal) -> None:
        """The ledger shows why the head of the queue waits, and the caller when to try again."""
        self.running.traffic.blocked = refusal.why
        if refusal.until_ns is not None:
            self.wake_at_ns = min(refusal.until_ns, self.wake_at_ns or refusal.until_ns)

    def check_invariants(self) -> None:
        """Everything that must hold between two calls. Raises AssertionError."""
        waiting = list(self.waiting)
        assert len(self.waiting) == len(waiting) == len({id(request) for request in waiting})
        self.running.check_invariants(waiting)
        in_slots = [r for r in self.slots.request if r is not None and not r.finished]
        assert {r.index for r in [*waiting, *in_slots]} == set(self._live)
        if self.idle:
            pool = self.kv.pool
            assert pool.num_held == self.kv.num_reserved == pool.num_pending == 0
            assert self.kv.available == self.kv.num_blocks
            assert self.kv.host.num_free == self.kv.host.num_blocks
