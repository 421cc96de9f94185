"""Scheduler: each step hands out tokens so that what is computed catches up with what is known.

Prefill, chunk, decode and resume after a preemption are one case: a seat wants min(known, kv_limit) - computed tokens.
The caller alternates  schedule(now) -> plan,  update(result) -> outcome;  one more plan may be asked for before the
result of the last is in (overlap), and everything released waits behind the step that may still write it.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engines.base import Stint
from engines.scheduling.gate import ResourceGate
from engines.scheduling.kv import KVManager
from engines.scheduling.ledger import Blocked
from engines.scheduling.plan import IntArray, StepPlan, StepResult
from engines.scheduling.policies.admission import Admission
from engines.scheduling.policies.batching import Batching
from engines.scheduling.policies.order import Order
from engines.scheduling.policies.pressure import Fate, Pressure
from engines.scheduling.request import Request, State
from engines.scheduling.rows import Rows
from engines.scheduling.tally import StepTally, Traffic

MAX_STEPS_IN_FLIGHT = 2


@dataclass(slots=True)
class Outcome:
    """What a collected step, an abort or a rejection changed."""

    delivered: list[Request] = field(default_factory=list)  # each got one more output token
    finished: list[Request] = field(default_factory=list)
    ledger_row: NDArray[np.void] | None = None  # of the collected step


@dataclass(frozen=True, slots=True)
class _Launched:
    plan: StepPlan
    tally: StepTally


class Scheduler:
    def __init__(
        self,
        rows: Rows,
        kv: KVManager,
        gate: ResourceGate,
        *,
        batching: Batching,
        order: Order,
        admission: Admission,
        pressure: Pressure,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.rows = rows
        self.kv = kv
        self.gate = gate
        self._batching = batching
        self._order = order
        self._admission = admission
        self._pressure = pressure
        self._eos_ids = eos_ids
        self._waiting: list[tuple[tuple[float, ...], Request]] = []  # heap; entries of ended requests are skipped
        self._num_waiting = 0
        self._live: dict[int, Request] = {}  # unfinished requests by index
        self._in_flight: deque[_Launched] = deque()
        self._traffic = Traffic()  # since the last launched step
        self._rejected: list[Request] = []  # under KV pressure, while planning; told by the next update
        self._submitted = 0
        self._step = 0  # newest launched
        self._collected = 0  # newest collected

    # -- requests come and go ------------------------------------------------------------------------------------

    def submit(self, request: Request, now_ns: int) -> Outcome:
        """Queue the request; one that can never run is rejected at once, with the numbers."""
        if request.index in self._live:
            raise ValueError(f"request {request.index} is already live")
        request.submitted_ns = now_ns
        request.rank = (*self._order.rank(request), float(self._submitted))
        self._submitted += 1
        self._live[request.index] = request
        outcome = Outcome()
        if (reason := self.gate.refusal(request)) is not None:
            self._traffic.rejected += 1
            self._end(request, "rejected", outcome, reason)
        else:
            self._wait(request)
        return outcome

    def abort(self, index: int) -> Outcome:
        """End a request wherever it is. Unknown or ended already: nothing happens."""
        outcome = Outcome()
        if (request := self._live.get(index)) is not None:
            self._end(request, "aborted", outcome)
        return outcome

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def idle(self) -> bool:
        return not self._live and not self._in_flight

    def live_indices(self) -> list[int]:
        return list(self._live)

    # -- one step ------------------------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> StepPlan | None:
        """The next step to launch, or None when nothing can run now."""
        if len(self._in_flight) >= MAX_STEPS_IN_FLIGHT:
            raise RuntimeError(f"{len(self._in_flight)} steps are in flight: collect one first")
        counts, padding, evicted = self._make_room()
        if evicted:
            self._traffic.blocked = Blocked.PREEMPTED if self._num_waiting else Blocked.NO
        elif self._admit(counts):
            counts, padding = self._share()
        return self._launch(now_ns, counts, padding)

    def _share(self) -> tuple[IntArray, IntArray]:
        slots = self.rows.in_order()
        return self._batching.share(self._wants(slots), self.rows.computed[slots], self.gate.budget)

    def _wants(self, slots: IntArray) -> IntArray:
        rows = self.rows
        return (np.minimum(rows.known[slots], rows.kv_limit[slots]) - rows.computed[slots]) * rows.live[slots]

    def _make_room(self) -> tuple[IntArray, IntArray, bool]:
        """Share the step among the seats, evicting in reverse plan order until their growth fits what is available.

        Plan order is decodes by rank, then prompts by rank, so a victim is never a row that is already planned.
        """
        evicted = False
        while True:
            counts, padding = self._share()
            slots = self.rows.in_order()
            growth = self.kv.beyond_promise(slots, self.rows.computed[slots] + counts)
            short = int(growth.sum()) - self.kv.available
            if short <= 0:
                return counts, padding, evicted
            if short <= self.kv.pool.num_pending:
                # Blocks are on their way back behind a fence: the last rows wait a step, nobody else is evicted.
                return self._hold_back(counts, growth), padding, evicted
            self._evict(self._victim(slots))
            evicted = True

    def _hold_back(self, counts: IntArray, growth: IntArray) -> IntArray:
        """Counts with the growing rows at the end of plan order left out, so that the rest fits what is available."""
        fits = np.cumsum(growth) <= self.kv.available
        return np.where(fits | (growth == 0), counts, 0)

    def _victim(self, slots: IntArray) -> int:
        """The last seat in plan order."""
        prefilling = slots[self._wants(slots) > 1]
        return int(prefilling[-1] if len(prefilling) else slots[self.rows.live[slots]][-1])

    def _evict(self, slot: int) -> None:
        request = self.rows.request[slot]
        assert request is not None
        match self._pressure.fate(request):
            case Fate.REJECT:
                self._traffic.rejected += 1
                needs = self.kv.blocks_for(request.kv_limit)
                reason = f"kv_exhausted: holds {self.kv.held(slot)} of {needs} blocks it may need, none is available"
                self._finish(request, "rejected", reason)
                self._rejected.append(request)
            case Fate.RECOMPUTE:
                self._traffic.preempted += 1
                request.preemptions += 1
                request.computed_peak = max(request.computed_peak, int(self.rows.computed[slot]))
                request.pending = int(self.rows.known[slot]) - request.prompt_tokens - request.output_tokens
                self._leave(request)
                self._wait(request)

    def _admit(self, counts: IntArray) -> bool:
        """Seat waiting requests, best rank first, while tokens, seats and KV last. The first that does not fit waits,
        and everybody behind it."""
        rows, kv = self.rows, self.kv
        slots = rows.in_order()
        computed = rows.computed[slots]
        room = self._batching.room(self._wants(slots), computed, counts, self.gate.budget)
        set_aside = int(kv.beyond_promise(slots, computed + counts).sum()) if self._num_waiting else 0
        admitted = 0
        blocked = Blocked.NO
        while (head := self._head()) is not None:
            want = min(head.known, head.kv_limit)
            takes = self._batching.takes(want, room, head.preemptions > 0) if room else 0
            if takes == 0:
                blocked = self._batching.blocked
                break
            promise = self._admission.promise(head, kv)
            watermark = self._admission.watermark_blocks
            if blocked := self.gate.seat(head, promise, set_aside=set_aside, watermark=watermark):
                break
            heapq.heappop(self._waiting)
            self._num_waiting -= 1
            head.state = State.RUNNING
            head.seated_step, head.sampled_step = self._step + 1, 0
            room -= takes
            admitted += 1
        self._traffic.admitted += admitted
        self._traffic.blocked = blocked
        return admitted > 0

    def _launch(self, now_ns: int, counts: IntArray, padding: IntArray) -> StepPlan | None:
        rows = self.rows
        slots = rows.in_order()
        launched = (counts + padding) > 0
        if not launched.any():
            assert self._in_flight or not self._live, f"nothing can run, yet {self._num_waiting} wait"
            return None
        dead = slots[launched & ~rows.live[slots]]
        if not launched.all() or len(dead):
            own = launched & rows.live[slots]
            dead_tokens = int(padding[launched & ~own][0]) if len(dead) else 0
            slots, counts, padding = slots[own], counts[own], padding[own]
        else:
            dead_tokens = 0
        self._step += 1
        starts = rows.computed[slots]
        ends = starts + counts
        self.gate.grow(slots, ends)
        samples = (ends == rows.known[slots]) & (counts > 0)
        plan = StepPlan(
            step=self._step,
            now_ns=now_ns,
            requests=[rows.request[slot] for slot in slots.tolist()],
            slots=slots,
            starts=starts,
            counts=counts,
            padding=padding,
            samples=samples,
            dead_slots=dead,
            dead_lengths=rows.computed[dead],
            dead_tokens=dead_tokens,
            tables=self.kv.tables,
        )
        unused = self.gate.spend(plan.launched_tokens)
        tally = StepTally(plan, rows, self.kv, self._traffic, self._num_waiting, unused)
        self._traffic = Traffic()
        rows.computed[slots] = ends
        rows.known[slots] += samples
        rows.last_step[slots] = self._step
        self._in_flight.append(_Launched(plan, tally))
        return plan

    def update(self, result: StepResult) -> Outcome:
        """Take the oldest launched step's result: deliver its tokens, end what has ended, let go behind the fence."""
        launched = self._in_flight.popleft()
        plan = launched.plan
        assert result.step == plan.step, f"result of step {result.step}, expected {plan.step}"
        self._collected = plan.step
        self.kv.pool.pass_fence(plan.step)
        self.rows.pass_fence(plan.step)
        outcome = Outcome(finished=self._rejected)
        self._rejected = []
        ended = [row for row, request in enumerate(plan.requests) if request.finished]
        if ended:
            launched.tally.discard(ended)
        tokens = None if result.tokens is None else result.tokens.tolist()
        for i, row in enumerate(np.flatnonzero(plan.samples).tolist()):
            request = plan.requests[row]
            if not request.finished:
                self._deliver(request, result, None if tokens is None else tokens[i], outcome)
        launched.tally.close(result, len(outcome.delivered))
        outcome.ledger_row = launched.tally.row
        return outcome

    def _deliver(self, request: Request, result: StepResult, token: int | None, outcome: Outcome) -> None:
        """One sampled token. An EOS is not shown to the user. At the cap the reason is length, whatever the token."""
        if request.state is State.WAITING:  # preempted while its token was being sampled
            request.pending -= 1
        elif request.sampled_step == 0:
            request.sampled_step = result.step
        at_cap = request.output_tokens + 1 >= request.max_output_tokens
        if token in self._eos_ids and not request.ignore_eos and not at_cap:
            self._end(request, "stop", outcome)
            return
        if token is not None and request.tokens is not None:
            request.tokens[request.prompt_tokens + request.output_tokens] = token
        request.deliver(result.step, result.end_ns)
        outcome.delivered.append(request)
        if at_cap:
            self._end(request, "length", outcome)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _head(self) -> Request | None:
        while self._waiting:
            request = self._waiting[0][1]
            if request.state is State.WAITING:
                return request
            heapq.heappop(self._waiting)
        return None

    def _wait(self, request: Request) -> None:
        request.state = State.WAITING
        heapq.heappush(self._waiting, (request.rank, request))
        self._num_waiting += 1

    def _finish(self, request: Request, reason: str, error: str | None = None) -> None:
        if request.state is State.WAITING:
            self._num_waiting -= 1
        request.finish_reason, request.error = reason, error
        was_seated, request.state = request.state is State.RUNNING, State.FINISHED
        if was_seated and self._batching.holds:
            self._close_stint(request)
            self.rows.end(request.slot)
            if self.rows.num_live == 0:  # the batch has ended: everybody lets go
                for slot in self.rows.in_order().tolist():
                    self._let_go(slot)
        elif was_seated:
            self._leave(request)
        del self._live[request.index]

    def _end(self, request: Request, reason: str, outcome: Outcome, error: str | None = None) -> None:
        self._finish(request, reason, error)
        outcome.finished.append(request)

    def _leave(self, request: Request) -> None:
        self._close_stint(request)
        self._let_go(request.slot)

    def _let_go(self, slot: int) -> None:
        """Seat and blocks go back, behind the last step that has a row for the seat."""
        self.kv.release(slot, int(self.rows.last_step[slot]), self._collected)
        self.rows.leave(slot, self._collected)

    def _close_stint(self, request: Request) -> None:
        ended = max(self._collected, request.seated_step)
        request.stints.append(Stint(request.slot, request.seated_step, request.sampled_step, ended))

    def check_invariants(self) -> None:
        """Everything that must hold between two calls. Raises AssertionError."""
        self.rows.check_invariants()
        self.kv.check_invariants()
        waiting = [request for _, request in self._waiting if request.state is State.WAITING]
        assert self._num_waiting == len(waiting) == len({id(request) for request in waiting})
        seated = [r for r in self.rows.request if r is not None and not r.finished]
        assert {r.index for r in [*waiting, *seated]} == set(self._live)
        for request in seated:
            end, held = int(self.rows.computed[request.slot]), self.kv.held(request.slot)
            assert held == self.kv.blocks_for(end), f"{request}: {held} blocks for {end} positions"
        if self.idle:
            assert self.kv.num_used == self.kv.num_promised == self.kv.pool.num_pending == 0
            assert self.kv.available == self.kv.num_blocks
