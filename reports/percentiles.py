"""The percentiles that a table shows. A summary holds five; any other is computed from the requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reports.metrics import LATENCIES, RequestTimes
from reports.quantiles import Ordered, quantile
from reports.summary_schema import Summary
from workloads.errors import CbbenchError

SHOWN = (50.0, 90.0, 99.0)  # unless others are asked for
STORED = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99", 99.9: "p999"}  # in a summary, by its names
MOST = 8  # in one table
FORM = "must be numbers between 0 and 100, as in 50,90,99,99.9"


@dataclass(frozen=True)
class Percentiles:
    """ms, by the names of LATENCIES: one value for each percentile in `asked`. None: nothing was measured, or only a
    summary is there, which has other percentiles."""

    asked: Sequence[float]
    values: Mapping[str, Sequence[float | None]]

    @property
    def names(self) -> list[str]:
        """p50, p99.9; in full, or 99.9999999 would be p100"""
        return [f"p{np.format_float_positional(one, trim='-')}" for one in self.asked]


def parse_percentiles(text: str) -> tuple[float, ...]:
    """50,90,99.9 as numbers, ascending. CbbenchError on `percentiles` says what is wrong."""
    try:
        asked = sorted({float(word) for word in text.split(",")})
    except ValueError:
        raise CbbenchError("percentiles", f"{FORM}, got {text!r}") from None
    if not all(0 < one < 100 for one in asked):
        raise CbbenchError("percentiles", f"{FORM}, got {text!r} (the table has the maximum)")
    if len(asked) > MOST:
        raise CbbenchError("percentiles", f"at most {MOST} fit in a table, got {len(asked)}")
    return tuple(asked)


def percentiles(summary: Summary, times: RequestTimes | None = None, asked: Sequence[float] = SHOWN) -> Percentiles:
    """`asked` percentiles of one run. times: of that run, or None where only a summary is there."""
    if times is None or all(one in STORED for one in asked):
        found = {name: getattr(summary.latency, name) for name in LATENCIES}
        return Percentiles(
            asked, {name: [getattr(one, STORED.get(p, ""), None) for p in asked] for name, one in found.items()}
        )
    return Percentiles(asked, {name: _of(_ordered(times, name), asked) for name in LATENCIES})


def _ordered(times: RequestTimes, name: str) -> Ordered:
    if name == "itl_ms":
        return times.gaps_ms
    values = times.latency(name)
    return np.sort(values[~np.isnan(values)])


def _of(ordered: Ordered, asked: Sequence[float]) -> list[float | None]:
    return [quantile(ordered, one / 100) if len(ordered) else None for one in asked]
