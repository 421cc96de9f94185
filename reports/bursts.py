"""Whether rare bursts of the queue decide a tail: then one run does not show how slow it is.

Near saturation the P99 of TTFT and E2EL is made in a few long queues. A run that met none of them looks calm and
independent, so its own numbers prove nothing. Two things of the run tell it apart from a lightly loaded one: how full
the slots were, and in how many separate bursts its slowest requests came. The limits below were chosen by simulation
(benchmarks/verdicts.py; docs/gates.md has the table).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engines.base import RunRecord
from reports.metrics import RequestTimes
from reports.quantiles import tail_indicator

CALM_SHARE = 0.75  # of the slots in use at the most: below, no queue forms for want of a slot
BURSTS_SHARE = 0.25  # bursts per value in the tail; independent values come in exp(-1) = 0.37
WAY_OUT = "measure at a lower rate, or give several runs with other seeds"


@dataclass(frozen=True)
class Bursts:
    """The bursts in which the slowest requests of a loaded run came."""

    load: str  # how full the engine was, in words
    slowest: int  # requests
    found: int
    wanted: int  # at least, for a pass

    @property
    def rare(self) -> bool:
        return self.found < self.wanted

    @property
    def reason(self) -> str:
        return (
            f"near saturation, where rare bursts decide this latency ({self.load}; its slowest {self.slowest} requests "
            f"came in {self.found} {'burst' if self.found == 1 else 'bursts'}, at least {self.wanted} are wanted): "
            f"{WAY_OUT}"
        )


def bursts_of(record: RunRecord, times: RequestTimes) -> Bursts | None:
    """Those of an open-loop run. None where the load was too low for bursts to decide the P99 of TTFT and E2EL.

    It was where at most 75 % of the slots were in use (over HTTP: where no sample saw a request waiting). Otherwise the
    slowest 2 % of the first tokens, 20 at least, must have come in a quarter as many bursts. A burst ends where as many
    requests in a row are faster as lie between two of the slowest on average.
    """
    load = _queue(record)
    waits = np.where(np.isnan(times.ttft_sched_ms), np.inf, times.ttft_sched_ms)
    if load is None or waits.shape[0] < 2:
        return None
    slowest = np.flatnonzero(tail_indicator(waits, np.sort(waits), math.inf))
    usual_gap = waits.shape[0] // slowest.shape[0]
    found = 1 + int((np.diff(slowest) >= usual_gap).sum())
    return Bursts(load, slowest.shape[0], found, math.ceil(BURSTS_SHARE * slowest.shape[0]))


def rare_bursts(record: RunRecord, times: RequestTimes) -> bool:
    """Whether rare bursts decide the P99 of TTFT and E2EL of this open-loop run."""
    bursts = bursts_of(record, times)
    return bursts is not None and bursts.rare


def _queue(record: RunRecord) -> str | None:
    """How often requests waited, in words; None where the load was too low for bursts."""
    steps = record.steps
    if steps.size:
        slots = steps["active_slots"].astype(np.int64) + steps["idle_slots"]
        most = float((steps["active_slots"] / np.maximum(slots, 1)).max())
        if most < CALM_SHARE:
            return None
        lasted = np.maximum(steps["end_ns"] - steps["start_ns"], 1)
        queued = float(np.average(steps["waiting"] > 0, weights=lasted))
        return f"up to {most:.0%} of the slots were in use, and requests waited in {queued:.1%} of the step time"
    if not record.signals:
        return "the load of the engine is not known"
    queued = float(np.mean([one.waiting > 0 for one in record.signals]))
    return f"requests waited in {queued:.1%} of the samples" if queued else None
