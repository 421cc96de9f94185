"""Making room: a step's tokens are shared among those who sit, and some of them get up if KV is short.

Nothing is planned yet while this goes on, so a victim is never a planned row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engines.scheduling.plan import IntArray
from engines.scheduling.seating import Seating


class Shares(NamedTuple):
    """What each taken seat gets of the step, in plan order: int64[seats] each."""

    counts: IntArray  # own tokens
    padding: IntArray  # dead ones launched before them


def make_room(seating: Seating) -> tuple[Shares, bool]:
    """Share the step among the seats, evicting until their growth fits what is available. (shares, was any evicted)"""
    kv, rows = seating.kv, seating.rows
    evicted = False
    while True:
        shares = Shares(*seating.share())
        slots = rows.in_order()
        growth = kv.beyond_promise(slots, rows.computed[slots] + shares.counts)
        short = int(growth.sum()) - kv.available
        if short <= 0:
            return shares, evicted
        if short <= kv.pool.num_pending + kv.num_kept:
            # Blocks are on their way back, behind a fence or from another instance: the last rows wait, nobody else is
            # evicted.
            return _shortened(seating, shares), evicted
        here = slots[rows.live[slots] & ~rows.arriving[slots]]  # what is still being written to cannot be given up
        victim = seating.occupant(seating.policies.victims.choose(here, rows))
        seating.evict(victim, seating.policies.pressure.fate(victim), resumes_first=True)
        evicted = True


def share_again(seating: Seating) -> Shares:
    """The shares with newcomers seated. One that goes before others may be handed more than it was promised for; it
    then takes from what is available, or makes do with its promise."""
    shares = Shares(*seating.share())
    slots = seating.rows.in_order()
    growth = seating.kv.beyond_promise(slots, seating.rows.computed[slots] + shares.counts)
    return shares if int(growth.sum()) <= seating.kv.available else _shortened(seating, shares)


def _shortened(seating: Seating, shares: Shares) -> Shares:
    """Shares that fit the blocks there are: the last rows in plan order get no more than their own blocks hold."""
    slots = seating.rows.in_order()
    computed = seating.rows.computed[slots]
    growth = seating.kv.beyond_promise(slots, computed + shares.counts)
    fits = np.cumsum(growth) <= seating.kv.available
    own = np.minimum(shares.counts, seating.kv.capacity(slots) - computed)
    return Shares(np.where(fits, shares.counts, own), shares.padding)
