"""RunningBatch: the requests that have a slot, and the only ways into and out of it.

           admit                  preempt
Waiting ──────────► in a slot ──────────────► Waiting (recompute, swap)
                      │ finish, hand over
                      ▼
             the slot, behind the last step that uses it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engines.scheduling.kv import KeptElsewhere, KVManager
from engines.scheduling.kv_transfer import Arrivals, Transfer
from engines.scheduling.plan import NO_MOVES, IntArray, StepPlan
from engines.scheduling.policies.preemption import Fate
from engines.scheduling.request import Request, State, Stint
from engines.scheduling.resource_gate import Grant, ResourceGate
from engines.scheduling.slots import Slots
from engines.scheduling.step_ledger import Traffic

NONE: IntArray = np.empty(0, dtype=np.int64)


class Shares(NamedTuple):
    """What each taken slot gets of a step, in plan order: int64[taken slots] each."""

    counts: IntArray  # own tokens
    padding: IntArray  # dead tokens launched before them


@dataclass(slots=True)
class _Moves:
    """Block copies that the next launched plan must carry out."""

    out: list[tuple[int, int]] = field(default_factory=list)  # (device block, host block)
    back: list[tuple[int, int]] = field(default_factory=list)  # (host block, device block)


class RunningBatch:
    """slots: its columns, which others read."""

    def __init__(self, slots: Slots, kv: KVManager, gate: ResourceGate, first_slot: int = 0) -> None:
        """first_slot: what slot 0 is called in the records, where several instances are recorded together."""
        self.slots = slots
        self._kv = kv
        self._gate = gate
        self._first_slot = first_slot
        self._arrivals = Arrivals(slots, kv)
        self._moves = _Moves()
        self._traffic = Traffic()
        self._step = 0  # being planned
        self._launched = 0  # newest launched here
        self._collected = 0  # newest collected
        self._admitted_since: list[Request] = []  # since the newest launched
        self._paused: list[int] = []  # slots that get no tokens in this step: a preemption follows

    # -- planning a step -----------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """The step of this number is planned from here on."""
        if self._admitted_since:
            # A planning that launched nothing may have admitted requests: another instance launched its number, so
            # they have their slot from this step on.
            self._admitted_since = [one for one in self._admitted_since if one.admitted_step > self._launched]
            for one in self._admitted_since:
                one.admitted_step = step
        self._step = step
        self._paused = []

    def pause(self, slots: list[int]) -> None:
        """These get no tokens in the step that is planned: once the step in flight has ended, all they have is free."""
        self._paused = slots

    def in_flight(self, slots: Sequence[int]) -> bool:
        """A step that is not collected has a row of one of these."""
        return bool((self.slots.last_step[list(slots)] > self._collected).any())

    def wants(self, bucket: int | None = None) -> IntArray:
        """Known tokens that each taken slot has not computed yet, in plan order: int64[taken slots].

        0 for a finished request that holds its slot, and for one whose KV is on its way. bucket: prompts of other
        buckets want nothing in this step.
        """
        columns, slots = self.slots, self.slots.in_order()
        wants = np.minimum(columns.known[slots], columns.kv_limit[slots]) - columns.computed[slots]
        wants *= columns.active[slots]
        if self._arrivals:
            wants *= ~columns.arriving[slots]
        if self._paused:
            wants *= np.isin(slots, self._paused, invert=True)
        if bucket is not None:
            wants *= (columns.bucket[slots] == bucket) | (wants <= 1)
        return wants

    def growth(self, counts: IntArray) -> IntArray:
        """Blocks that each taken slot needs of those available to compute `counts` tokens, in plan order."""
        slots = self.slots.in_order()
        return self._kv.beyond_reserved(slots, self.slots.computed[slots] + counts)

    def cut_to_available(self, shares: Shares) -> Shares:
        """Shares that fit the blocks there are: the last slots in plan order get no more than their own blocks hold."""
        slots = self.slots.in_order()
        fits = np.cumsum(self.growth(shares.counts)) <= self._kv.available
        own = np.minimum(shares.counts, self._kv.capacity(slots) - self.slots.computed[slots])
        return Shares(np.where(fits, shares.counts, own), shares.padding)

    def preemptible(self) -> IntArray:
        """Active slots in plan order; not those whose KV is still being written to."""
        slots = self.slots.in_order()
        return slots[self.slots.active[slots] & ~self.slots.arriving[slots]]

    def plan(self, now_ns: int, shares: Shares) -> StepPlan | None:
        """The plan of these shares, with the blocks taken that it writes to; None where no slot launches a token."""
        columns, (counts, padding) = self.slots, shares
        slots = columns.in_order()
        dead, dead_tokens = NONE, 0
        if columns.num_active < len(slots) or not counts.all():  # some slots compute nothing
            launched = (counts + padding) > 0
            own = launched & columns.active[slots]
            dead = slots[launched & ~own]
            dead_tokens = int(padding[launched & ~own][0]) if len(dead) else 0
            slots, counts, padding = slots[own], counts[own], padding[own]
        if not len(slots) and not len(dead):
            return None
        starts = columns.computed[slots]
        ends = starts + counts
        self._gate.grow(slots, ends)
        moves, self._moves = self._moves, _Moves()
        self._kv.host.release([host for host, _ in moves.back])  # later plans may use them again
        return StepPlan(
            step=self._step,
            now_ns=now_ns,
            requests=[columns.request[slot] for slot in slots.tolist()],
            slots=slots,
            starts=starts,
            counts=counts,
            padding=padding,
            samples=(ends == columns.known[slots]) & (counts > 0),
            dead_slots=dead,
            dead_lengths=columns.computed[dead],
            dead_tokens=dead_tokens,
            swap_out=np.array(moves.out, dtype=np.int64) if moves.out else NO_MOVES,
            swap_in=np.array(moves.back, dtype=np.int64) if moves.back else NO_MOVES,
            tables=self._kv.tables,
        )

    def launched(self, plan: StepPlan) -> None:
        """The plan's tokens count as computed, and those it samples as known."""
        columns, slots = self.slots, plan.slots
        columns.computed[slots] = plan.starts + plan.counts
        columns.known[slots] += plan.samples
        columns.last_step[slots] = self._launched = plan.step

    def collected(self, step: int) -> None:
        """Step `step` has ended: slots and blocks that waited for it are free."""
        self._collected = step
        self._kv.pool.pass_fence(step)
        self.slots.pass_fence(step)

    def fast_forward(self, slots: IntArray, steps: int, last_step: int) -> None:
        """Launch and collect `steps` steps at once, in each of which all of `slots` decode."""
        self._kv.grow(slots, self.slots.computed[slots] + steps)
        self.slots.decoded(slots, steps, last_step)
        self._launched = self._collected = last_step

    @property
    def has_moves(self) -> bool:
        """The next plan copies blocks to the host."""
        return bool(self._moves.out)

    @property
    def traffic(self) -> Traffic:
        """What happened since the last launched step."""
        return self._traffic

    def take_traffic(self) -> Traffic:
        """The same, which from now on belongs to the step that is launched."""
        traffic, self._traffic = self._traffic, Traffic()
        return traffic

    # -- into a slot, and back ------------------------------------------------------------------------------------

    def admit(self, request: Request, grant: Grant) -> None:
        """Give a request a slot and its blocks. Its KV may be shared, or come back from the host or an instance."""
        self._gate.allocate(request, grant)
        traffic = self._traffic
        traffic.admitted += 1
        if request.host_blocks:
            slot = request.slot
            self._kv.grow(np.array([slot]), np.array([grant.computed]))
            if isinstance(self._kv.host, KeptElsewhere):
                self._arrivals.request_kv(request)
                traffic.transfers += 1
                traffic.transfer_blocks += len(request.host_blocks)
            else:
                self._moves.back += zip(request.host_blocks, self._kv.blocks(slot), strict=True)
                traffic.swapped_in += 1
            request.host_blocks, request.swapped_positions, request.resumes_first = [], 0, False
        elif request.preemptions:
            traffic.resume_hit_tokens += grant.computed
        else:
            traffic.prefix_hit_tokens += grant.computed
        request.state = State.RUNNING
        request.admitted_step, request.sampled_step = self._step, 0
        self._admitted_since.append(request)

    def preempt(self, request: Request, fate: Fate, *, resumes_first: bool) -> None:
        """Take its slot; its KV goes to the host, or is computed again.

        resumes_first: swapped out, it is admitted before all requests that hold no KV.
        """
        slot = request.slot
        computed = int(self.slots.computed[slot])
        self._traffic.preempted += 1
        request.preemptions += 1
        request.pending = int(self.slots.known[slot]) - request.prompt_tokens - request.output_tokens
        if host_blocks := self._cancel_swap_in(slot):
            request.host_blocks = host_blocks
            request.resumes_first = resumes_first
            request.swapped_positions = computed
        elif fate is Fate.SWAP and self._kv.held(slot) <= self._kv.host.num_free:
            blocks = self._kv.blocks(slot)
            request.host_blocks = self._kv.host.take(len(blocks))
            request.resumes_first = resumes_first
            request.swapped_positions = computed
            self._moves.out += zip(blocks, request.host_blocks, strict=True)
            self._traffic.swapped_out += 1
        else:
            self._traffic.evicted_tokens += computed
            request.computed_peak = max(request.computed_peak, computed)
        self._leave(request)

    def _cancel_swap_in(self, slot: int) -> list[int]:
        """The host blocks of a slot that is released before the plan that copies them back; else none."""
        coming = set(self._kv.blocks(slot)) if self._moves.back else set()
        host_blocks = [host for host, device in self._moves.back if device in coming]
        if host_blocks:
            self._moves.back = [move for move in self._moves.back if move[1] not in coming]
            self._traffic.swapped_in -= 1
        return host_blocks

    # -- out of a slot -------------------------------------------------------------------------------------------

    def finish(self, request: Request, *, holds: bool) -> None:
        """A running request has ended. holds: finished requests keep slot and blocks until all of the batch end."""
        slot = request.slot
        if not request.output_tokens:  # how much of its prompt it has cost
            request.computed_peak = max(request.computed_peak, int(self.slots.computed[slot]))
        if slot in self._arrivals:  # its blocks are written to: the slot is held until `arrived`
            self._close_stint(request)
            self.slots.end(slot)
        elif holds:
            self._close_stint(request)
            self.slots.end(slot)
            if self.slots.num_active == 0:  # the batch has ended: all slots are released
                for one in self.slots.in_order().tolist():
                    self._release(one)
        else:
            self._kv.host.release(self._cancel_swap_in(slot))
            self._leave(request)

    def forget_swapped(self, request: Request) -> None:
        """A waiting request has ended: its host blocks are free, and copies to them are not made."""
        gone = set(request.host_blocks)
        self._moves.out = [move for move in self._moves.out if move[1] not in gone]
        self._kv.host.release(request.host_blocks)
        request.host_blocks = []

    def hand_over(self, request: Request) -> None:
        """The request continues at another instance: its slot is free, and its blocks are kept for the transfer."""
        request.swapped_positions = int(self.slots.computed[request.slot])
        assert request.swapped_positions == request.prompt_tokens, f"{request} has its first token too soon"
        request.host_blocks = self._kv.keep(request.slot)
        self._leave(request)

    def take_transfers(self, now_ns: int) -> list[Transfer]:
        """After a step was planned: transfers of KV from the other instance that start now."""
        transfers = self._arrivals.take()
        for transfer in transfers:
            transfer.request.transfer_asked_ns = now_ns
        return transfers

    def arrived(self, transfer: Transfer, at_ns: int) -> None:
        """All KV of a transfer is here. The slot of a request that has ended meanwhile was held until now."""
        transfer.request.transfer_ended_ns = at_ns
        self._arrivals.end(transfer)
        if transfer.request.finished:
            self._release(transfer.slot)

    @property
    def awaits_kv(self) -> bool:
        """KV of some slots is on its way from another instance."""
        return bool(self._arrivals)

    def _leave(self, request: Request) -> None:
        self._close_stint(request)
        self._release(request.slot)

    def _release(self, slot: int) -> None:
        self._gate.release(self.slots.request_in(slot), self._collected)

    def _close_stint(self, request: Request) -> None:
        ended = max(self._collected, request.admitted_step)
        slot = self._first_slot + request.slot
        request.stints.append(Stint(slot, request.admitted_step, request.sampled_step, ended))

    def check_invariants(self, waiting: list[Request]) -> None:
        """Raises AssertionError unless slots, tables and copies agree."""
        self.slots.check_invariants()
        self._arrivals.check_invariants()
        swapped = [block for request in waiting for block in request.host_blocks]
        coming_back = [host for host, _ in self._moves.back]
        self._kv.check_invariants(swapped + coming_back + self._arrivals.sources)
        self._gate.check_invariants()
        for request in self.slots.request:
            if request is not None and not request.finished:
                end, held = int(self.slots.computed[request.slot]), self._kv.held(request.slot)
                assert held == self._kv.blocks_for(end), f"{request}: {held} blocks for {end} positions"
