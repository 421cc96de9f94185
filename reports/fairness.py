"""Fairness between tenants: the waits of their requests, and the service gap while both wait.

Service is counted as by the Virtual Token Counter (Sheng et al., OSDI 2024): a prompt token counts 1, at the first
token of the output; an output token counts 2, when it is delivered. A fair scheduler keeps
|W_a(t1, t2) - W_b(t1, t2)|, the difference of the service of two tenants between t1 and t2, within a bound that does
not grow with t2 - t1, as long as both have waiting requests.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from engines.request_table import MISSING
from reports.events import Events
from reports.quantiles import FloatArray
from workloads.columns import IntColumn

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
MOST_MOMENTS = 1 << 17  # at which the service is compared; a run with more moments is compared at evenly chosen ones
MOST_EVENTS = 1 << 19  # among whose times they are chosen


def waits_ns(record: RunRecord) -> tuple[IntColumn, IntColumn]:
    """(begin, end) in ns of every request's wait for its first admission, in order of the record; begin is MISSING
    where it never reached the engine.

    In process: from submission to the planning of the step that admitted it. Over HTTP, where steps are not known: from
    sending to its first token. A request that got neither waited until it ended.
    """
    ended = record.column_ns("end")
    admitted = record.first_steps()
    if not admitted.any():
        first = record.column_ns("first")
        return record.column_ns("sent"), np.where(first == MISSING, ended, first)
    # A crash may lose the last steps of the ledger, and their times.
    known = (admitted > 0) & (admitted <= record.steps.shape[0])
    until = ended.copy()
    until[known] = record.steps["now_ns"][admitted[known] - 1]
    return record.column_ns("submitted"), until


def service_gap_tokens(record: RunRecord, tenant: IntColumn, tenants: int) -> float | None:
    """The largest lead in service of one tenant over another within a time in which both had waiting requests.

    tenant: index of the tenant of every request of the record. None where no two tenants waited at the same time.
    """
    begin, end = waits_ns(record)
    reached = begin != MISSING
    waiting = [
        overlaps(begin[reached & (tenant == one)], end[reached & (tenant == one)], depth=1) for one in range(tenants)
    ]
    moments, served = _served(record, tenant, tenants)
    gaps = []
    for one, other in combinations(range(tenants), 2):
        begins, ends = (np.concatenate(sides) for sides in zip(waiting[one], waiting[other], strict=True))
        gaps.append(_widest(moments, served[one] - served[other], *overlaps(begins, ends, depth=2)))
    return max((gap for gap in gaps if gap is not None), default=None)


def overlaps(begin: IntColumn, end: IntColumn, depth: int) -> tuple[IntColumn, IntColumn]:
    """(begin, end) of the times covered by at least `depth` intervals; times that touch are merged."""
    at, change = np.concatenate([begin, end]), np.repeat([1, -1], begin.shape[0])
    order = np.lexsort((-change, at))
    at, inside = at[order], np.cumsum(change[order]) >= depth
    before = np.concatenate([[False], inside[:-1]])
    begin, end = at[inside & ~before], at[before & ~inside]
    return begin[end > begin], end[end > begin]


def _served(record: RunRecord, tenant: IntColumn, tenants: int) -> tuple[IntColumn, NDArray[np.float64]]:
    """(moments, service[tenants, moments]): service of each tenant up to and including each moment."""
    events, all_rows = Events(record), np.ones(len(record), np.bool_)
    moments = _moments(record, events)
    # Events of a request share its output tokens evenly: a server may send several tokens in one event.
    per_event = OUTPUT_WEIGHT * record.column("output_tokens") / np.maximum(record.column("events"), 1)
    prompts = PROMPT_WEIGHT * record.column("prompt_tokens")
    service = np.zeros(tenants * moments.shape[0])
    for batch in events.batches(all_rows):
        served = np.repeat(per_event[batch.rows], batch.counts)
        served[batch.starts] += prompts[batch.rows]
        cell = np.repeat(tenant[batch.rows] * moments.shape[0], batch.counts)
        cell += np.searchsorted(moments, batch.times_ns())
        service += np.bincount(cell, weights=served, minlength=service.shape[0])
    return moments, service.reshape(tenants, -1).cumsum(axis=1)


def _moments(record: RunRecord, events: Events) -> IntColumn:
    """Times of token events in ns, ascending: all of them or, of many, an even selection and the last."""
    stride = max(1, int(record.column("events").sum()) // MOST_EVENTS)
    seen, last = [np.empty(0, np.int64)], np.empty(0, np.int64)
    for batch in events.batches(np.ones(len(record), np.bool_)):
        at_ns = batch.times_ns()
        seen.append(at_ns[::stride])
        last = np.append(last, at_ns.max()).max(keepdims=True)
    moments = np.unique(np.concatenate([*seen, last]))
    stride = max(1, -(-moments.shape[0] // MOST_MOMENTS))
    return np.append(moments[stride - 1 : -1 : stride], last)


def _widest(moments: IntColumn, ahead: FloatArray, begin: IntColumn, end: IntColumn) -> float | None:
    """The largest change of `ahead` within any interval, both ends included. None without an interval."""
    if not begin.shape[0]:
        return None
    ahead = np.concatenate([[0.0], ahead, [0.0]])  # [k]: after k moments; the last is not used
    low, high = np.searchsorted(moments, begin, side="right"), np.searchsorted(moments, end, side="right")
    # reduceat also reduces between one interval and the next, so every other result is used.
    bounds = np.stack([low, high + 1], axis=1).reshape(-1)
    reach = np.maximum.reduceat(ahead, bounds) - np.minimum.reduceat(ahead, bounds)
    return float(reach[::2].max())
