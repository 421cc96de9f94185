"""Reads a workload file line by line: CSV with a header or JSON lines, gzip or not."""

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
from workloads.errors import CbbenchError
from workloads.length_distributions import MAX_TOKENS

SUFFIXES = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz")
Row = tuple[int, dict[str, Any]]  # (line number from 1, values by name)
_ARRIVAL: dict[str, Callable[[Any], float]] = {  # column -> its value in µs
    "arrival_s": lambda value: float(value) * 1e6,
    "timestamp": lambda value: float(value) * 1e3,
    "TIMESTAMP": lambda value: _utc(value).timestamp() * 1e6,
}


def rows_of(path: Path, needed: Sequence[Sequence[str]]) -> Iterator[Row]:
    """The rows of the file. Raises CbbenchError, with the line number if a row is wrong.

    needed: for each column that a CSV file must have, its accepted names, ours first
    """
    if not path.is_file():
        _refuse_file(path, "not a regular file" if path.exists() else "no such file")
    if not path.name.endswith(SUFFIXES):
        _refuse_file(path, f"a workload file ends in {', '.join(SUFFIXES)}")
    try:
        with _open(path) as file:
            yield from _json_rows(path, file) if is_json(path) else _csv_rows(path, file, needed)
    except UnicodeDecodeError as error:
        refuse_line(path, _first_line_not_utf8(path), f"not readable as text, which must be UTF-8 ({error.reason})")
    except (gzip.BadGzipFile, EOFError) as error:
        _refuse_file(path, f"not readable as text: {error}")


def is_json(path: Path) -> bool:
    return ".csv" not in path.suffixes[-2:]


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _first_line_not_utf8(path: Path) -> int:
    """The decoder's own position counts from the start of its read-ahead buffer, so the file is read again."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1  # the file has changed since


def _csv_rows(path: Path, file: IO[str], needed: Sequence[Sequence[str]]) -> Iterator[Row]:
    reader = csv.DictReader(file)
    if repeated := [name for name in reader.fieldnames or () if (reader.fieldnames or []).count(name) > 1]:
        _refuse_file(path, f"duplicate column {repeated[0]}")
    for name, *others in needed:
        if not {name, *others} & set(reader.fieldnames or ()):
            header = ",".join(reader.fieldnames or ()) or "nothing"
            _refuse_file(
                path,
                f"no column {name} (other accepted names: {', '.join(others)}); the first line must name the columns, "
                f"and has {header[:80]}",
            )
    try:
        for row in reader:
            if None in row:  # the key of values without a column
                refuse_line(path, reader.line_num, f"more values than columns: {row[None]!r}")
            yield reader.line_num, row
    except csv.Error as error:
        refuse_line(path, reader.line_num, str(error))


def _json_rows(path: Path, file: IO[str]) -> Iterator[Row]:
    for line_number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            refuse_line(path, line_number, f"not JSON ({error.msg} at column {error.colno})")
        except ValueError:  # Python limits the digits of a number
            refuse_line(path, line_number, "a number with thousands of digits")
        except RecursionError:
            refuse_line(path, line_number, "JSON nested too deeply")
        if not isinstance(row, dict):
            refuse_line(path, line_number, 'want an object like {"prompt_tokens": 12, "output_tokens": 34}')
        yield line_number, row


class SharedColumns:
    """The optional columns of a file: tenant, priority and arrival of its rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tenants: dict[str, int] = {}
        self._arrival_column: str | None = None  # of the first row; "" if it has none
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
                refuse_line(self._path, line, f"{name} decreases; sort the file by arrival")

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
        if isinstance(value, str) and "_" in value:  # int() accepts 1_000
            raise ValueError(value)
        number = int(value)  # type: ignore[arg-type]  # a TypeError is reported below
        whole = number == value or isinstance(value, str)
    except (TypeError, ValueError, OverflowError):
        number, whole = 0, False
    if not whole or isinstance(value, bool):
        refuse_line(
            path, line, f"{name} must be a whole number, got {'nothing' if value in (None, '') else repr(value)}"
        )
    if not least <= number <= MAX_TOKENS:
        refuse_line(path, line, f"{name} is {number}, must be from {least} to {MAX_TOKENS:,}")
    return number


def _arrival(path: Path, line: int, row: dict[str, Any], name: str) -> float:
    """µs since some fixed moment."""
    value = row.get(name)
    try:
        moment = _ARRIVAL[name](value)
    except (TypeError, ValueError):
        moment = float("nan")
    if not abs(moment) < 2**53:
        refuse_line(path, line, f"{name} must be a time, got {'nothing' if value in (None, '') else repr(value)}")
    return moment


def _utc(text: str) -> datetime:
    """A date and time. Without a zone it is UTC, so that no clock change shows up as a gap."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def refuse_line(path: Path, line: int, problem: str) -> NoReturn:
    raise CbbenchError("workload", f"{path}, line {line}: {problem}")


def _refuse_file(path: Path, problem: str) -> NoReturn:
    raise CbbenchError("workload", f"{path}: {problem}") from None
