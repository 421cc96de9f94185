"""Turns: sessions that are closed inside. A turn waits for the answer before it, and then for its user to think.

    arrival    0 ......... a ............. b
    turn 1     |== answer ==|
    turn 2                  |.. think ..|== answer ==|        due at max(a, end of turn 1 + think)

Sessions begin by the arrival process, whatever the server does: between sessions the loop is open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.columns import IntColumn
from workloads.length_distributions import LengthDistribution
from workloads.sampling import THINK_TIMES, bit_stream

NS_PER_MS = 1_000_000


@dataclass(frozen=True, eq=False)
class Turns:
    after: IntColumn  # [requests] the request whose answer each waits for; -1: the first of a session, or of none
    think_ns: IntColumn  # [requests] from the end of that answer to this request

    @staticmethod
    def of(session: IntColumn, think_ms: LengthDistribution, seed: int) -> Turns:
        """session: as in a plan, -1 for none; think_ms: times instead of tokens."""
        return Turns(_turn_before(session), NS_PER_MS * think_ms.draw(_raw(seed, len(session))))

    def part(self, worker: int, workers: int) -> tuple[IntColumn, Turns]:
        """(the requests of a worker in order, their turns by their number among them): whole sessions, in turn."""
        owner = np.empty(len(self.after), dtype=np.int64)
        first = self.after < 0
        owner[first] = np.arange(np.count_nonzero(first)) % workers
        for turn in np.flatnonzero(~first).tolist():  # the turn before has a lower index
            owner[turn] = owner[self.after[turn]]
        own = np.flatnonzero(owner == worker)
        after = self.after[own]
        return own, Turns(np.where(after < 0, -1, np.searchsorted(own, after)), self.think_ns[own])


def _raw(seed: int, count: int) -> np.ndarray:
    return bit_stream(seed, THINK_TIMES).random_raw(count)


def _turn_before(session: IntColumn) -> IntColumn:
    order = np.argsort(session, kind="stable")
    follows = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    after = np.full(len(session), -1, dtype=np.int64)
    after[order[1:][follows]] = order[:-1][follows]
    return after
