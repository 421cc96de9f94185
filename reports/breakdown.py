"""The parts of a request's time. They add up to its TTFT and its E2EL from the scheduled time, to the ns.

In process, where slots are known:

    scheduled   sent     submitted    admitted                  first                        last
        |---------|----------|-----------|------------------------|---------------------------|
          client     intake      queue      prefill  preempted       decode        preempted

Over HTTP, where they are not:

        |---------|-----------------------------------------------|---------------------------|
          client                      server                                 decode

client     scheduled but not sent: the concurrency cap holds it, or the load client is late
intake     sent, until the running step ended and the scheduler took the request
queue      until the planning of the step that first admitted it
prefill    running, before the first token; recomputation of a prompt after a preemption too
preempted  waiting again after a preemption: from the end of its last step to the planning of the step that admits it
decode     running, after the first token; recomputation too
handover   disaggregated: after the first token, until the decode instance planned a step with room for it
transfer   from then until its KV had arrived there; decode follows
server     sent, until the first token

TTFT from the time of sending is the same without `client`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from engines.ledger import Blocked, StepArray
from engines.request_table import MISSING
from reports import summary_schema
from reports.instances import ledger_slots
from reports.quantiles import quantile
from workloads.columns import IntColumn

TAIL = 0.99


@dataclass(frozen=True, eq=False)
class Breakdown:
    """int64 columns of ns over the completed requests that got a token, in the order of the record."""

    row: IntColumn  # which row of the record each is
    ttft_ns: dict[str, IntColumn]  # parts by name, in order of time; they add up to first - scheduled
    after_ns: dict[str, IntColumn]  # they add up to last - first
    blocked_ns: dict[str, IntColumn]  # parts of `queue` by reason; see blocked_ns()

    def e2el_ns(self) -> dict[str, IntColumn]:
        """They add up to last - scheduled."""
        names = dict.fromkeys((*self.ttft_ns, *self.after_ns))
        nothing = np.zeros(self.row.shape[0], np.int64)
        return {name: self.ttft_ns.get(name, nothing) + self.after_ns.get(name, nothing) for name in names}

    def summary(self) -> summary_schema.Breakdown | None:
        """Means and shares, of all and of those at or above P99. None without a request."""
        if not self.row.shape[0]:
            return None
        ttft, e2el = self.ttft_ns, self.e2el_ns()
        return summary_schema.Breakdown(
            requests=self.row.shape[0],
            ttft=_parts(ttft, total(ttft)),
            e2el=_parts(e2el, total(e2el)),
            blocked=_parts(self.blocked_ns, total(ttft)),
        )


def breakdown(record: RunRecord) -> Breakdown:
    """The parts of the time of every completed request.

    A request whose steps are not in the ledger (after a crash, or over HTTP) has the time between sending and first
    token in `server`. A part that is 0 for every request is left out.
    """
    first, last = record.column_ns("first"), record.column_ns("last")
    row = np.flatnonzero(record.where("status", "completed") & (first != MISSING))
    scheduled, sent, submitted = (record.column_ns(name)[row] for name in ("scheduled", "sent", "submitted"))
    first, last = first[row], last[row]
    admitted = record.first_steps()[row]
    seen = (admitted > 0) & (admitted <= record.steps.shape[0])
    submitted = np.where(seen, submitted, first)
    admitted_ns = first.copy()
    admitted_ns[seen] = record.steps["now_ns"][admitted[seen] - 1]
    waits = np.where(seen, admitted_ns - submitted, 0)
    early, late = (away[row] for away in _preempted_ns(record))
    early, late = np.where(seen, early, 0), np.where(seen, late, 0)
    ttft = {
        "client": sent - scheduled,
        "intake": np.where(seen, submitted - sent, 0),
        "queue": waits,
        "prefill": np.where(seen, first - admitted_ns - early, 0),
        "preempted": early,
        "server": np.where(seen, 0, first - sent),
    }
    asked, arrived = (record.column_ns(name)[row] for name in ("transfer_asked", "transfer_ended"))
    went = seen & (asked != MISSING) & (arrived != MISSING)
    asked, arrived = (
        np.minimum(asked, last),
        np.minimum(arrived, last),
    )  # an EOS alone gives no output: the transfer may end after `last`
    handover, transfer = np.where(went, asked - first, 0), np.where(went, arrived - asked, 0)
    after = {
        "handover": handover,
        "transfer": transfer,
        "decode": last - first - late - handover - transfer,
        "preempted": late,
    }
    return Breakdown(
        row=row,
        ttft_ns={name: column for name, column in ttft.items() if column.any()},
        after_ns={name: column for name, column in after.items() if column.any()},
        blocked_ns=blocked_ns(*_first_instance(record.steps, admitted[seen]), submitted[seen], seen),
    )


def _first_instance(steps: StepArray, admitted: IntColumn) -> tuple[StepArray, IntColumn]:
    """The ledger of the instance that first admits requests, and the steps in it that admitted them, from 1."""
    if not steps["instance"].any():
        return steps, admitted
    mine = steps["instance"] == 0
    return steps[mine], np.cumsum(mine)[admitted - 1]


def blocked_ns(
    steps: StepArray, admitted: IntColumn, submitted_ns: IntColumn, seen: NDArray[np.bool_]
) -> dict[str, IntColumn]:
    """How much of `queue` a request spent behind a blocked head of the waiting queue, by reason; ns columns over all
    requests, for the reasons that occur.

    The wait is cut at the planning of each step. The piece from one planning to the next counts for the reason in that
    step's ledger row: why the head of the queue, which is the request itself or one before it, was not admitted. The
    piece before the first planning after submission counts for that step's reason too, as a row describes the time
    since the step before it. Where the reason is NO, no request that could have been admitted waited (another prompt
    bucket had its turn), and the piece counts for none.

    submitted_ns, admitted: of the requests in `seen`, whose steps are in the ledger.
    """
    now_ns, reason = steps["now_ns"], steps["blocked"]
    at = admitted - 1
    planned = np.minimum(np.searchsorted(now_ns, submitted_ns), at)  # row of the first step planned after it came
    before_ns = now_ns[planned] - submitted_ns if at.shape[0] else submitted_ns
    found = {}
    for code in sorted(set(np.unique(reason).tolist()) - {Blocked.NO}):
        lasted_ns = np.where(reason[:-1] == code, np.diff(now_ns), 0)
        so_far_ns = np.concatenate([[0], np.cumsum(lasted_ns)])  # [row] up to the planning of that step
        column = np.zeros(seen.shape[0], np.int64)
        column[seen] = so_far_ns[at] - so_far_ns[planned] + np.where(reason[planned] == code, before_ns, 0)
        if column.any():
            found[Blocked(code).name.lower()] = column
    return found


def total(parts: dict[str, IntColumn]) -> IntColumn:
    """Their sum, request by request."""
    return sum(parts.values(), start=np.zeros(1, np.int64))


def _preempted_ns(record: RunRecord) -> tuple[IntColumn, IntColumn]:
    """ns[rows] that each request waited after preemptions, before and after its first token."""
    early, late = np.zeros(len(record), np.int64), np.zeros(len(record), np.int64)
    of_row, stints = record.stints()
    again = np.flatnonzero(of_row[1:] == of_row[:-1])  # stints that another one follows
    steps = record.steps.shape[0]
    decodes = np.zeros(len(stints), np.bool_)
    if record.steps["instance"].any():
        # By slots: the step number of a stint without a launched step may be that of a step of another instance.
        decodes = stints[:, 0] >= ledger_slots(record.steps[record.steps["instance"] == 0])
        again = again[~_handed_over(record, of_row, decodes, again)]
    ended, admitted = stints[again, 3], stints[again + 1, 1]
    known = admitted <= steps
    again, ended, admitted = again[known], ended[known], admitted[known]
    row = of_row[again]
    left_ns, back_ns = record.steps["end_ns"][ended - 1], record.steps["now_ns"][admitted - 1]
    # A request is preempted after its KV arrived, though no step may have run since then.
    left_ns = np.maximum(left_ns, np.where(decodes[again], record.column_ns("transfer_ended")[row], MISSING))
    first_ns, last_ns = record.column_ns("first")[row], record.column_ns("last")[row]
    np.add.at(early, row, np.maximum(np.minimum(back_ns, first_ns) - left_ns, 0))
    np.add.at(late, row, np.maximum(np.minimum(back_ns, last_ns) - np.maximum(left_ns, first_ns), 0))
    return early, late


def _handed_over(
    record: RunRecord, of_row: IntColumn, decodes: NDArray[np.bool_], again: IntColumn
) -> NDArray[np.bool_]:
    """bool[again]: the next stint is at the decode instance, after a KV transfer and not a preemption."""
    went = record.column_ns("transfer_asked")[of_row[again]] != MISSING
    return np.asarray(went & (decodes[again] != decodes[again + 1]))


def _parts(parts: dict[str, IntColumn], whole: IntColumn) -> dict[str, summary_schema.Part]:
    tail = whole >= quantile(np.sort(whole).astype(np.float64), TAIL)
    whole_ms, tail_ms = whole.mean() / 1e6, whole[tail].mean() / 1e6
    means = {name: (column.mean() / 1e6, column[tail].mean() / 1e6) for name, column in parts.items()}
    return {
        name: summary_schema.Part(
            mean_ms=float(mean_ms),
            share=float(mean_ms / whole_ms) if whole_ms else None,
            tail_mean_ms=float(in_tail_ms),
            tail_share=float(in_tail_ms / tail_ms) if tail_ms else None,
        )
        for name, (mean_ms, in_tail_ms) in means.items()
    }
