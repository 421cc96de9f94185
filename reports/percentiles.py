"""The percentiles that a reader asks to see. A summary holds five; any other is worked out of the requests again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reports.metrics import LATENCIES, RequestTimes
from reports.quantiles import Ordered, quantile
from reports.summary_schema import Summary

SHOWN = (50.0, 90.0, 99.0)  # unless others are asked for
STORED = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99", 99.9: "p999"}  # in a summary, by its names
MOST = 8  # in one table


@dataclass(frozen=True)
class Percentiles:
    """In ms, by the names of LATENCIES: a value for each that was asked for. None: nothing was measured, or only a
    summary is there, which has others."""

    asked: Sequence[float]
    values: Mapping[str, Sequence[float | None]]

    @property
    def names(self) -> list[str]:
        """p50, p99.9; in full, or 99.9999999 would be p100"""
        return [f"p{np.format_float_positional(one, trim='-')}" for one in self.asked]


def parse_percentiles(text: str) -> tuple[float, ...]:
    """50,90,99.9, ascending. ValueError says what is wrong."""
    try:
        asked = sorted({float(word) for word in text.split(",")})
    except ValueError:
        raise ValueError(f"want numbers between 0 and 100, as in 50,90,99,99.9, got {text!r}") from None
    if not all(0 < one < 100 for one in asked):
        raise ValueError(
            f"want numbers between 0 and 100, as in 50,90,99,99.9, got {text!r} (the table has the maximum)"
        )
    if len(asked) > MOST:
        raise ValueError(f"a table has room for {MOST} of them, got {len(asked)}")
    return tuple(asked)


def percentiles(summary: Summary, times: RequestTimes | None = None, asked: Sequence[float] = SHOWN) -> Percentiles:
    """`times`: of the same run, or None where only a summary is there."""
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
