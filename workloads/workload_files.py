"""Workload files: one request per row, as lengths or as prompts; the names of their columns are in log_names.py.

CSV and flat JSON give their columns as they are; other logs become such rows first (log_shapes.py, server_logs.py).
Rows with `prompt`, `text`, `messages` or a `body` that has them are prompts themselves (prompt_texts.py); other fields
of a request are sent with it (request_fields.py). Only the gaps between arrivals count, so they may begin at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from workloads.arrivals import TraceGaps
from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.file_lines import (
    CsvTable,
    Row,
    check_is_workload_file,
    json_rows,
    kind_of,
    open_text,
    reading,
    refuse_file,
    refuse_line,
)
from workloads.length_pairs import ListedLengths
from workloads.log_names import NAMES, OUTPUT, Part, TimeUnit, failed_have_no_tokens, first_known, unit_of
from workloads.log_shapes import Shape, shape_of
from workloads.prompt_blocks import PromptBlocks
from workloads.prompt_texts import DEFAULT_OUTPUT_TOKENS, Content, CountedBy, PromptFile, content_of, estimated_tokens
from workloads.request_fields import RequestFields, fields_of, request_of
from workloads.row_values import count, numbered, whole_numbers
from workloads.server_logs import VLLM_NOTE, log_rows
from workloads.time_stamps import Stamps, read_stamps

_OUTPUT_OF_PROMPTS = ("output_tokens", "completion_tokens", "max_tokens", "max_completion_tokens", "output_length")
_PERHAPS_LATER: dict[Part, str] = {"tenant": "tenant", "priority": "priority"}  # in JSON the first row may have neither
_MOST_NAMED = 8  # of the columns that are not used


@dataclass(frozen=True)
class Reading:
    """What the user says of a file. columns: (part of a request, name of its column); time_unit: of its time stamps."""

    columns: tuple[tuple[Part, str], ...] = ()
    time_unit: TimeUnit | None = None

    def name(self, part: Part, names: Iterable[str]) -> str | None:
        """The column that has this part, if the file has one."""
        return dict(self.columns).get(part) or first_known(part, names)


@dataclass(frozen=True, eq=False)
class WorkloadFile:
    """The rows of a file.

    stamps      their arrivals; None if the file has none
    prompts     contents of the rows; None if the file has lengths only
    counted_by  source of the prompt lengths: the file, or estimates until a tokenizer or the server counts
    defaulted   rows that state no output length, and get DEFAULT_OUTPUT_TOKENS
    blocks      what their prompts share; None if the file does not say
    said        what a reader of the result should know of how the file was read
    """

    lengths: ListedLengths
    stamps: Stamps | None
    prompts: PromptFile | None = None
    counted_by: CountedBy = "file"
    defaulted: int = 0
    blocks: PromptBlocks | None = None
    said: tuple[str, ...] = ()

    @property
    def arrivals_us(self) -> IntColumn | None:
        """int64[rows]"""
        return None if self.stamps is None else self.stamps.arrivals_us

    def gaps(self) -> TraceGaps | None:
        """The gaps between the rows. One mean gap follows the last row, so that the trace can repeat."""
        if self.arrivals_us is None:
            return None
        span_us = int(self.arrivals_us[-1] - self.arrivals_us[0])
        intervals = max(len(self.arrivals_us) - 1, 1)
        gaps = np.append(np.diff(self.arrivals_us), span_us // intervals)
        return TraceGaps(gaps, intervals * 1e6 / span_us if span_us else 0.0, random_start=False)

    def saying(self, *said: str) -> WorkloadFile:
        """The same, with more to say."""
        return replace(self, said=(*self.said, *said))

    def rows(self, rows: NDArray[np.intp]) -> WorkloadFile:
        """These rows of it, in this order."""
        stamps = None if self.stamps is None else replace(self.stamps, arrivals_us=self.stamps.arrivals_us[rows])
        return replace(
            self,
            lengths=self.lengths.taken(rows),
            stamps=stamps,
            prompts=None if self.prompts is None else self.prompts.taken(rows),
            blocks=None if self.blocks is None else self.blocks.rows(rows),
        )


def read_workload_file(path: Path, how: Reading = Reading()) -> WorkloadFile:
    """All rows of the file. Raises CbbenchError, with the line number and the column if a row is wrong."""
    check_is_workload_file(path)
    with reading(path), open_text(path) as file:
        return _read_csv(path, file, how) if kind_of(path) == ".csv" else _read_json(path, file, how)
    raise AssertionError("`reading` lets every error pass")


@dataclass
class _Columns:
    """Columns of a file as they were read: values by part of a request, and the names that they have."""

    lines: list[int]
    names: dict[Part, str]
    values: dict[Part, Sequence[Any]]
    beside: list[str]  # names of all columns
    hash_ids: list[Any] = field(default_factory=list)
    block_tokens: int | None = None
    shape: Shape | None = None


def _read_csv(path: Path, file: IO[str], how: Reading) -> WorkloadFile:
    table = CsvTable(path, file)
    names = _names(path, table.header, how)
    for part in ("prompt", "output"):
        if part not in names:
            refuse_file(path, f"{_no_column(part)}; the first line must name the columns, and has {_few(table.header)}")
    lines, columns = table.columns()
    if not lines:
        refuse_file(path, "no requests in it")
    values: dict[Part, Sequence[Any]] = {part: columns[table.header.index(name)] for part, name in names.items()}
    return _lengths(path, _Columns(lines, names, values, table.header), how)


def _no_column(part: Part) -> str:
    name, *others = NAMES[part]
    return f"no column {name} (other accepted names: {', '.join(others)}), and none named by `column` {part}=NAME"


def _few(names: Iterable[object]) -> str:
    """Some names, for a message."""
    return ", ".join(str(name)[:40] for name in list(names)[:_MOST_NAMED]) or "nothing"


def _names(path: Path, there: Sequence[str], how: Reading) -> dict[Part, str]:
    """The column of each part of a request that the file has. Raises CbbenchError for a `column` that it lacks."""
    for part, name in how.columns:
        if name not in there:
            raise CbbenchError("column", f"{part}={name}: {path} has no such column; it has {_few(there)}")
    found = {part: how.name(part, there) for part in NAMES}
    return {part: name for part, name in found.items() if name is not None}


def _read_json(path: Path, file: IO[str], how: Reading) -> WorkloadFile:
    objects = log_rows(path, file) if kind_of(path) == ".log" else json_rows(path, file)
    first = next(objects, None)
    if first is None:
        refuse_file(path, "no requests in it")
    shape = shape_of(path, *first)
    rows = _flat(path, chain([first], objects), shape, dict(how.columns))
    first = next(rows, None)
    if first is None:
        refuse_file(path, "no requests in it")
    if "_vllm" in first[1]:
        shape = Shape(lambda row: [row], note=VLLM_NOTE)
    if not {"prompt", "messages"}.isdisjoint(request_of(first[1])):
        return _read_prompts(path, chain([first], rows), how, shape)
    names = _names(path, list(first[1]), how)
    if "prompt" not in names:
        understood = ", ".join(NAMES["prompt"])
        refuse_line(
            path,
            first[0],
            f"no prompt, messages or prompt_tokens; it has {_few(first[1])}. Lengths may be called {understood}; "
            "`column` prompt=NAME names another",
        )
    otherwise: dict[Part, str] = {"output": OUTPUT[0], **_PERHAPS_LATER}
    names = otherwise | names
    return _lengths(path, _json_columns(chain([first], rows), names, list(first[1]), shape), how)


def _flat(path: Path, objects: Iterator[Row], shape: Shape | None, columns: dict[Part, str]) -> Iterator[Row]:
    """Flat rows of the file's objects; a `column` with dots is that inside an object."""
    inside = [name for name in columns.values() if "." in name]
    prompt = columns.get("prompt")
    for line, one in objects:
        try:
            for row in (one,) if shape is None else shape.rows(one):
                if inside:
                    row = row | {name: _inside(one, name) for name in inside}
                if prompt is not None and isinstance(row.get(prompt), str | list):
                    row = row | {("prompt" if isinstance(row[prompt], str) else "messages"): row[prompt]}
                yield line, row
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            refuse_line(path, line, f"not a request as the first line has it ({type(error).__name__}: {error})")


def _inside(row: Any, name: str) -> Any:
    if isinstance(row, dict) and name in row:
        return row[name]
    for key in name.split("."):
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _json_columns(rows: Iterator[Row], names: dict[Part, str], beside: list[str], shape: Shape | None) -> _Columns:
    values: dict[Part, list[Any]] = {part: [] for part in names}
    read = _Columns([], names, {}, beside, shape=shape)
    taken = [(name, values[part].append) for part, name in names.items()]
    if "hash_ids" in beside:
        taken.append(("hash_ids", read.hash_ids.append))
    add_line, size = read.lines.append, None
    for line, row in rows:
        add_line(line)
        for name, add in taken:
            add(row.get(name))
        size = row.get("block_size", size)
    read.values.update(values)
    read.block_tokens = size if isinstance(size, int) and size > 0 else None
    return read


def _lengths(path: Path, read: _Columns, how: Reading) -> WorkloadFile:
    lines, names, values = read.lines, read.names, read.values
    failing = failed_have_no_tokens(names["prompt"], names["output"])
    prompts, outputs = (
        whole_numbers(path, names[part], lines, values[part], 0 if failing else 1) for part in ("prompt", "output")
    )
    stamps, tenant, priority, tenants = _shared(path, read, how)
    said = [] if read.shape is None or not read.shape.note else [read.shape.note]
    used = {*names.values(), "hash_ids", "block_size", "session", "_vllm"}
    if unused := [name for name in read.beside if name not in used]:
        more = f" and {len(unused) - _MOST_NAMED} more" if len(unused) > _MOST_NAMED else ""
        said.append(f"columns that are not used: {_few(unused)}{more}")
    blocks = None
    if read.hash_ids and all(isinstance(ids, list) for ids in read.hash_ids):
        blocks = PromptBlocks.of(read.hash_ids, prompts, read.block_tokens)
    if read.hash_ids and blocks is None:
        said.append("hash_ids are not used: no block size gives the prompts as many blocks as they have")
    listed = ListedLengths(prompts, outputs, tenant, priority, tenants=tenants, lines=np.array(lines, dtype=np.int64))
    whole = WorkloadFile(listed, stamps, blocks=blocks, said=tuple(said))
    answered = np.flatnonzero((prompts > 0) & (outputs > 0))
    if not len(answered):
        refuse_file(path, "no requests in it that have both prompt and output tokens")
    if len(answered) < len(prompts):
        failed = f"{len(prompts) - len(answered):,} of {len(prompts):,} rows without tokens, which failed, are left out"
        whole = replace(whole.rows(answered), said=(*said, failed))
    return _by_arrival(whole, read.shape)


def _by_arrival(file: WorkloadFile, shape: Shape | None) -> WorkloadFile:
    if shape is None or shape.ordered or file.arrivals_us is None:
        return file
    return file.rows(np.argsort(file.arrivals_us, kind="stable"))


def _shared(path: Path, read: _Columns, how: Reading) -> tuple[Stamps | None, IntColumn, IntColumn, tuple[str, ...]]:
    """(arrivals, tenant and priority of the rows, names of the tenants)"""
    lines, names, values = read.lines, read.names, read.values
    stamps = None
    if (name := names.get("arrival")) is not None:
        ordered = read.shape is None or read.shape.ordered
        known = unit_of(name, read.beside)
        stamps = read_stamps(path, name, lines, values["arrival"], given=how.time_unit, known=known, ordered=ordered)
    elif how.time_unit is not None:
        raise CbbenchError("time_unit", f"{path} has no time stamps")
    tenant, tenants = numbered(values["tenant"] if "tenant" in values else [None] * len(lines))
    given = [0 if value in (None, "") else value for value in values.get("priority", ())]
    priority = whole_numbers(path, "priority", lines, given, 0) if given else np.zeros(len(lines), dtype=np.int64)
    return stamps, tenant, priority, tenants


def _read_prompts(path: Path, rows: Iterator[Row], how: Reading, shape: Shape | None) -> WorkloadFile:
    contents: list[Content] = []
    prompts: list[int] = []
    outputs: list[int] = []
    read = _Columns([], {}, {}, [], shape=shape)
    fields: list[RequestFields] = []
    unsent: Counter[str] = Counter()
    shared: dict[Part, list[Any]] = {"arrival": [], "tenant": [], "priority": []}
    counted, defaulted = True, 0
    output_names = (*(name for part, name in how.columns if part == "output"), *_OUTPUT_OF_PROMPTS)
    for line, recorded in rows:
        row = request_of(recorded)
        if not contents:
            read.beside = list(row)
            found = _PERHAPS_LATER | _names(path, read.beside, how)
            read.names = {part: name for part, name in found.items() if part in shared}
        contents.append(content_of(path, line, row))
        sent, left_out = fields_of(path, line, row)
        fields.append(sent)
        unsent.update(left_out)
        counted = counted and row.get("prompt_tokens") is not None
        prompts.append(count(path, line, row["prompt_tokens"], "prompt_tokens", 1) if counted else 1)
        name = next((name for name in output_names if row.get(name) is not None), None)
        outputs.append(DEFAULT_OUTPUT_TOKENS if name is None else count(path, line, row[name], name, 1))
        defaulted += name is None
        read.lines.append(line)
        for part, name in read.names.items():
            shared[part].append(row.get(name))
    if not counted:
        prompts = [estimated_tokens(one) for one in contents]
    read.values.update({part: shared[part] for part in read.names})
    stamps, tenant, priority, tenants = _shared(path, read, how)
    lines = np.array(read.lines, dtype=np.int64)
    prompt_tokens, output_tokens = (np.array(tokens, dtype=np.int64) for tokens in (prompts, outputs))
    listed = ListedLengths(prompt_tokens, output_tokens, tenant, priority, tenants=tenants, lines=lines)
    file = PromptFile(str(path), tuple(contents), lines, tuple(fields) if any(fields) else (), dict(unsent))
    said = () if shape is None or not shape.note else (shape.note,)
    whole = WorkloadFile(listed, stamps, file, "file" if counted else "server", defaulted, said=said)
    return _by_arrival(whole, shape)
