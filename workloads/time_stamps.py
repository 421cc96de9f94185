"""Time stamps of a log: their unit, and the steps of a coarse clock.

A unit is the one that was given, or that of the column's name; else it is inferred, and a line says so:

    epoch stamps        by magnitude: 1.7e9 is seconds, 1.7e12 ms, 1.7e15 µs, 1.7e18 ns
    from a start        by spread: the unit whose mean rate is nearest to one request per second, on a log scale
    dates               ISO 8601; without a zone it is UTC, so that no clock change shows up as a gap

A clock that ticks (Mooncake's every 3 s) makes bursts that the traffic never had: the requests of a tick are spread
over it, at uniform random times that are the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.columns import FloatColumn, IntColumn
from workloads.file_lines import refuse_line
from workloads.log_names import TimeUnit
from workloads.sampling import TICKS, bit_stream

US: dict[TimeUnit, float] = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_WORDS: dict[TimeUnit, str] = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_EPOCH_S = 3e8  # 1979: smaller numbers count from the start of a log
_FEWEST_TICKED = 10  # rows
_PER_TICK = 2  # requests on average, at least
_LONGEST_TICK_US = 10_000_000
_REGULAR = 0.95  # share of the steps between stamps that are whole numbers of ticks


@dataclass(frozen=True, eq=False)
class Stamps:
    """arrivals_us  int64[rows]; since 1970 if `dated`, else since any moment
    said         how they were read, if that had to be inferred
    """

    arrivals_us: IntColumn
    dated: bool
    said: tuple[str, ...] = ()


def read_stamps(
    path: Path,
    name: str,
    lines: Sequence[int],
    values: Sequence[Any],
    *,
    given: TimeUnit | None,
    known: TimeUnit | None,
    ordered: bool = True,
) -> Stamps:
    """The times of a column. Raises CbbenchError, which names the line.

    given    the unit that the user says; known: the one that the name says
    ordered  whether a time before that of the row above is refused
    """
    dates = isinstance(values[0], str) and _number(values[0]) is None
    try:
        numbers = np.array(list(map(_date_us if dates else float, values)))
    except (TypeError, ValueError, OverflowError):
        numbers = np.full(len(values), np.nan)
    if not np.isfinite(numbers).all() or not {bool, type(None)}.isdisjoint(map(type, values)):
        _refuse_first_bad(path, name, lines, values, dates)
    if ordered and (back := np.flatnonzero(np.diff(numbers) < 0)).size:
        refuse_line(path, lines[back[0] + 1], f"{name} decreases; sort the file by arrival")
    moments, dated, said = (numbers, True, ()) if dates else _in_us(name, numbers, given, known)
    if not np.abs(moments).max() < 2**53:
        row = int(np.argmax(np.abs(moments)))
        refuse_line(path, lines[row], f"{name} must be a time, got {values[row]!r}")
    arrivals_us = np.rint(moments).astype(np.int64)
    if ordered and (tick_us := tick_of(arrivals_us)):
        line = f"{name} has steps of {tick_us / 1e6:g} s, a clock's tick: the requests of a tick are spread over it"
        return Stamps(spread_over_ticks(arrivals_us, tick_us), dated, (*said, line))
    return Stamps(arrivals_us, dated, said)


def _in_us(
    name: str, numbers: FloatColumn, given: TimeUnit | None, known: TimeUnit | None
) -> tuple[FloatColumn, bool, tuple[str, ...]]:
    """(times in µs, whether they count from 1970, what was inferred)"""
    lowest = float(numbers.min())
    epoch = next((unit for unit in US if _EPOCH_S <= lowest * US[unit] / 1e6 < 100 * _EPOCH_S), None)
    why = ""
    if given is not None:
        unit = given
    elif epoch is not None and known in (None, "s", "ms"):  # a trace in ms starts below these numbers
        unit, why = epoch, "" if epoch == known else "which count from 1970"
    elif known is not None:
        unit = known
    else:
        unit, why = _by_spread(numbers), "by their spread"
    moments: FloatColumn = numbers * US[unit]
    line = f"{name} is read as {_WORDS[unit]}, {why}: {_rate(moments)}; `time_unit` would change it"
    return moments, epoch == unit, (line,) if why else ()


def _by_spread(numbers: FloatColumn) -> TimeUnit:
    """The unit with the most usual mean rate; of numbers with a fraction, seconds."""
    gap = float(numbers[-1] - numbers[0]) / max(len(numbers) - 1, 1)
    if gap <= 0 or (numbers % 1).any():
        return "s"
    return min(US, key=lambda unit: abs(math.log10(gap * US[unit] / 1e6)))


def _rate(moments_us: FloatColumn) -> str:
    span_s = float(moments_us.max() - moments_us.min()) / 1e6
    if not span_s:
        return "all at the same time"
    return f"{(len(moments_us) - 1) / span_s:.3g} requests/s over {span_s:,.4g} s"


def tick_of(arrivals_us: IntColumn) -> int | None:
    """The tick of the clock that the times were read from, in µs; None if requests are rarer. Times in order."""
    stamps = arrivals_us[_begins(arrivals_us)]
    if len(arrivals_us) < _FEWEST_TICKED or len(stamps) < 3 or len(arrivals_us) < _PER_TICK * len(stamps):
        return None
    steps = np.diff(stamps)
    tick_us = float(np.quantile(steps, 0.05))
    ticks = steps / tick_us
    regular = np.abs(ticks - np.rint(ticks)) <= 0.02 * np.rint(ticks)
    if not 1_000 <= tick_us <= _LONGEST_TICK_US or regular.mean() < _REGULAR:
        return None
    return round(float(np.median(steps[np.rint(ticks) == 1])))


def spread_over_ticks(arrivals_us: IntColumn, tick_us: int) -> IntColumn:
    """Each time moved later by less than a tick, and none past the next stamp; in order."""
    begins = _begins(arrivals_us)
    stamps, which = arrivals_us[begins], np.cumsum(begins) - 1
    room = np.minimum(np.append(np.diff(stamps), tick_us), tick_us)
    parts = (bit_stream(0, TICKS).random_raw(len(arrivals_us)) >> np.uint64(32)).astype(np.int64)
    moved = arrivals_us + ((parts * room[which]) >> 32)
    return np.sort(moved)


def seconds_of(stamp: Any) -> float:
    """Seconds since 1970 of a date or of a number of seconds. Raises ValueError or TypeError."""
    number = _number(stamp)
    return _date_us(stamp) / 1e6 if number is None else number


def _begins(arrivals_us: IntColumn) -> NDArray[np.bool_]:
    """Whether each time differs from that before it; times in order."""
    return np.append(True, np.diff(arrivals_us) != 0)


def _date_us(text: Any) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _refuse_first_bad(path: Path, name: str, lines: Sequence[int], values: Sequence[Any], dates: bool) -> None:
    for line, value in zip(lines, values, strict=True):
        try:
            moment = _date_us(value) if dates else _number(value)
        except (TypeError, ValueError, OverflowError):
            moment = None
        if moment is None or not math.isfinite(moment):
            refuse_line(path, line, f"{name} must be a time, got {'nothing' if value in (None, '') else repr(value)}")
