"""Seating: who sits. What happens to one request that sits down, is evicted or ends; who that is, others decide.

   sit (admitting.py)        evict (making_room.py)
Waiting ──────► seat ────────────────► Waiting (recompute, swap) or ended (reject)
                 │ leave (ended)
                 ▼
           behind the fence, free
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engines.request_table import Stint
from engines.scheduling.kv import KeptElsewhere, KVManager
from engines.scheduling.kv_transfer import Arrivals, Transfer
from engines.scheduling.plan import IntArray
from engines.scheduling.policies.admission import Admission
from engines.scheduling.policies.batching import Batching, bucket_of
from engines.scheduling.policies.order import Order, SkipAhead
from engines.scheduling.policies.preemption import Fate, Pressure, Victims, Yielding
from engines.scheduling.request import Request, State
from engines.scheduling.resource_gate import ResourceGate
from engines.scheduling.slots import Slots
from engines.scheduling.step_ledger import Traffic
from engines.scheduling.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Policies:
    batching: Batching
    order: Order
    admission: Admission
    pressure: Pressure
    victims: Victims
    skip_ahead: SkipAhead
    yielding: Yielding


@dataclass(slots=True)
class Moves:
    """Block copies the next launched plan must carry out."""

    out: list[tuple[int, int]] = field(default_factory=list)  # (device block, host block)
    back: list[tuple[int, int]] = field(default_factory=list)  # (host block, device block)


class Seating:
    def __init__(
        self,
        rows: Slots,
        kv: KVManager,
        gate: ResourceGate,
        policies: Policies,
        *,
        instance: int = 0,
        first_slot: int = 0,
    ) -> None:
        """instance, first_slot: of several, which one this is, and what its first seat is called in the record."""
        self.rows = rows
        self.kv = kv
        self.gate = gate
        self.policies = policies
        self.instance = instance
        self.first_slot = first_slot
        self.waiting = Waiting(policies.order)
        self.traffic = Traffic()  # since the last launched step
        self.moves = Moves()
        self.arrivals = Arrivals(rows, kv)
        self.rejected: list[Request] = []  # under pressure, while planning; told by the next update
        self.wake_at_ns: int | None = None  # when time alone will let somebody in
        self.collected = 0  # newest collected step
        self.step = 0  # the step being planned
        self.launched = 0  # newest launched here
        self.newcomers: list[Request] = []  # since then
        self.turn: int | None = None  # the prompt bucket of this step
        self.evicted: set[int] = set()  # requests that lost their seat in this planning: they do not come back in it

    # -- sharing a step ------------------------------------------------------------------------------------------

    def begin(self, step: int, nth: int) -> None:
        """Plan the step of this number, the nth of this instance."""
        if self.newcomers:
            # Who sat down in a planning that launched nothing sits from this step on: its number went to another.
            self.newcomers = [one for one in self.newcomers if one.seated_step > self.launched]
            for one in self.newcomers:
                one.seated_step = step
        self.step = step
        self.wake_at_ns = None
        self.turn = None
        self.evicted.clear()
        batching, rows = self.policies.batching, self.rows
        if batching.buckets:
            slots = rows.in_order()
            prefilling = rows.bucket[slots[self.wants(slots) > 1]].tolist()
            self.turn = batching.turn(prefilling, self.waiting.buckets(), nth)

    def open_all_buckets(self) -> bool:
        """The bucket whose turn it is has nothing that can run: let all in. False if they were in already."""
        closed, self.turn = self.turn is not None, None
        return closed

    def share(self) -> tuple[IntArray, IntArray]:
        """(counts, padding) per taken seat, in plan order."""
        slots = self.rows.in_order()
        return self.policies.batching.share(self.wants(slots), self.rows.computed[slots], self.gate.budget)

    def wants(self, slots: IntArray) -> IntArray:
        """Known tokens each seat has not computed yet; 0 for a finished request that keeps its seat, and for one whose
        KV is still on its way."""
        rows = self.rows
        wants = (np.minimum(rows.known[slots], rows.kv_limit[slots]) - rows.computed[slots]) * rows.live[slots]
        if self.arrivals:
            wants *= ~rows.arriving[slots]
        if self.turn is not None:  # the prompts of other buckets wait for their step
            wants *= (rows.bucket[slots] == self.turn) | (wants <= 1)
        return wants

    # -- getting up under pressure, sitting down ------------------------------------------------------------------

    def occupant(self, slot: int) -> Request:
        request = self.rows.request[slot]
        assert request is not None
        return request

    def evict(self, request: Request, fate: Fate, *, resumes_first: bool) -> None:
        """resumes_first: once swapped out it goes before all who have no blocks; not so who got up for another."""
        slot = request.slot
        if fate is Fate.REJECT:
            self.traffic.rejected += 1
            needs = self.kv.blocks_for(request.kv_limit)
            request.finish_reason = "rejected"
            request.error = f"kv_exhausted: holds {self.kv.held(slot)} of {needs} blocks it may need, none is available"
            self.rejected.append(request)
            self.finish(request)
            return
        computed = int(self.rows.computed[slot])
        self.traffic.preempted += 1
        request.preemptions += 1
        self.evicted.add(request.index)
        request.pending = int(self.rows.known[slot]) - request.prompt_tokens - request.output_tokens
        if host_blocks := self._stays_out(slot):
            request.host_blocks = host_blocks
            request.resumes_first = resumes_first
            request.swapped_positions = computed
        elif fate is Fate.SWAP and self.kv.held(slot) <= self.kv.host.num_free:
            blocks = self.kv.blocks(slot)
            request.host_blocks = self.kv.host.take(len(blocks))
            request.resumes_first = resumes_first
            request.swapped_positions = computed
            self.moves.out += zip(blocks, request.host_blocks, strict=True)
            self.traffic.swapped_out += 1
        else:
            self.traffic.evicted_tokens += computed
            request.computed_peak = max(request.computed_peak, computed)
        self.leave(request)
        self.waiting.push(request)

    def _stays_out(self, slot: int) -> list[int]:
        """The host blocks of a seat that is given up before they were copied back: now they are not. Else none."""
        coming = set(self.kv.blocks(slot)) if self.moves.back else set()
        host_blocks = [host for host, device in self.moves.back if device in coming]
        if host_blocks:
            self.moves.back = [move for move in self.moves.back if move[1] not in coming]
            self.traffic.swapped_in -= 1
        return host_blocks

    def sit(self, request: Request, computed: int) -> None:
        self.waiting.pop(request)
        self.traffic.admitted += 1
        self.policies.order.admitted(request)
        if request.host_blocks:
            slot = request.slot
            self.kv.grow(np.array([slot]), np.array([computed]))
            if isinstance(self.kv.host, KeptElsewhere):
                self.arrivals.send_for(request)
                self.traffic.transfers += 1
                self.traffic.transfer_blocks += len(request.host_blocks)
            else:
                self.moves.back += zip(request.host_blocks, self.kv.blocks(slot), strict=True)
                self.traffic.swapped_in += 1
            request.host_blocks, request.swapped_positions, request.resumes_first = [], 0, False
        elif request.preemptions:
            self.traffic.resume_hit_tokens += computed
        else:
            self.traffic.prefix_hit_tokens += computed
        request.state = State.RUNNING
        request.seated_step, request.sampled_step = self.step, 0
        self.newcomers.append(request)

    def take_moves(self) -> Moves:
        """The copies for the plan that is now launched. Its host blocks may be used again by later plans."""
        moves, self.moves = self.moves, Moves()
        self.kv.host.release([host for host, _ in moves.back])
        return moves

    # -- from one instance to another ----------------------------------------------------------------------------

    def hand_over(self, request: Request) -> None:
        """It has its first token here and goes on elsewhere. Its blocks are kept for it; one that lost them while that
        token was being sampled is computed again there."""
        if request.state is State.WAITING:
            self.waiting.take_out(request)
        else:
            request.swapped_positions = int(self.rows.computed[request.slot])
            assert request.swapped_positions == request.prompt_tokens, f"{request} has its first token too soon"
            request.host_blocks = self.kv.keep(request.slot)
            self.leave(request)
        request.state = State.NEW

    def arrived(self, transfer: Transfer) -> None:
        """The seat of a request that has ended meanwhile was held till now, as it was written to."""
        self.arrivals.end(transfer)
        if transfer.request.finished:
            self._let_go(transfer.slot)

    def quiet(self) -> bool:
        """True if, until a seated request ends, who is kept waiting stays so whatever the policies: then nobody waits,
        or all go by resources alone in an order that does not move."""
        p = self.policies
        return not len(self.waiting) or not (
            p.order.moves
            or p.skip_ahead.bypasses
            or p.batching.buckets
            or p.admission.vetoes
            or self.kv.index.enabled
            or self.gate.has_quotas
            or p.yielding.moves
        )

    # -- leaving -------------------------------------------------------------------------------------------------

    def enter(self, request: Request) -> None:
        """A new request takes its place in the queue."""
        request.bucket = bucket_of(request, self.policies.batching.buckets)
        self.policies.order.queued(request, self.waiting.tenants())
        self.waiting.push(request)

    def finish(self, request: Request) -> None:
        """The request has ended, wherever it was."""
        state, request.state = request.state, State.FINISHED
        if state is State.WAITING:
            self.waiting.forget()
            self._forget_swapped(request)
        elif state is State.RUNNING and request.slot in self.arrivals:
            self._close_stint(request)
            self.rows.end(request.slot)
        elif state is State.RUNNING and self.policies.batching.holds:
            self._close_stint(request)
            self.rows.end(request.slot)
            if self.rows.num_live == 0:  # the batch has ended: everybody lets go
                for slot in self.rows.in_order().tolist():
                    self._let_go(slot)
        elif state is State.RUNNING:
            self.kv.host.release(self._stays_out(request.slot))
            self.leave(request)
        self.policies.order.ended(request)

    def _forget_swapped(self, request: Request) -> None:
        gone = set(request.host_blocks)
        self.moves.out = [move for move in self.moves.out if move[1] not in gone]
        self.kv.host.release(request.host_blocks)
        request.host_blocks = []

    def leave(self, request: Request) -> None:
        self._close_stint(request)
        self._let_go(request.slot)

    def _let_go(self, slot: int) -> None:
        self.gate.leave(self.occupant(slot), self.collected)

    def _close_stint(self, request: Request) -> None:
        ended = max(self.collected, request.seated_step)
        slot = self.first_slot + request.slot
        request.stints.append(Stint(slot, request.seated_step, request.sampled_step, ended))

    def check_invariants(self) -> None:
        self.rows.check_invariants()
        waiting = list(self.waiting)
        assert len(self.waiting) == len(waiting) == len({id(request) for request in waiting})
        coming_back = [host for host, _ in self.moves.back]
        coming_back += self.arrivals.sources
        self.arrivals.check_invariants()
        self.kv.check_invariants([block for request in waiting for block in request.host_blocks] + coming_back)
        self.gate.check_invariants()
        for request in self.rows.request:
            if request is not None and not request.finished:
                end, held = int(self.rows.computed[request.slot]), self.kv.held(request.slot)
                assert held == self.kv.blocks_for(end), f"{request}: {held} blocks for {end} positions"
