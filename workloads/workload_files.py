"""Workload files: CSV or JSON lines, one request per row, gzip or not.

    value           our column      Azure            Mooncake           Vidur, Etalon
    prompt          prompt_tokens   ContextTokens    input_length       num_prefill_tokens
    output          output_tokens   GeneratedTokens  output_length      num_decode_tokens
    arrival         arrival_s (s)   TIMESTAMP        timestamp (ms)
    also            tenant (a name), priority (0 is the most urgent)

JSON lines with `prompt`, `text`, `messages` or a `body` that has them are prompts themselves (prompt_texts.py); their
output length may be called max_tokens too, and other fields of a request are sent with it (request_fields.py). Other
columns are ignored. Arrivals must not decrease; only the gaps between them count, so they may
begin at any time, also before zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from workloads.arrivals import TraceGaps
from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.file_lines import Row, SharedColumns, column, count, is_json, refuse_line, rows_of
from workloads.length_pairs import ListedLengths
from workloads.prompt_texts import DEFAULT_OUTPUT_TOKENS, Content, CountedBy, PromptFile, content_of, estimated_tokens
from workloads.request_fields import RequestFields, fields_of, request_of

_PROMPT = ("prompt_tokens", "ContextTokens", "input_length", "num_prefill_tokens")
_OUTPUT = ("output_tokens", "GeneratedTokens", "output_length", "num_decode_tokens")
_OUTPUT_OF_PROMPTS = ("output_tokens", "max_tokens", "max_completion_tokens", "output_length")


@dataclass(frozen=True, eq=False)
class WorkloadFile:
    """The rows of a file. arrivals_us: int64[rows], None if the file has no arrival column.

    prompts     contents of the rows; None if the file has lengths only
    counted_by  source of the prompt lengths: the file, or estimates until a tokenizer or the server counts
    defaulted   rows that state no output length, and get DEFAULT_OUTPUT_TOKENS
    """

    lengths: ListedLengths
    arrivals_us: IntColumn | None
    prompts: PromptFile | None = None
    counted_by: CountedBy = "file"
    defaulted: int = 0

    def gaps(self) -> TraceGaps | None:
        """The gaps between the rows. One mean gap follows the last row, so that the trace can repeat."""
        if self.arrivals_us is None:
            return None
        span_us = int(self.arrivals_us[-1] - self.arrivals_us[0])
        intervals = max(len(self.arrivals_us) - 1, 1)
        gaps = np.append(np.diff(self.arrivals_us), span_us // intervals)
        return TraceGaps(gaps, intervals * 1e6 / span_us if span_us else 0.0, random_start=False)


def read_workload_file(path: Path) -> WorkloadFile:
    """All rows of the file. Raises CbbenchError, with the line number if a row is wrong."""
    rows = rows_of(path, (_PROMPT, _OUTPUT))
    first = next(rows, None)
    if first is None:
        raise CbbenchError("workload", f"{path}: no requests in it")
    has_prompts = is_json(path) and not {"prompt", "messages"}.isdisjoint(request_of(first[1]))
    if is_json(path) and not has_prompts and set(_PROMPT).isdisjoint(first[1]):
        refuse_line(path, first[0], f"no prompt, messages or prompt_tokens; it has {_few_of(first[1])}")
    return (_read_prompts if has_prompts else _read_lengths)(path, chain([first], rows))


def _few_of(row: dict[str, object]) -> str:
    """The names in a row, for a message."""
    return ", ".join(str(name)[:40] for name in list(row)[:6]) or "nothing"


def _read_lengths(path: Path, rows: Iterator[Row]) -> WorkloadFile:
    prompts: list[int] = []
    outputs: list[int] = []
    lines: list[int] = []
    shared = SharedColumns(path)
    for line, row in rows:
        if not prompts:
            prompt_column = next((name for name in _PROMPT if name in row), _PROMPT[0])
            output_column = next((name for name in _OUTPUT if name in row), _OUTPUT[0])
        prompts.append(count(path, line, row, prompt_column, 1))
        outputs.append(count(path, line, row, output_column, 1))
        lines.append(line)
        shared.take(line, row)
    return WorkloadFile(_listed(prompts, outputs, lines, shared), shared.arrivals_us)


def _read_prompts(path: Path, rows: Iterator[Row]) -> WorkloadFile:
    contents: list[Content] = []
    prompts: list[int] = []
    outputs: list[int] = []
    lines: list[int] = []
    shared = SharedColumns(path)
    fields: list[RequestFields] = []
    unsent: Counter[str] = Counter()
    counted, defaulted = True, 0
    for line, recorded in rows:
        row = request_of(recorded)
        contents.append(content_of(path, line, row))
        sent, left_out = fields_of(path, line, row)
        fields.append(sent)
        unsent.update(left_out)
        counted = counted and row.get("prompt_tokens") is not None
        prompts.append(count(path, line, row, "prompt_tokens", 1) if counted else 1)
        output_column = next((name for name in _OUTPUT_OF_PROMPTS if row.get(name) is not None), None)
        outputs.append(DEFAULT_OUTPUT_TOKENS if output_column is None else count(path, line, row, output_column, 1))
        defaulted += output_column is None
        lines.append(line)
        shared.take(line, row)
    if not counted:
        prompts = [estimated_tokens(one) for one in contents]
    listed = _listed(prompts, outputs, lines, shared)
    file = PromptFile(str(path), tuple(contents), column(lines), tuple(fields) if any(fields) else (), dict(unsent))
    return WorkloadFile(listed, shared.arrivals_us, file, "file" if counted else "server", defaulted)


def _listed(prompts: list[int], outputs: list[int], lines: list[int], shared: SharedColumns) -> ListedLengths:
    tenant, priority, tenants = shared.tenant, shared.priority, shared.tenants
    return ListedLengths(column(prompts), column(outputs), tenant, priority, tenants=tenants, lines=column(lines))
