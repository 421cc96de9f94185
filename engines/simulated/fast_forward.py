"""Fast-forward: decode-only steps taken at once, where it is sure that nothing else can happen in between.

Sure means: every running request decodes, no waiting request can be admitted before one ends (and the steps stop at the
first end), every block the slots grow into is available, and nothing comes due before the last step ends. Then each
step is the one before with one more position per row, and everything a step-by-step run would record follows from sums.
A property test compares the two, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.ledger import LEDGER, Blocked, StepArray
from engines.loop import NextDue, VirtualClock
from engines.scheduling.delivery import Outcome, deliver_run
from engines.scheduling.plan import IntArray
from engines.scheduling.resource_gate import AdmissionBudget, Grant
from engines.scheduling.scheduler import Scheduler
from engines.scheduling.step_ledger import Traffic
from engines.simulated.cost import CostExecutor

MAX_STEPS = 1024  # bounds the memory of one fast-forward, nothing else


class DecodeFastForward:
    """A FastForward of engines.loop: does to scheduler, executor and clock what that many steps would have done."""

    def __init__(self, scheduler: Scheduler, executor: CostExecutor, clock: VirtualClock) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock

    def __call__(self, next_due: NextDue) -> tuple[Outcome, int] | None:
        decodes = sure_decodes(self._scheduler, self._clock.now_ns())
        if decodes is None:
            return None
        first_kv = decodes.kv + decodes.dead_kv
        starts_ns, ends_ns, busy_ns = self._executor.decode_times(
            decodes.steps, decodes.rows, first_kv, len(decodes.slots), next_due()
        )
        kv = kv_after_each(self._scheduler, decodes.slots, len(ends_ns))
        if not (steps := len(kv.free)):
            return None
        starts_ns, ends_ns = starts_ns[:steps], ends_ns[:steps]
        ledger = ledger_of(self._scheduler, decodes, kv, starts_ns, ends_ns)
        ledger["busy_ns"] = busy_ns[:steps]
        ledger["now_ns"][0] = self._clock.now_ns()
        ledger["now_ns"][1:] = ends_ns[:-1]
        outcome, end_ns = Outcome(skipped_steps=ledger), int(ends_ns[-1])
        advance(self._scheduler, decodes.slots, steps, end_ns, outcome)
        self._clock.wait_until(end_ns)
        self._executor.ran_until(end_ns)
        return outcome, end_ns


@dataclass(frozen=True, slots=True)
class Decodes:
    """The decode-only steps that are sure to come, as far as time and KV allow."""

    steps: int  # at most: the last of these ends a request
    slots: IntArray  # [rows] active slots in plan order
    kv: int  # positions the active rows read in the first step; each reads one more in every step after
    dead_rows: int
    dead_kv: int  # positions these read in every step
    blocked: Blocked  # why no waiting request is admitted
    head_needs_blocks: int  # where KV is short: blocks that the head of the queue needs

    @property
    def rows(self) -> int:
        """Launched rows of each step."""
        return len(self.slots) + self.dead_rows


def sure_decodes(scheduler: Scheduler, now_ns: int) -> Decodes | None:
    """What is sure, or None when the next step must be planned in full."""
    columns = scheduler.slots
    if columns.num_active == 0 or scheduler.num_in_flight or scheduler.running.has_moves or scheduler.has_rejected:
        return None
    if scheduler.kv.index.enabled or not _only_ends_admit(scheduler):
        return None
    order = columns.in_order()
    all_active = columns.num_active == len(order)
    slots = order if all_active else order[columns.active[order]]
    computed = columns.computed[slots]
    if (columns.known[slots] - computed != 1).any():
        return None
    if (computed < np.maximum(columns.prompt, columns.peak)[slots]).any():
        return None  # a prompt is being computed, or computed again
    scheduler.begin_step(now_ns)
    blocked, needs_blocks = Blocked.NO, 0
    if (head := scheduler.waiting.head()) is not None:
        # Every active slot wants one token, and gets it: that always fits the budget.
        counts = columns.active[order].astype(np.int64)
        # With no blocks set aside for growth a head may look admittable that is not: then the step is planned in full.
        budget = AdmissionBudget(scheduler.admission.tokens_left(counts), set_aside=0)
        verdict = scheduler.admission.can_admit(head, budget, now_ns)
        if isinstance(verdict, Grant):
            return None
        blocked, needs_blocks = verdict.why, verdict.needs_blocks
    # Only slots of finished requests can get padding now: whether they do is the batching policy's choice.
    dead = order[:0] if all_active else order[(scheduler.admission.share().padding > 0) & ~columns.active[order]]
    steps = min(int((columns.kv_limit[slots] - computed).min()), MAX_STEPS)
    kv, dead_kv = int(computed.sum()) + len(slots), int(columns.computed[dead].sum())
    return Decodes(steps, slots, kv, len(dead), dead_kv, blocked, needs_blocks)


def _only_ends_admit(scheduler: Scheduler) -> bool:
    """True if a head of the queue that is refused now is refused until a running request ends, whatever the policies:
    none waits, or all wait for resources alone, in an order that does not change. While slots only grow, what is
    available only shrinks."""
    policies = scheduler.policies
    return not len(scheduler.waiting) or not (
        policies.order.moves
        or policies.skip_ahead.limit
        or policies.batching.buckets
        or policies.admission.vetoes
        or policies.priority.preempts
        or scheduler.gate.has_quotas
    )


@dataclass(frozen=True, slots=True)
class KVAfter:
    """KV blocks after each step: int64[steps]."""

    used: IntArray
    reserved: IntArray
    free: IntArray


def kv_after_each(scheduler: Scheduler, slots: IntArray, steps: int) -> KVAfter:
    """KV after each of the next steps in which these slots decode; cut where the pool would run short."""
    kv, computed = scheduler.kv, scheduler.slots.computed[slots]
    taken = _blocks_taken(kv.table_room(slots) - computed, kv.block_size, steps)
    beyond = taken
    if kv.num_reserved:
        beyond = _blocks_taken(kv.capacity(slots) - computed, kv.block_size, steps)
    enough = int(np.searchsorted(beyond, kv.available, side="right"))
    return KVAfter(
        used=(kv.num_used + taken)[:enough],
        reserved=(kv.num_reserved - (taken - beyond))[:enough],
        free=(kv.available - beyond)[:enough],
    )


def _blocks_taken(room: IntArray, block_size: int, steps: int) -> IntArray:
    """Blocks taken in all after each step, when row i has room for room[i] more positions: int64[steps]."""
    at = (room[:, None] + np.arange(0, steps, block_size)).ravel()  # the steps, from 0, in which a row takes a block
    return np.bincount(at[at < steps], minlength=steps).cumsum()


def advance(scheduler: Scheduler, slots: IntArray, steps: int, end_ns: int, outcome: Outcome) -> None:
    """Take `steps` decode-only steps, the last of which ends at `end_ns`; `outcome` tells of the requests that end."""
    first_step = scheduler.numbers.last + 1
    scheduler.numbers.last += steps
    scheduler.num_steps += steps
    scheduler.running.fast_forward(slots, steps, scheduler.numbers.last)
    requests = [request for slot in slots.tolist() if (request := scheduler.slots.request[slot]) is not None]
    for request in requests:
        deliver_run(request, first_step, steps, end_ns)
    order = scheduler.policies.order
    for _ in range(steps - 1):
        order.served(requests)
    for request in requests:
        if request.output_tokens >= request.max_output_tokens:
            scheduler.end(request, "length", outcome)
    order.served(requests)


def ledger_of(scheduler: Scheduler, decodes: Decodes, kv: KVAfter, starts_ns: IntArray, ends_ns: IntArray) -> StepArray:
    """The ledger rows of the steps, but for `now_ns` and `busy_ns`."""
    steps, active, dead = len(ends_ns), len(decodes.slots), decodes.dead_rows
    ledger = np.zeros(steps, LEDGER)
    ledger["step"] = scheduler.numbers.last + 1 + np.arange(steps)
    ledger["start_ns"] = starts_ns
    ledger["end_ns"] = ends_ns
    ledger["launched_tokens"] = active + dead
    ledger["useful_tokens"] = ledger["sampled_tokens"] = active
    ledger["dead_row_tokens"] = dead
    ledger["budget_unused_tokens"] = scheduler.gate.budget - active - dead
    ledger["decode_rows"] = ledger["active_slots"] = ledger["running"] = active
    ledger["dead_slots"] = dead
    ledger["kv_positions"] = decodes.kv + active * np.arange(steps)
    ledger["decode_kv_positions"] = ledger["kv_positions"] + decodes.dead_kv
    ledger["idle_slots"] = scheduler.slots.num_slots - active - dead
    ledger["kv_used_blocks"] = kv.used
    ledger["kv_reserved_blocks"] = kv.reserved
    ledger["kv_free_blocks"] = kv.free
    ledger["waiting"] = len(scheduler.waiting)
    ledger["blocked"] = decodes.blocked
    if decodes.blocked is Blocked.WATERMARK:  # as the pool fills, the head lacks blocks outright
        ledger["blocked"][kv.free < decodes.head_needs_blocks] = Blocked.KV
    traffic = scheduler.running.take_traffic()  # what happened since the last step belongs to the first of these
    for name in Traffic.__slots__:
        if name != "blocked":
            ledger[name][0] = getattr(traffic, name)
    return ledger
