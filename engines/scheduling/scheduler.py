"""Scheduler: each step hands out tokens so that what is computed catches up with what is known.

Prefill, chunk, decode and resume after a preemption are one case: a seat wants min(known, kv_limit) - computed tokens.
The caller alternates  schedule(now) -> plan,  update(result) -> outcome;  one more plan may be asked for before the
result of the last is in (overlap), and everything released waits behind the step that may still write it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engines.ledger import Blocked
from engines.scheduling.admitting import admit
from engines.scheduling.kv_transfer import Transfer
from engines.scheduling.making_room import make_room, share_again
from engines.scheduling.plan import NO_MOVES, IntArray, StepPlan, StepResult
from engines.scheduling.request import Request, State
from engines.scheduling.seating import Seating
from engines.scheduling.step_ledger import StepLedger, Traffic

MAX_STEPS_IN_FLIGHT = 2
NOBODY: IntArray = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Outcome:
    """What a collected step, an abort or a rejection changed."""

    delivered: list[Request] = field(default_factory=list)  # each got one more output token
    finished: list[Request] = field(default_factory=list)
    handed_over: list[Request] = field(default_factory=list)  # delivered their first token here, to go on elsewhere
    ledger_row: NDArray[np.void] | None = None  # of the collected step


@dataclass(frozen=True, slots=True)
class _Launched:
    plan: StepPlan
    tally: StepLedger


@dataclass(slots=True)
class StepNumbers:
    """What steps are called: 1, 2, 3, ... in the order of their launch, over all instances that share this."""

    last: int = 0


class Scheduler:
    def __init__(
        self, seating: Seating, eos_ids: frozenset[int] = frozenset(), numbers: StepNumbers | None = None
    ) -> None:
        self.seating = seating
        self.rows = seating.rows
        self.kv = seating.kv
        self.gate = seating.gate
        self._order = seating.policies.order
        self._eos_ids = eos_ids
        self._live: dict[int, Request] = {}  # unfinished requests by index
        self._in_flight: deque[_Launched] = deque()
        self._submitted = 0
        self.numbers = numbers or StepNumbers()
        self.num_steps = 0  # launched here

    # -- requests come and go ------------------------------------------------------------------------------------

    def submit(self, request: Request, now_ns: int, refused: str | None = None) -> Outcome:
        """Queue the request; one that can never run is rejected at once, with the numbers. refused: why it never could
        where it is to go on."""
        if request.index in self._live:
            raise ValueError(f"request {request.index} is already live")
        request.submitted_ns = now_ns
        self._register(request)
        outcome = Outcome()
        if (reason := refused or self.gate.refusal(request)) is not None:
            self.seating.traffic.rejected += 1
            self._end(request, "rejected", outcome, reason)
        else:
            self.seating.enter(request)
        return outcome

    def receive(self, request: Request) -> None:
        """Queue a request that another instance has handed over. This one never refuses: it was asked at submit."""
        request.output_limit = request.max_output_tokens
        self._register(request)
        self.seating.enter(request)

    def _register(self, request: Request) -> None:
        request.rank = self._order.rank(request)
        request.sequence = self._submitted
        self._submitted += 1
        self._live[request.index] = request

    def take_transfers(self, now_ns: int) -> list[Transfer]:
        """After schedule(): whose KV is to be fetched from the other instance now."""
        transfers = self.seating.arrivals.take()
        for transfer in transfers:
            transfer.request.transfer_asked_ns = now_ns
        return transfers

    def arrived(self, transfer: Transfer, at_ns: int) -> None:
        """All KV of a transfer is here, and the other instance needs to keep it no longer."""
        transfer.request.transfer_ended_ns = at_ns
        self.seating.arrived(transfer)

    def ended_elsewhere(self, request: Request) -> None:
        """A request that was handed over has ended: orders that learn from lengths want to know."""
        self._order.ended(request)

    def abort(self, index: int) -> Outcome:
        """End a request wherever it is. Unknown or ended already: nothing happens."""
        outcome = Outcome()
        if (request := self._live.get(index)) is not None:
            self._end(request, "aborted", outcome)
        return outcome

    @property
    def num_waiting(self) -> int:
        return len(self.seating.waiting)

    @property
    def idle(self) -> bool:
        return not self._live and not self._in_flight and not self._waits_for_another

    @property
    def _waits_for_another(self) -> bool:
        """Another instance will give back blocks that are kept for it, or KV is on its way from there."""
        return self.kv.num_kept > 0 or bool(self.seating.arrivals)

    @property
    def wake_at_ns(self) -> int | None:
        """After a schedule() that returned None: when time alone will let somebody in."""
        return self.seating.wake_at_ns

    def live_indices(self) -> list[int]:
        return list(self._live)

    # -- one step ------------------------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> StepPlan | None:
        """The next step to launch, or None when nothing can run now."""
        if len(self._in_flight) >= MAX_STEPS_IN_FLIGHT:
            raise RuntimeError(f"{len(self._in_flight)} steps are in flight: collect one first")
        self.begin()
        plan = self._plan(now_ns)
        if plan is None and self.seating.open_all_buckets():
            plan = self._plan(now_ns)
        waits_for_nothing = plan is None and self._live and not self._in_flight and self.wake_at_ns is None
        if waits_for_nothing:
            assert self._waits_for_another, f"nothing can run, yet {self.num_waiting} wait"
        return plan

    def begin(self) -> None:
        """The next step is to be planned."""
        self.seating.begin(self.numbers.last + 1, self.num_steps + 1)

    def _plan(self, now_ns: int) -> StepPlan | None:
        seating = self.seating
        shares, evicted = make_room(seating)
        if evicted:
            for request in seating.rejected:
                self._live.pop(request.index, None)
            seating.traffic.blocked = Blocked.PREEMPTED if self.num_waiting else Blocked.NO
        elif admit(seating, shares.counts, now_ns):
            shares = share_again(seating)
        return self._launch(now_ns, *shares)

    def _launch(self, now_ns: int, counts: IntArray, padding: IntArray) -> StepPlan | None:
        rows = self.rows
        slots = rows.in_order()
        dead, dead_tokens = NOBODY, 0
        if rows.num_live < len(slots) or not counts.all():  # not everybody who sits computes something
            launched = (counts + padding) > 0
            own = launched & rows.live[slots]
            dead = slots[launched & ~own]
            dead_tokens = int(padding[launched & ~own][0]) if len(dead) else 0
            slots, counts, padding = slots[own], counts[own], padding[own]
        if not len(slots) and not len(dead):
            return None
        self.numbers.last += 1
        self.num_steps += 1
        step = self.numbers.last
        starts = rows.computed[slots]
        ends = starts + counts
        self.gate.grow(slots, ends)
        moves = self.seating.take_moves()
        plan = StepPlan(
            step=step,
            now_ns=now_ns,
            requests=[rows.request[slot] for slot in slots.tolist()],
            slots=slots,
            starts=starts,
            counts=counts,
            padding=padding,
            samples=(ends == rows.known[slots]) & (counts > 0),
            dead_slots=dead,
            dead_lengths=rows.computed[dead],
            dead_tokens=dead_tokens,
            swap_out=np.array(moves.out, dtype=np.int64) if moves.out else NO_MOVES,
            swap_in=np.array(moves.back, dtype=np.int64) if moves.back else NO_MOVES,
            tables=self.kv.tables,
        )
        unused = self.gate.spend(plan.launched_tokens)
        tally = StepLedger(plan, rows, self.kv, self.seating.traffic, self.num_waiting, unused)
        if self.seating.instance:
            tally.row["instance"] = self.seating.instance
        self.seating.traffic = Traffic()
        rows.computed[slots] = ends
        rows.known[slots] += plan.samples
        rows.last_step[slots] = self.seating.launched = step
        self._in_flight.append(_Launched(plan, tally))
        return plan

    def update(self, result: StepResult) -> Outcome:
        """Take the oldest launched step's result: deliver its tokens, end what has ended, let go behind the fence."""
        launched = self._in_flight.popleft()
        plan = launched.plan
        assert result.step == plan.step, f"result of step {result.step}, expected {plan.step}"
        self.seating.collected = plan.step
        self.kv.pool.pass_fence(plan.step)
        self.rows.pass_fence(plan.step)
        self.kv.publish(plan)
        outcome = Outcome(finished=self.seating.rejected)
        self.seating.rejected = []
        ended = [row for row, request in enumerate(plan.requests) if request.state is State.FINISHED]
        if ended:
            launched.tally.discard(ended)
        self._deliver(plan, result, outcome)
        self._order.served(outcome.delivered)
        launched.tally.close(result, len(outcome.delivered))
        outcome.ledger_row = launched.tally.row
        return outcome

    def _deliver(self, plan: StepPlan, result: StepResult, outcome: Outcome) -> None:
        """The sampled tokens. This loop is most of what a step costs the host, so the usual token, neither the first
        after sitting down nor the last, is written here and not a call away."""
        step, end_ns = result.step, result.end_ns
        sampled = plan.samples.nonzero()[0].tolist()
        tokens = [None] * len(sampled) if result.tokens is None else result.tokens.tolist()
        for row, token in zip(sampled, tokens, strict=True):
            request = plan.requests[row]
            outputs = request.output_tokens + 1
            if (
                request.state is not State.RUNNING
                or request.sampled_step == 0
                or outputs >= request.max_output_tokens
                or token in self._eos_ids
            ):
                if request.state is not State.FINISHED:
                    self._deliver_one(request, result, token, outcome)
                continue
            if token is not None and request.tokens is not None:
                request.tokens[request.prompt_tokens + outputs - 1] = token
            run = request.event_runs[-1]
            if run[0] + run[1] == step:
                run[1] += 1
            else:
                request.event_runs.append([step, 1])
            request.last_ns = end_ns
            request.output_tokens = outputs
            outcome.delivered.append(request)

    def _deliver_one(self, request: Request, result: StepResult, token: int | None, outcome: Outcome) -> None:
        """One sampled token. An EOS is not shown to the user. At the cap the reason is length, whatever the token."""
        if request.state is State.WAITING:  # preempted while its token was being sampled
            request.pending -= 1
        elif request.sampled_step == 0:
            request.sampled_step = result.step
        at_cap = request.output_tokens + 1 >= request.max_output_tokens
        enough = request.output_tokens >= request.min_output_tokens
        if token in self._eos_ids and enough and not request.ignore_eos and not at_cap:
            self._end(request, "stop", outcome)
            return
        if token is not None and request.tokens is not None:
            request.tokens[request.prompt_tokens + request.output_tokens] = token
        request.deliver(result.step, result.end_ns)
        outcome.delivered.append(request)
        if at_cap:
            self._end(request, "length", outcome)
        elif request.output_tokens >= request.output_limit:
            self.seating.hand_over(request)
            del self._live[request.index]
            outcome.handed_over.append(request)

    def _end(self, request: Request, reason: str, outcome: Outcome, error: str | None = None) -> None:
        request.finish_reason, request.error = reason, error
        self.seating.finish(request)
        del self._live[request.index]
        outcome.finished.append(request)

    def check_invariants(self) -> None:
        """Everything that must hold between two calls. Raises AssertionError."""
        self.seating.check_invariants()
        seated = [r for r in self.rows.request if r is not None and not r.finished]
        assert {r.index for r in [*self.seating.waiting, *seated]} == set(self._live)
        if self.idle:
            pool = self.kv.pool
            assert pool.num_held == self.kv.num_promised == pool.num_pending == 0
            assert self.kv.available == self.kv.num_blocks
            assert self.kv.host.num_free == self.kv.host.num_blocks
