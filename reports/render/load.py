"""What was asked of an engine, beside what came of it."""

from __future__ import annotations

from reports.render.words import number
from reports.schema import RunFile
from reports.summary_schema import Requests


def rates(run: RunFile) -> str:
    """12 requests/s asked, 7.6 done · 7.6 requests/s where nothing is scheduled"""
    done = number(run.summary.throughput.request_per_s if run.summary is not None else None)
    asked, mean = run.workload.asked_per_s, " on average" if run.workload.pacing.rate_schedule else ""
    return f"{done} requests/s" if asked is None else f"{number(asked)} requests/s asked{mean}, {done} done"


def how_many(counts: Requests) -> str:
    """64 of 64 requests completed; where some were never sent, 24 of 64 requests sent: 24 completed"""
    if counts.sent < counts.planned:
        return f"{counts.sent:,} of {counts.planned:,} requests sent: {counts.completed:,} completed"
    return f"{counts.completed:,} of {counts.planned:,} requests completed"
