"""Reading request traces: CSV or JSON lines, one request per row, gzip or not.

    what            our column      Azure            Mooncake           Vidur, Etalon
    prompt          prompt_tokens   ContextTokens    input_length       num_prefill_tokens
    output          output_tokens   GeneratedTokens  output_length      num_decode_tokens
    arrival         arrival_s (s)   TIMESTAMP        timestamp (ms)
    also            tenant (a name), priority (0 is the most urgent)

Other columns are ignored. Arrivals must not go back in time; only the gaps between them count, so they may begin at any
moment, before zero too.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from workloads.arrivals import TraceGaps
from workloads.errors import WorkloadError
from workloads.lengths import MAX_TOKENS
from workloads.pairs import Listed
from workloads.plan import IntColumn

SUFFIXES = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz")
_PROMPT = ("prompt_tokens", "ContextTokens", "input_length", "num_prefill_tokens")
_OUTPUT = ("output_tokens", "GeneratedTokens", "output_length", "num_decode_tokens")
_ARRIVAL: dict[str, Callable[[Any], float]] = {  # column -> its value in µs
    "arrival_s": lambda value: float(value) * 1e6,
    "timestamp": lambda value: float(value) * 1e3,
    "TIMESTAMP": lambda value: _utc(value).timestamp() * 1e6,
}


@dataclass(frozen=True, eq=False)
class Trace:
    """The rows of a file. arrivals_us: int64[rows], None where the file has no arrival column."""

    listed: Listed
    arrivals_us: IntColumn | None

    def gaps(self) -> TraceGaps | None:
        """The gaps of the trace; after the last row comes one mean gap, so that the trace can start over."""
        if self.arrivals_us is None:
            return None
        span_us = int(self.arrivals_us[-1] - self.arrivals_us[0])
        intervals = max(len(self.arrivals_us) - 1, 1)
        gaps = np.append(np.diff(self.arrivals_us), span_us // intervals)
        return TraceGaps(gaps, intervals * 1e6 / span_us if span_us else 0.0, random_start=False)


def read_trace(path: Path) -> Trace:
    """All rows of the file. Raises WorkloadError, with the line number where a row is bad."""
    if not path.is_file():
        raise WorkloadError(f"{path}: no such file")
    if not path.name.endswith(SUFFIXES):
        raise WorkloadError(f"{path}: a workload file ends in {', '.join(SUFFIXES)}")
    read = _csv_rows if ".csv" in path.suffixes[-2:] else _json_rows
    try:
        with _open(path) as file:
            return _collect(path, read(path, file))
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise WorkloadError(f"{path}: not readable as text: {error}") from None


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _csv_rows(path: Path, file: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(file)
    if repeated := [name for name in reader.fieldnames or () if (reader.fieldnames or []).count(name) > 1]:
        raise WorkloadError(f"{path}: the column {repeated[0]} is there twice")
    for name, accepted in (("prompt_tokens", _PROMPT), ("output_tokens", _OUTPUT)):
        if not set(accepted) & set(reader.fieldnames or ()):
            header = ",".join(reader.fieldnames or ()) or "nothing"
            raise WorkloadError(
                f"{path}: no column {name} (also understood: {', '.join(accepted[1:])}); the first line must name the "
                f"columns, and has {header[:80]}"
            )
    try:
        for row in reader:
            if None in row:  # where DictReader puts what has no column
                _refuse(path, reader.line_num, f"more values than columns: {row[None]!r}")
            yield reader.line_num, row
    except csv.Error as error:
        _refuse(path, reader.line_num, str(error))


def _json_rows(path: Path, file: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line_number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            _refuse(path, line_number, f"not JSON ({error.msg} at column {error.colno})")
        if not isinstance(row, dict):
            _refuse(path, line_number, 'want an object like {"prompt_tokens": 12, "output_tokens": 34}')
        yield line_number, row


def _collect(path: Path, rows: Iterator[tuple[int, dict[str, Any]]]) -> Trace:
    prompts: list[int] = []
    outputs: list[int] = []
    tenant: list[int] = []
    priority: list[int] = []
    arrivals: list[float] = []
    tenants: dict[str, int] = {}
    arrival_column = ""
    for line, row in rows:
        if not prompts:
            prompt_column = next((name for name in _PROMPT if name in row), _PROMPT[0])
            output_column = next((name for name in _OUTPUT if name in row), _OUTPUT[0])
            arrival_column = next((name for name in _ARRIVAL if name in row), "")
        prompts.append(_count(path, line, row, prompt_column, 1))
        outputs.append(_count(path, line, row, output_column, 1))
        priority.append(_count(path, line, row, "priority", 0) if row.get("priority") not in (None, "") else 0)
        tenant.append(tenants.setdefault(str(row.get("tenant") or "default"), len(tenants)))
        if arrival_column:
            arrivals.append(_arrival(path, line, row, arrival_column))
            if len(arrivals) > 1 and arrivals[-1] < arrivals[-2]:
                _refuse(path, line, f"{arrival_column} goes back in time; sort the file by arrival")
    if not prompts:
        raise WorkloadError(f"{path}: no requests in it")
    columns = [np.array(values, dtype=np.int64) for values in (prompts, outputs, tenant, priority)]
    listed = Listed(columns[0], columns[1], columns[2], columns[3], tenants=tuple(tenants))
    return Trace(listed, np.rint(np.array(arrivals)).astype(np.int64) if arrival_column else None)


def _count(path: Path, line: int, row: dict[str, Any], column: str, least: int) -> int:
    value = row.get(column)
    try:
        if isinstance(value, str) and "_" in value:  # which int() takes as Python would
            raise ValueError(value)
        number = int(value)  # type: ignore[arg-type]  # what int() refuses is reported below
        whole = number == value or isinstance(value, str)
    except (TypeError, ValueError, OverflowError):
        number, whole = 0, False
    if not whole or isinstance(value, bool):
        _refuse(path, line, f"{column} must be a whole number, got {'nothing' if value in (None, '') else repr(value)}")
    if not least <= number <= MAX_TOKENS:
        _refuse(path, line, f"{column} is {number}, must be from {least} to {MAX_TOKENS:,}")
    return number


def _arrival(path: Path, line: int, row: dict[str, Any], column: str) -> float:
    """µs since some fixed moment."""
    value = row.get(column)
    try:
        moment = _ARRIVAL[column](value)
    except (TypeError, ValueError):
        moment = float("nan")
    if not abs(moment) < 2**53:
        _refuse(path, line, f"{column} must be a time, got {'nothing' if value in (None, '') else repr(value)}")
    return moment


def _utc(text: str) -> datetime:
    """A date and time; one without a zone is taken as UTC, so that no clock change makes a gap."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _refuse(path: Path, line: int, problem: str) -> NoReturn:
    raise WorkloadError(f"{path}, line {line}: {problem}")
