"""Steps that another server measured, for calibration: a file of steps (CSV or JSON lines), or vLLM's own log.

A file has the columns of StepShape and a time; what it lacks of a step with prompts cannot be guessed:

    tokens, rows, kv, ms              of every step
    prefill_pairs                     of steps with more tokens than rows: (query, key) pairs of the chunks
    prefill_kv, gap_ms                0 and unknown if missing

vLLM writes a line for each step with its `enable_logging_iteration_details` (vllm/v1/engine/core.py,
log_iteration_details; the KV usage of a line since 2026):

    Iteration(15): 2 context requests, 7986 context tokens, 14 generation requests, 14 generation tokens,
    iteration elapsed time: 115.64 ms, GPU KV cache usage: 12.3%

and once, at its start, `GPU KV cache size: 430,000 tokens`. It does not say how long a context is, so KV positions
come from the usage, and chunks count as equal and at the beginning of their prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engines.simulated.calibrate import MeasuredSteps
from workloads.errors import CbbenchError
from workloads.file_lines import TABLES, rows_of

ITERATION = re.compile(
    r"Iteration\(\d+\): (?P<chunks>\d+) context requests, (?P<chunk_tokens>\d+) context tokens, "
    r"(?P<decodes>\d+) generation requests, (?P<decode_tokens>\d+) generation tokens, "
    r".*?iteration elapsed time: (?P<ms>[\d.]+) ms(?:.*?GPU KV cache usage: (?P<usage>[\d.]+)%)?"
)
POOL = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
DUMMY = "(dummy)"  # of a rank that has nothing to do, beside others that have
VLLM_BLOCK_TOKENS = 16
KV_BYTES = 2  # of an element; a server with another type of KV is not told apart
MOST = 1 << 62

NO_GAP = "the time between steps is not in the file: it counts as 0"
NO_KV = "the log has no KV usage, so steps take as long whatever their contexts: right for contexts as long as these"
CHUNKS = "the log has no chunks, only their sum: their attention is estimated"


@dataclass(frozen=True, eq=False)
class StepFile:
    steps: MeasuredSteps
    kv_blocks: int | None = None  # of VLLM_BLOCK_TOKENS
    warnings: tuple[str, ...] = ()


def read_step_file(path: Path) -> StepFile:
    """Raises CbbenchError, with the line, if a step is not readable, and if there is none."""
    found = _table(path) if path.name.endswith(TABLES) else _vllm_log(path)
    if not len(found.steps.tokens):
        raise CbbenchError(
            None,
            f"{path}: no steps in it; it must be a table ({', '.join(TABLES)}) or the log of a vLLM server with "
            "its enable_logging_iteration_details on",
        )
    return found


# -- a table -----------------------------------------------------------------------------------------------------


def _table(path: Path) -> StepFile:
    found: list[tuple[int, ...]] = []
    try:
        for line, row in rows_of(path, ("tokens", "rows", "kv", "ms")):
            found.append(_step(path, line, row))
    except CbbenchError as error:
        raise CbbenchError(None, error.message) from None  # `workload` is not what is wrong here
    steps = _measured(found)
    return StepFile(steps, warnings=(NO_GAP,) if (steps.gap_ns < 0).all() else ())


def _step(path: Path, line: int, row: dict[str, Any]) -> tuple[int, ...]:
    """(tokens, rows, kv, prefill_kv, prefill_pairs, duration, gap), times in ns."""
    tokens, rows, kv = (_number(path, line, row, name, int) for name in ("tokens", "rows", "kv"))
    if not 1 <= rows <= tokens:
        raise CbbenchError(None, f"{path}, line {line}: {rows} rows and {tokens} tokens; each row has at least one")
    needed = tokens > rows
    pairs = _number(path, line, row, "prefill_pairs", int, needed=needed)
    prefill_kv = _number(path, line, row, "prefill_kv", int, needed=False)
    duration_ns = round(_number(path, line, row, "ms", float) * 1e6)
    if duration_ns < 1:
        raise CbbenchError(None, f"{path}, line {line}: ms must be more than 0")
    given = row.get("gap_ms") not in (None, "")
    gap_ns = round(_number(path, line, row, "gap_ms", float) * 1e6) if given else -1
    return int(tokens), int(rows), int(kv), int(prefill_kv), int(pairs), duration_ns, gap_ns


def _number(
    path: Path, line: int, row: dict[str, Any], name: str, kind: Callable[[Any], float], *, needed: bool = True
) -> float:
    """A value of at least 0; 0 if it is missing and not needed."""
    value = row.get(name)
    if value in (None, "") and not needed:
        return 0
    try:
        number = kind(value)
    except (TypeError, ValueError):
        number = -1
    cut = kind is int and isinstance(value, float) and number != value
    if cut or isinstance(value, bool) or not 0 <= number < MOST:
        said = "nothing" if value in (None, "") else repr(value)
        whole = "a whole number" if kind is int else "a number"
        raise CbbenchError(None, f"{path}, line {line}: {name} must be {whole} of at least 0, got {said}")
    return number


def _measured(steps: list[tuple[int, ...]]) -> MeasuredSteps:
    columns = np.array(steps, dtype=np.int64).reshape(len(steps), 7).T
    tokens, rows, kv, prefill_kv, pairs, duration_ns, gap_ns = columns
    return MeasuredSteps(
        tokens=tokens, rows=rows, kv=kv, prefill_kv=prefill_kv, prefill_pairs=pairs,
        swapped_blocks=np.zeros_like(tokens), duration_ns=duration_ns, gap_ns=gap_ns,
    )  # fmt: skip


# -- vLLM's log --------------------------------------------------------------------------------------------------


def _vllm_log(path: Path) -> StepFile:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise CbbenchError(None, f"{path}: {error.strerror or error}") from None
    pool_tokens: int | None = None
    found: list[tuple[int, re.Match[str]]] = []
    for number, line in enumerate(lines, start=1):
        if (said := POOL.search(line)) is not None:
            pool_tokens = int(said[1].replace(",", ""))
        elif (step := ITERATION.search(line)) is not None and DUMMY not in line:
            found.append((number, step))
    kv_known = pool_tokens is not None and all(step["usage"] is not None for _, step in found)
    steps = [_iteration(path, number, step, pool_tokens if kv_known else None) for number, step in found]
    warnings = (NO_GAP, CHUNKS) if kv_known else (NO_GAP, CHUNKS, NO_KV)
    blocks = None if pool_tokens is None else pool_tokens // VLLM_BLOCK_TOKENS
    return StepFile(_measured([step for step in steps if step is not None]), blocks, warnings)


def _iteration(path: Path, line: int, step: re.Match[str], pool_tokens: int | None) -> tuple[int, ...] | None:
    """As _step; None: nothing ran. pool_tokens: of the KV pool, if the log has what each step used of it."""
    chunks, chunk_tokens, decodes, decode_tokens = (
        int(step[name]) for name in ("chunks", "chunk_tokens", "decodes", "decode_tokens")
    )
    if decode_tokens != decodes:
        raise CbbenchError(
            None,
            f"{path}, line {line}: {decode_tokens} tokens of {decodes} generation requests: a server with speculative "
            "decoding, whose steps are of another kind; log one without",
        )
    duration_ns = round(float(step["ms"]) * 1e6)
    if chunks + decodes == 0 or duration_ns < 1:
        return None
    kv = 0
    if pool_tokens is not None:
        kv = max(decodes, round(float(step["usage"]) / 100 * pool_tokens) - chunk_tokens) if decodes else 0
    pairs = 0
    if chunk_tokens > chunks:
        each = chunk_tokens / chunks
        pairs = round(chunks * each * (each + 1) / 2)
    elif chunks:  # prompts that were cached but for one token: rows as those that decode
        kv += chunks if pool_tokens is not None else 0
    return chunk_tokens + decodes, chunks + decodes, kv, 0, pairs, duration_ns, -1
