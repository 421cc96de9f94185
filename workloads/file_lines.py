"""Opens a workload file and reads its rows: CSV with a header, JSON lines, a JSON array, or a server's text log; gzip,
zstd or neither."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from workloads.errors import CbbenchError

KINDS = (".csv", ".jsonl", ".json", ".log")
PACKED = ("", ".gz", ".zst")
TABLES = tuple(kind + packed for kind in (".csv", ".jsonl") for packed in PACKED)
SUFFIXES = tuple(kind + packed for kind in KINDS for packed in PACKED)
_ROWS_AT_ONCE = 20_000  # small enough that the collector of garbage sees few of them
Row = tuple[int, dict[str, Any]]  # (line number from 1, values by name)


def check_is_workload_file(path: Path) -> None:
    if not path.is_file():
        refuse_file(path, "not a regular file" if path.exists() else "no such file")
    if not path.name.endswith(SUFFIXES):
        refuse_file(path, f"a workload file ends in {', '.join(KINDS)}, or in one of these with .gz or .zst")


def rows_of(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """The rows of a table, CSV or JSON lines. Raises CbbenchError; needed: columns that a CSV file must have."""
    check_is_workload_file(path)
    with reading(path), open_text(path) as file:
        if kind_of(path) != ".csv":
            yield from json_rows(path, file)
            return
        table = CsvTable(path, file)
        if missing := [name for name in needed if name not in table.header]:
            refuse_file(path, f"no column {missing[0]}; the first line must name the columns")
        lines, columns = table.columns()
        for line, values in zip(lines, zip(*columns, strict=True), strict=True):
            yield line, dict(zip(table.header, values, strict=True))


def kind_of(path: Path) -> str:
    """Its suffix, without that of the packing."""
    return (Path(path.stem) if path.suffix in PACKED else path).suffix


def open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    if path.suffix == ".zst":
        text: IO[str] = _zstd(path).open(path, "rt", encoding="utf-8-sig", newline="")
        return text
    return path.open(encoding="utf-8-sig", newline="")


def _zstd(path: Path) -> Any:
    """A module that opens zstd files: Python's own from 3.14 on, or one of two libraries."""
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            return import_module(name)
        except ImportError:
            continue
    refuse_file(path, "zstd needs the library zstandard (pip install zstandard), or unpack the file: zstd -d")


class reading:
    """A context in which an error of the file's bytes names the file and the line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnicodeDecodeError):
            line = _first_line_not_utf8(self._path)
            refuse_line(self._path, line, f"not readable as text, which must be UTF-8 ({error.reason})")
        broken = (gzip.BadGzipFile, EOFError)
        if isinstance(error, broken) or type(error).__name__ == "ZstdError":
            refuse_file(self._path, f"not readable as text: {error}")


def _first_line_not_utf8(path: Path) -> int:
    """The decoder's own position counts from the start of its read-ahead buffer, so the file is read again."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1  # the file has changed since


class CsvTable:
    """The header of a CSV file, and then its rows, which must have as many values."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self._path = path
        self._reader = csv.reader(file)
        self.header = next(self._reader, [])
        if repeated := [name for name in self.header if self.header.count(name) > 1]:
            refuse_file(path, f"duplicate column {repeated[0]}")

    def columns(self) -> tuple[list[int], list[list[str | None]]]:
        """(line of each row, the values of each column; those that a short row lacks are None)"""
        lines: list[int] = []
        columns: list[list[str | None]] = [[] for _ in self.header]
        read = -1
        while read < self._reader.line_num:
            read = self._reader.line_num
            for column, values in zip(columns, zip(*self._next_rows(lines), strict=True), strict=False):
                column.extend(values)
        return lines, columns

    def _next_rows(self, lines: list[int]) -> list[list[str | None]]:
        """Some rows, whose lines are added to `lines`."""
        rows: list[list[str | None]] = []
        reader, width, add_line = self._reader, len(self.header), lines.append
        try:
            for row in islice(reader, _ROWS_AT_ONCE):
                if len(row) != width:
                    if not row:
                        continue
                    if len(row) > width:
                        refuse_line(self._path, reader.line_num, f"more values than columns: {row[width:]!r}")
                    row += [None] * (width - len(row))  # type: ignore[list-item]
                rows.append(row)  # type: ignore[arg-type]
                add_line(reader.line_num)
        except csv.Error as error:
            refuse_line(self._path, reader.line_num, str(error))
        return rows


def json_rows(path: Path, file: IO[str]) -> Iterator[Row]:
    """The objects of JSON lines; of a .json file also those of its array, or the one it is."""
    if kind_of(path) == ".json":
        yield from _json_document(path, file.read())
        return
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield number, object_of(path, number, line)


def _json_document(path: Path, text: str) -> Iterator[Row]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):  # then it is lines, or each error is that of a line
            for number, line in enumerate(text.splitlines(), start=1):
                if line.strip():
                    yield number, object_of(path, number, line)
            return
    for number, row in enumerate(document if isinstance(document, list) else [document], start=1):
        if not isinstance(row, dict):
            refuse_file(path, f'entry {number}: want an object like {{"prompt_tokens": 12, "output_tokens": 34}}')
        yield number, row


def object_of(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        row = _lenient(path, number, line)
    if not isinstance(row, dict):
        refuse_line(path, number, 'want an object like {"prompt_tokens": 12, "output_tokens": 34}')
    return row


def _lenient(path: Path, number: int, line: str) -> Any:
    """By Python's reader, which knows NaN and half surrogates, and says where an error is."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        refuse_line(path, number, f"not JSON ({error.msg} at column {error.colno})")
    except ValueError:  # Python limits the digits of a number
        refuse_line(path, number, "a number with thousands of digits")
    except RecursionError:
        refuse_line(path, number, "JSON nested too deeply")


def refuse_line(path: Path, line: int, problem: str) -> NoReturn:
    what = "entry" if kind_of(path) == ".json" else "line"
    raise CbbenchError("workload", f"{path}, {what} {line}: {problem}")


def refuse_file(path: Path, problem: str) -> NoReturn:
    raise CbbenchError("workload", f"{path}: {problem}") from None
