"""Which rows of a log are replayed: those of a window of time, and of these some in a row or some here and there."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.sampling import ROWS, bit_stream
from workloads.workload_files import WorkloadFile

DAY_S = 86_400
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d(?:\.\d+)?))?")
_AFTER = re.compile(r"(\d+(?:\.\d+)?)([smh])")
_UNITS = {"s": 1, "m": 60, "h": 3600}
WINDOW_EXAMPLE = "10:00-10:30, the time of day, or 5m-20m, since the log's first request"


@dataclass(frozen=True, slots=True)
class Selection:
    """window  as in WINDOW_EXAMPLE; its end is not in it
    sample  as many rows, one after the other, from one that the seed draws
    thin    as many rows of all, drawn by the seed; each keeps its time
    """

    window: str | None = None
    sample: int | None = None
    thin: int | None = None

    def __bool__(self) -> bool:
        return self != Selection()


def selected(file: WorkloadFile, what: Selection, seed: int) -> WorkloadFile:
    """These rows of the file, which says what was left out. Raises CbbenchError."""
    if what.sample is not None and what.thin is not None:
        raise CbbenchError("thin", "and `sample` are two ways to take rows; give one of them")
    rows, whole = np.arange(len(file.lengths)), len(file.lengths)
    if what.window is not None:
        rows = _in_window(file, what.window)
    for name, count in (("sample", what.sample), ("thin", what.thin)):
        if count is not None and count > len(rows):
            raise CbbenchError(name, f"{count:,} rows of {len(rows):,}; want at most as many")
    said = [] if what.window is None else [f"`window` {what.window} has {len(rows):,} of {whole:,} rows"]
    if what.sample is not None:
        start = int(bit_stream(seed, ROWS).random_raw()) % (len(rows) - what.sample + 1)
        rows = rows[start : start + what.sample]
        said.append(f"`sample` takes {what.sample:,} rows in a row, from row {int(rows[0]) + 1:,} on")
    if what.thin is not None:
        share = what.thin / len(rows)
        drawn = np.argsort(bit_stream(seed, ROWS).random_raw(len(rows)), kind="stable")[: what.thin]
        rows = rows[np.sort(drawn)]
        said.append(f"`thin` takes {what.thin:,} rows, at {share:.3g} of the log's rate")
    return file.rows(rows).saying(*said)


def _in_window(file: WorkloadFile, text: str) -> NDArray[np.intp]:
    stamps = file.stamps
    if stamps is None:
        raise CbbenchError("window", "the file has no time stamps")
    (first_s, clock), (last_s, other) = _moments(text)
    if clock != other or first_s >= last_s:
        raise CbbenchError("window", f"cannot read '{text}'; want two times in order, as in {WINDOW_EXAMPLE}")
    if not clock:
        since = (stamps.arrivals_us - stamps.arrivals_us[0]) / 1e6
        rows = np.flatnonzero((since >= first_s) & (since < last_s))
        where = f"the log lasts {since[-1]:,.4g} s"
    else:
        if not stamps.dated:
            raise CbbenchError("window", "the log's stamps count from its start, so it has no time of day; want 5m-20m")
        rows, where = _of_day(stamps.arrivals_us, first_s, last_s)
    if not len(rows):
        raise CbbenchError("window", f"{text}: no row is in it; {where}")
    return rows


def _of_day(arrivals_us: IntColumn, first_s: float, last_s: float) -> tuple[NDArray[np.intp], str]:
    """Rows of the first day that has any in the window, by UTC; and where the log is, for a message."""
    of_day = (arrivals_us % (DAY_S * 1_000_000)) / 1e6
    rows = np.flatnonzero((of_day >= first_s) & (of_day < last_s))
    if len(rows):
        days = arrivals_us[rows] // (DAY_S * 1_000_000)
        rows = rows[days == days[0]]
    begin, end = (f"{int(at) // 3600:02}:{int(at) % 3600 // 60:02}" for at in (of_day[0], of_day[-1]))
    return rows, f"the log goes from {begin} to {end} UTC"


def _moments(text: str) -> list[tuple[float, bool]]:
    """(seconds, whether they are a time of day) of both ends"""
    parts = [part.strip() for part in text.split("-")]
    found: list[tuple[float, bool]] = []
    for part in parts:
        if (clock := _CLOCK.fullmatch(part)) is not None:
            hours, minutes, seconds = clock.groups()
            found.append((int(hours) * 3600 + int(minutes) * 60 + float(seconds or 0), True))
        elif (after := _AFTER.fullmatch(part)) is not None:
            found.append((float(after[1]) * _UNITS[after[2]], False))
    if len(parts) != 2 or len(found) != 2:
        raise CbbenchError("window", f"cannot read '{text}'; want two times, as in {WINDOW_EXAMPLE}")
    return found
