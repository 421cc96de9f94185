"""A file of requests, row by row: CSV with a header or JSON lines, gzip or not; and the columns any may have."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from workloads.columns import IntColumn
from workloads.errors import WorkloadError
from workloads.length_distributions import MAX_TOKENS

SUFFIXES = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz")
Row = tuple[int, dict[str, Any]]  # its line, from 1, and what is in it
_ARRIVAL: dict[str, Callable[[Any], float]] = {  # column -> its value in µs
    "arrival_s": lambda value: float(value) * 1e6,
    "timestamp": lambda value: float(value) * 1e3,
    "TIMESTAMP": lambda value: _utc(value).timestamp() * 1e6,
}


def rows_of(path: Path, needed: Sequence[Sequence[str]]) -> Iterator[Row]:
    """Raises WorkloadError, with the line number where a row is bad.

    needed: the names, of which the first is ours, of each column that a CSV file must have
    """
    if not path.is_file():
        raise WorkloadError(f"{path}: {'no regular file' if path.exists() else 'no such file'}")
    if not path.name.endswith(SUFFIXES):
        raise WorkloadError(f"{path}: a workload file ends in {', '.join(SUFFIXES)}")
    try:
        with _open(path) as file:
            yield from _json_rows(path, file) if is_json(path) else _csv_rows(path, file, needed)
    except UnicodeDecodeError as error:
        refuse(path, _first_line_not_utf8(path), f"not readable as text, which must be UTF-8 ({error.reason})")
    except (gzip.BadGzipFile, EOFError) as error:
        raise WorkloadError(f"{path}: not readable as text: {error}") from None


def is_json(path: Path) -> bool:
    return ".csv" not in path.suffixes[-2:]


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _first_line_not_utf8(path: Path) -> int:
    """What the decoder says is counted from where it began to read ahead."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1  # the whole of it: the file has changed meanwhile


def _csv_rows(path: Path, file: IO[str], needed: Sequence[Sequence[str]]) -> Iterator[Row]:
    reader = csv.DictReader(file)
    if repeated := [name for name in reader.fieldnames or () if (reader.fieldnames or []).count(name) > 1]:
        raise WorkloadError(f"{path}: the column {repeated[0]} is there twice")
    for name, *others in needed:
        if not {name, *others} & set(reader.fieldnames or ()):
            header = ",".join(reader.fieldnames or ()) or "nothing"
            raise WorkloadError(
                f"{path}: no column {name} (also understood: {', '.join(others)}); the first line must name the "
                f"columns, and has {header[:80]}"
            )
    try:
        for row in reader:
            if None in row:  # where DictReader puts what has no column
                refuse(path, reader.line_num, f"more values than columns: {row[None]!r}")
            yield reader.line_num, row
    except csv.Error as error:
        refuse(path, reader.line_num, str(error))


def _json_rows(path: Path, file: IO[str]) -> Iterator[Row]:
    for line_number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            refuse(path, line_number, f"not JSON ({error.msg} at column {error.colno})")
        except ValueError:  # Python's bound on digits
            refuse(path, line_number, "not JSON that can be read: a number of thousands of digits")
        except RecursionError:
            refuse(path, line_number, "not JSON that can be read: nested too deeply")
        if not isinstance(row, dict):
            refuse(path, line_number, 'want an object like {"prompt_tokens": 12, "output_tokens": 34}')
        yield line_number, row


class SharedColumns:
    """Tenant, priority and arrival of the rows, which no file must have."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tenants: dict[str, int] = {}
        self._arrival_column: str | None = None  # what the first row has; "" for none
        self._tenant: list[int] = []
        self._priority: list[int] = []
        self._arrivals: list[float] = []

    def take(self, line: int, row: dict[str, Any]) -> None:
        if self._arrival_column is None:
            self._arrival_column = next((name for name in _ARRIVAL if name in row), "")
        given = row.get("priority") not in (None, "")
        self._priority.append(count(self._path, line, row, "priority", 0) if given else 0)
        self._tenant.append(self._tenants.setdefault(str(row.get("tenant") or "default"), len(self._tenants)))
        if name := self._arrival_column:
            self._arrivals.append(_arrival(self._path, line, row, name))
            if len(self._arrivals) > 1 and self._arrivals[-1] < self._arrivals[-2]:
                refuse(self._path, line, f"{name} goes back in time; sort the file by arrival")

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(self._tenants)

    @property
    def tenant(self) -> IntColumn:
        return column(self._tenant)

    @property
    def priority(self) -> IntColumn:
        return column(self._priority)

    @property
    def arrivals_us(self) -> IntColumn | None:
        return np.rint(np.array(self._arrivals)).astype(np.int64) if self._arrival_column else None


def column(values: Sequence[int]) -> IntColumn:
    return np.array(values, dtype=np.int64)


def count(path: Path, line: int, row: dict[str, Any], name: str, least: int) -> int:
    """A whole number of at least `least` and at most MAX_TOKENS."""
    value = row.get(name)
    try:
        if isinstance(value, str) and "_" in value:  # which int() takes as Python would
            raise ValueError(value)
        number = int(value)  # type: ignore[arg-type]  # what int() refuses is reported below
        whole = number == value or isinstance(value, str)
    except (TypeError, ValueError, OverflowError):
        number, whole = 0, False
    if not whole or isinstance(value, bool):
        refuse(path, line, f"{name} must be a whole number, got {'nothing' if value in (None, '') else repr(value)}")
    if not least <= number <= MAX_TOKENS:
        refuse(path, line, f"{name} is {number}, must be from {least} to {MAX_TOKENS:,}")
    return number


def _arrival(path: Path, line: int, row: dict[str, Any], name: str) -> float:
    """µs since some fixed moment."""
    value = row.get(name)
    try:
        moment = _ARRIVAL[name](value)
    except (TypeError, ValueError):
        moment = float("nan")
    if not abs(moment) < 2**53:
        refuse(path, line, f"{name} must be a time, got {'nothing' if value in (None, '') else repr(value)}")
    return moment


def _utc(text: str) -> datetime:
    """A date and time; one without a zone is taken as UTC, so that no clock change makes a gap."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def refuse(path: Path, line: int, problem: str) -> NoReturn:
    raise WorkloadError(f"{path}, line {line}: {problem}")
