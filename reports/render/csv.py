"""CSV for a spreadsheet: the requests of runs, or the points of a sweep. What was not measured is an empty cell."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from reports.metrics import PER_REQUEST
from reports.reported_run import ReportedRun
from reports.sweep_schema import Point, SweepFile

REQUEST_FIELDS = (
    "i", "tenant", "priority", "status", "finish_reason", "error", "prompt_tokens", "output_tokens", "preemptions",
)  # fmt: skip
TIMES = ("scheduled", "sent", "first", "last", "end")
INTERVALS = ("p99_ttft_ci_ms", "p99_tpot_ci_ms", "p99_e2el_ci_ms")


def requests_csv(runs: Sequence[ReportedRun]) -> str:
    """A line for each request that ended, in order of sending; of two runs with the column `run`."""
    named = ("run",) if len(runs) > 1 else ()
    header = (*named, *REQUEST_FIELDS, *(f"{name}_s" for name in TIMES), *PER_REQUEST)
    return _csv(header, (line for one in runs for line in _requests(one, bool(named))))


def _requests(one: ReportedRun, named: bool) -> Iterable[list[Any]]:
    latencies = [one.times.latency(name).tolist() for name in PER_REQUEST]
    for at, index in enumerate(one.times.row.tolist()):
        row = one.record.rows[index]
        times = [None if (time := getattr(row, name)) is None else time / 1e9 for name in TIMES]
        measured = [None if math.isnan(column[at]) else column[at] for column in latencies]
        yield [*([one.label] if named else []), *(getattr(row, name) for name in REQUEST_FIELDS), *times, *measured]


def points_csv(sweep: SweepFile) -> str:
    """A line for each run of the sweep."""
    apart = ("values", "signals", "instances", "sla", "validity", *INTERVALS)
    fields = [one for one in Point.__struct_fields__ if one not in apart]
    signals = [one for one in type(Point(values=(), folder="").signals).__struct_fields__ if one != "blocked"]
    ends = [f"{name}_{end}" for name in INTERVALS for end in ("low", "high")]
    header = [*sweep.params, *fields, *ends, *signals, "validity", *sweep.sla]
    return _csv(header, (_point(one, sweep, fields, signals) for one in sweep.points))


def _point(one: Point, sweep: SweepFile, fields: Sequence[str], signals: Sequence[str]) -> list[Any]:
    verdicts = {result.expr: result.verdict for result in one.sla}
    intervals = [end for name in INTERVALS for end in (getattr(one, name) or (None, None))]
    return [
        *msgspec.to_builtins(one.values),
        *(getattr(one, name) for name in fields),
        *intervals,
        *(getattr(one.signals, name) for name in signals),
        one.validity.verdict if one.validity else None,
        *(verdicts.get(expr) for expr in sweep.sla),
    ]


def _csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_harmless(cell) for cell in line] for line in lines)
    return out.getvalue()


def _harmless(cell: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe: error messages come from servers."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
