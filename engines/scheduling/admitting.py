"""Admitting: who waits sits down, first come by the order, while tokens, seats and KV last.

Who does not fit waits, and everybody behind in the same queue; a tenant at its quota holds back no other.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.ledger import Blocked
from engines.scheduling.plan import IntArray
from engines.scheduling.policies.preemption import Fate
from engines.scheduling.request import Request
from engines.scheduling.resource_gate import Denied
from engines.scheduling.seating import Seating


@dataclass(slots=True)
class Door:
    """What is left of a step for those who come in."""

    tokens: int
    set_aside: int  # available blocks that seated requests will take in this step


def admit(seating: Seating, counts: IntArray, now_ns: int) -> bool:
    """Seat who waits, in a step that gives those who sit `counts` tokens. True if anybody changed seats."""
    if not len(seating.waiting):
        return False
    skip = seating.waiting.queues_outside(seating.turn)
    passed: list[Request] = []  # heads that stay, while others go before them
    changed = False
    door = _open(seating, counts)
    while (head := seating.waiting.head(skip)) is not None:
        denied = _try(seating, head, door, now_ns)
        if denied is None:
            changed = True
            for one in passed:
                one.bypassed += 1
            continue
        if _yield_to(seating, head, denied):
            changed = True
            door = _open(seating, seating.share()[0])
            continue
        _say(seating, denied)
        if denied.why is Blocked.QUOTA:
            skip.add(head.queue)
        elif denied.why in (Blocked.KV, Blocked.WATERMARK) and seating.policies.skip_ahead.may_pass(head):
            seating.waiting.pop(head)
            passed.append(head)
        else:
            break
    for one in passed:
        seating.waiting.push(one)
    return changed


def _open(seating: Seating, counts: IntArray) -> Door:
    rows, kv, policies = seating.rows, seating.kv, seating.policies
    slots = rows.in_order()
    computed = rows.computed[slots]
    policies.admission.look(rows, kv)
    tokens = policies.batching.room(seating.wants(slots), computed, counts, seating.gate.budget)
    return Door(tokens, int(kv.beyond_promise(slots, computed + counts).sum()))


def _try(seating: Seating, head: Request, door: Door, now_ns: int) -> Denied | None:
    """Seat the head, or say why not."""
    policies, rows, kv = seating.policies, seating.rows, seating.kv
    if head.index in seating.evicted:
        return Denied(Blocked.PREEMPTED)
    if rows.num_taken == 0:
        opens_ns = policies.batching.opens_at_ns(len(seating.waiting), rows.num_slots, head.submitted_ns)
        if opens_ns > now_ns:
            return Denied(Blocked.PATIENCE, opens_ns)
    hits = kv.match(head)
    computed = head.swapped_positions or len(hits) * kv.block_size
    want = min(head.known, head.kv_limit) - computed
    takes = policies.batching.takes(want, door.tokens, head.preemptions > 0) if door.tokens else 0
    if takes == 0:
        return Denied(policies.batching.blocked)
    if rows.num_live and not policies.admission.permits(head):
        return Denied(Blocked.PEAK)
    promise = policies.admission.promise(head, kv, computed + takes)
    watermark = policies.admission.watermark_blocks
    denied = seating.gate.seat(head, promise, hits, set_aside=door.set_aside, watermark=watermark, now_ns=now_ns)
    if denied is None:
        policies.admission.seated(head)
        seating.sit(head, computed)
        door.tokens -= takes
    return denied


def _yield_to(seating: Seating, head: Request, denied: Denied) -> bool:
    """True if a seated request got up for the head. With a fence pending, what was given up is on its way."""
    if denied.why not in (Blocked.ROWS, Blocked.KV, Blocked.WATERMARK):
        return False
    if seating.rows.num_pending or seating.kv.pool.num_pending:
        return False
    slot = seating.policies.yielding.who(head, seating.rows)
    if slot is None or slot in seating.arrivals:
        return False
    seating.evict(seating.occupant(slot), Fate.SWAP, resumes_first=False)
    return True


def _say(seating: Seating, denied: Denied) -> None:
    seating.traffic.blocked = denied.why
    if denied.until_ns is not None:
        seating.wake_at_ns = min(denied.until_ns, seating.wake_at_ns or denied.until_ns)
