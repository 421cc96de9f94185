"""The requests with the largest TTFT or E2EL: the parts of their time, and the load in the steps meanwhile.

Derived from the raw files on demand; run.json does not have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engines.base import RunRecord
from engines.ledger import StepArray
from engines.request_table import RequestRow
from reports.breakdown import Breakdown, total

SHARE = 0.01  # of the completed requests
MOST = 50


@dataclass(frozen=True)
class Neighbours:
    """The load of the engine while a request was in it: until its first token for TTFT, until its last for E2EL."""

    step: int  # the longest step of that time, from 1
    step_ms: float
    prompts: tuple[int, ...]  # prompt tokens of the other requests running in that step, the longest first
    prefill_tokens: int  # the most prompt tokens (or recomputed tokens) of one step of that time
    preemptions: int  # in that time, of any request


@dataclass(frozen=True)
class SlowRequest:
    row: RequestRow
    total_ns: int  # TTFT or E2EL from the scheduled time
    parts_ns: dict[str, int]  # they add up to it; see breakdown.py
    blocked_ns: dict[str, int]  # parts of the queue
    neighbours: Neighbours | None  # None where steps are not known


def slowest_requests(
    record: RunRecord, parts: Breakdown, metric: Literal["ttft", "e2el"] = "ttft", most: int = MOST
) -> list[SlowRequest]:
    """The slowest 1 % of the completed requests (at least one, at most `most`), the slowest first."""
    columns = parts.ttft_ns if metric == "ttft" else parts.e2el_ns()
    whole = total(columns)
    count = min(most, math.ceil(SHARE * whole.shape[0]))
    chosen = np.argsort(-whole, kind="stable")[:count]
    steps_of = _Steps(record)
    return [
        SlowRequest(
            row=record.rows[parts.row[at]],
            total_ns=int(whole[at]),
            parts_ns={name: int(column[at]) for name, column in columns.items()},
            blocked_ns={name: int(column[at]) for name, column in parts.blocked_ns.items()},
            neighbours=steps_of.neighbours(int(parts.row[at]), "first" if metric == "ttft" else "last"),
        )
        for at in chosen.tolist()
    ]


class _Steps:
    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._disaggregated = bool(record.steps["instance"].any())
        self._row, self._stints = record.stints()
        self._prompts = record.column("prompt_tokens")[self._row]

    def neighbours(self, index: int, until: Literal["first", "last"]) -> Neighbours | None:
        """Of row `index` of the record, from its submission to its first or last token."""
        row = self._record.rows[index]
        begin_ns, end_ns = row.submitted, row.first if until == "first" else row.last
        if not row.stints or begin_ns is None or end_ns is None:
            return None
        during = self._during(begin_ns, end_ns, until)
        if not during.shape[0]:
            return None
        lasted_ns = during["end_ns"] - during["start_ns"]
        longest = int(np.argmax(lasted_ns))
        step = int(during["step"][longest])
        there = (self._stints[:, 1] <= step) & (step <= self._stints[:, 3]) & (self._row != index)
        computed = during["useful_tokens"] + during["recomputed_tokens"] + during["discarded_tokens"]
        return Neighbours(
            step=step,
            step_ms=int(lasted_ns[longest]) / 1e6,
            prompts=tuple(np.sort(self._prompts[there])[::-1].tolist()),
            prefill_tokens=int((computed - during["decode_rows"]).max()),
            preemptions=int(during["preempted"].sum()),
        )

    def _during(self, begin_ns: int, end_ns: int, until: Literal["first", "last"]) -> StepArray:
        """Steps that overlap that time; up to the first token those of the instance that computes prompts."""
        steps = self._record.steps
        if self._disaggregated:  # steps of the two instances overlap
            theirs = steps["instance"] == 0 if until == "first" else np.ones(steps.shape[0], np.bool_)
            return steps[theirs & (steps["end_ns"] > begin_ns) & (steps["start_ns"] < end_ns)]
        low, high = np.searchsorted(steps["end_ns"], begin_ns, side="right"), np.searchsorted(steps["start_ns"], end_ns)
        return steps[low:high]
