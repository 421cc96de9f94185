"""Stretch: decode-only steps taken in one go, where it is sure that nothing else can happen in between.

Sure means: every seated request decodes, nobody who waits can be seated (that needs an end, and the stretch stops at
the first), every block the rows grow into is there, and nothing comes due before the stretch's last step ends. Then
each step is the one before with one more position per row, and everything a step-by-step run would record follows
from sums. A property test compares the two, bit for bit.

This module is a friend of Scheduler: it moves its state as `steps` calls of schedule() and update() would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.ledger import LEDGER, Blocked, StepArray
from engines.scheduling.plan import IntArray
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Outcome, Scheduler
from engines.scheduling.step_ledger import Traffic

MAX_STEPS = 1024  # bounds the memory of one stretch, nothing else


@dataclass(frozen=True, slots=True)
class Quiet:
    """The decode-only steps that are sure to come, before time and KV are asked."""

    steps: int  # at most: the last of these ends a request
    slots: IntArray  # [rows] live seats in plan order
    live_kv: int  # positions the live rows read in the first step; each reads one more in every step after
    dead_rows: int
    dead_kv: int  # positions these read in every step
    blocked: Blocked  # why nobody is admitted
    head_promise: int  # blocks the head of the queue must be promised; it may be short of more as KV fills up

    @property
    def rows(self) -> int:
        """Launched rows of each step."""
        return len(self.slots) + self.dead_rows


@dataclass(frozen=True, slots=True)
class Growth:
    """KV blocks after each step of a stretch: int64[steps]."""

    used: IntArray
    reserved: IntArray
    free: IntArray


@dataclass(frozen=True, slots=True)
class Stretch:
    ledger: StepArray  # a row per step; `now_ns` is left to the caller
    finished: list[Request]  # in its last step


def quiet_steps(scheduler: Scheduler) -> Quiet | None:
    """What is sure, or None when the next step must be planned in full."""
    rows, seating = scheduler.rows, scheduler.seating
    if rows.num_live == 0 or scheduler._in_flight or seating.rejected or seating.moves.out:
        return None
    if scheduler.kv.index.enabled or not seating.quiet():
        return None  # steps publish blocks, or more than an end may let somebody in
    order = rows.in_order()
    all_live = rows.num_live == len(order)
    slots = order if all_live else order[rows.live[order]]
    computed = rows.computed[slots]
    if (rows.known[slots] - computed != 1).any() or (computed < np.maximum(rows.prompt, rows.peak)[slots]).any():
        return None  # a prompt is being computed, or computed again
    scheduler.begin()
    blocked, promise = _why_nobody_comes(scheduler)
    if blocked is None:
        return None
    # Only seats that finished requests hold can get padding now: whether they do is the batching policy's choice.
    dead = order[:0] if all_live else order[(seating.share()[1] > 0) & ~rows.live[order]]
    steps = int((rows.kv_limit[slots] - computed).min())
    live_kv, dead_kv = int(computed.sum()) + len(slots), int(rows.computed[dead].sum())
    return Quiet(min(steps, MAX_STEPS), slots, live_kv, len(dead), dead_kv, blocked, promise)


def _why_nobody_comes(scheduler: Scheduler) -> tuple[Blocked | None, int]:
    """(why the head of the queue stays there until somebody ends, the promise it asks for); None: it could be seated.

    While rows only grow, what is available only shrinks, so a head that lacks KV now lacks it until the stretch ends.
    """
    seating = scheduler.seating
    head = seating.waiting.head()
    if head is None:
        return Blocked.NO, 0
    rows, kv, policies = scheduler.rows, scheduler.kv, seating.policies
    order = rows.in_order()
    wants = seating.wants(order)  # and gets: a token for every live seat always fits the budget
    room = policies.batching.room(wants, rows.computed[order], wants, scheduler.gate.budget)
    want = min(head.known, head.kv_limit) - head.swapped_positions
    takes = policies.batching.takes(want, room, head.preemptions > 0) if room else 0
    if not takes:
        return policies.batching.blocked, 0
    if rows.num_free == 0:
        return Blocked.ROWS, 0
    promise = policies.admission.promise(head, kv, head.swapped_positions + takes)
    promise = max(promise, len(head.host_blocks))
    left = kv.available - promise
    if left < 0:
        return Blocked.KV, promise
    return (Blocked.WATERMARK, promise) if left < policies.admission.watermark_blocks else (None, 0)


def growth_of(scheduler: Scheduler, quiet: Quiet, steps: int) -> Growth:
    """KV after each of the next `steps` steps; cut where the pool would run short."""
    kv, slots = scheduler.kv, quiet.slots
    held, computed = kv._held[slots], scheduler.rows.computed[slots]
    taken = _blocks_taken(held * kv.block_size - computed, kv.block_size, steps)
    beyond = taken
    if kv.num_promised:
        promised_end = (held + kv._promised[slots]) * kv.block_size
        beyond = _blocks_taken(promised_end - computed, kv.block_size, steps)
    free = kv.available - beyond
    enough = int(np.searchsorted(beyond, kv.available, side="right"))
    return Growth(
        used=(kv.num_used + taken)[:enough],
        reserved=(kv.num_promised - (taken - beyond))[:enough],
        free=free[:enough],
    )


def _blocks_taken(room: IntArray, block_size: int, steps: int) -> IntArray:
    """Blocks taken in all after each step, when row i has room for room[i] more positions: int64[steps]."""
    at = (room[:, None] + np.arange(0, steps, block_size)).ravel()  # the steps, from 0, in which a row takes a block
    return np.bincount(at[at < steps], minlength=steps).cumsum()


def advance(scheduler: Scheduler, quiet: Quiet, growth: Growth, starts_ns: IntArray, ends_ns: IntArray) -> Stretch:
    """Take the steps these columns describe: what schedule() and update() would have done, once per step."""
    rows, steps, slots = scheduler.rows, len(ends_ns), quiet.slots
    first_step, end_ns = scheduler.numbers.last + 1, int(ends_ns[-1])
    ledger = _ledger(scheduler, quiet, growth, starts_ns, ends_ns)
    scheduler.seating.traffic = Traffic()
    scheduler.kv.grow(slots, rows.computed[slots] + steps)
    rows.computed[slots] += steps
    rows.known[slots] += steps
    scheduler.numbers.last += steps
    scheduler.num_steps += steps
    scheduler.seating.launched = scheduler.seating.collected = rows.last_step[slots] = scheduler.numbers.last
    requests = [request for slot in slots.tolist() if (request := rows.request[slot]) is not None]
    for request in requests:
        _deliver(request, first_step, steps, end_ns)
    order = scheduler.seating.policies.order
    for _ in range(steps - 1):
        order.served(requests)
    outcome = Outcome()
    for request in requests:
        if request.output_tokens >= request.max_output_tokens:
            scheduler._end(request, "length", outcome)
    order.served(requests)
    return Stretch(ledger, outcome.finished)


def _deliver(request: Request, first_step: int, steps: int, end_ns: int) -> None:
    """`steps` tokens at once; the first of all came before, or the request would not be decoding."""
    if request.sampled_step == 0:  # it has just been computed again after a preemption
        request.sampled_step = first_step
    run = request.event_runs[-1]
    if run[0] + run[1] == first_step:
        run[1] += steps
    else:
        request.event_runs.append([first_step, steps])
    request.last_ns = end_ns
    request.output_tokens += steps


def _ledger(scheduler: Scheduler, quiet: Quiet, growth: Growth, starts_ns: IntArray, ends_ns: IntArray) -> StepArray:
    steps, live, dead = len(ends_ns), len(quiet.slots), quiet.dead_rows
    ledger = np.zeros(steps, LEDGER)
    ledger["step"] = scheduler.numbers.last + 1 + np.arange(steps)
    ledger["start_ns"] = starts_ns
    ledger["end_ns"] = ends_ns
    ledger["busy_ns"] = ends_ns - starts_ns
    ledger["launched_tokens"] = live + dead
    ledger["useful_tokens"] = ledger["sampled_tokens"] = live
    ledger["dead_row_tokens"] = dead
    ledger["budget_unused_tokens"] = scheduler.gate.budget - live - dead
    ledger["decode_rows"] = ledger["active_slots"] = ledger["running"] = live
    ledger["dead_slots"] = dead
    ledger["kv_positions"] = quiet.live_kv + live * np.arange(steps)
    ledger["decode_kv_positions"] = ledger["kv_positions"] + quiet.dead_kv
    ledger["idle_slots"] = scheduler.rows.num_slots - live - dead
    ledger["kv_used_blocks"] = growth.used
    ledger["kv_reserved_blocks"] = growth.reserved
    ledger["kv_free_blocks"] = growth.free
    ledger["waiting"] = scheduler.num_waiting
    ledger["blocked"] = quiet.blocked
    if quiet.blocked is Blocked.WATERMARK:  # as the pool fills, the head lacks blocks outright
        ledger["blocked"][growth.free < quiet.head_promise] = Blocked.KV
    traffic = scheduler.seating.traffic  # what happened since the last step belongs to the next one
    for name in Traffic.__slots__:
        if name != "blocked":
            ledger[name][0] = getattr(traffic, name)
    return ledger
