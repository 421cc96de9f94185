"""Steps of another server: a table, or vLLM's log of its iterations, gives the step times that made it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engines.simulated.calibrate import MeasuredSteps, calibrate
from engines.simulated.step_files import NO_GAP, NO_KV, read_step_file
from engines.simulated.step_time import Origin
from tests.engines.simulated.small_runs import STEP_TIMES
from tests.engines.simulated.test_calibrate import _errors, _steps
from workloads.errors import CbbenchError

POOL_TOKENS = 400_000
PREFIX = "(EngineCore_DP0 pid=1205) INFO 07-09 03:15:05 [core.py:359] "


def table_of(steps: MeasuredSteps) -> list[dict[str, float]]:
    columns = zip(
        steps.tokens, steps.rows, steps.kv, steps.prefill_kv, steps.prefill_pairs, steps.duration_ns, strict=True
    )
    names = ("tokens", "rows", "kv", "prefill_kv", "prefill_pairs")
    return [dict(zip(names, map(int, step), strict=False)) | {"ms": step[5] / 1e6} for step in columns]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_of_steps_gives_the_step_times_that_made_it(tmp_path: Path, suffix: str) -> None:
    rows = table_of(_steps(60, STEP_TIMES))
    path = tmp_path / f"steps.{suffix}"
    if suffix == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    else:
        lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    read = read_step_file(path)
    fitted = calibrate(read.steps, Origin(source="steps", warnings=read.warnings))
    decode, mixed = _errors(fitted, STEP_TIMES, seed=1)
    assert decode < 1e-4
    assert mixed < 0.01
    assert fitted.gap_ns(30) == 0
    assert fitted.origin.warnings == (NO_GAP,)
    assert set(fitted.origin.hold_out) == {"decode", "mixed"}


def test_gaps_in_a_table_are_fitted(tmp_path: Path) -> None:
    steps = _steps(60, STEP_TIMES)
    path = tmp_path / "steps.jsonl"
    rows = [row | {"gap_ms": gap / 1e6} for row, gap in zip(table_of(steps), steps.gap_ns.tolist(), strict=True)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    read = read_step_file(path)
    assert read.warnings == ()
    assert calibrate(read.steps, Origin(source="x")).gap.step == pytest.approx(STEP_TIMES.gap.step, rel=1e-3)


def log_of(steps: MeasuredSteps, *, usage: bool) -> list[str]:
    """As vLLM writes it; KV usage to a tenth of a percent, of one chunk a step at the beginning of its prompt."""
    lines = [f"INFO 07-09 03:14:00 [kv_cache_utils.py:1087] GPU KV cache size: {POOL_TOKENS:,} tokens"]
    for at in range(len(steps.tokens)):
        tokens, rows, kv = int(steps.tokens[at]), int(steps.rows[at]), int(steps.kv[at])
        chunks = int(tokens > rows)
        chunk = tokens - (rows - 1) if chunks else 0
        line = (
            f"{PREFIX}Iteration({at}): {chunks} context requests, {chunk} context tokens, {rows - chunks} generation "
            f"requests, {rows - chunks} generation tokens, iteration elapsed time: {steps.duration_ns[at] / 1e6:.2f} ms"
        )
        share = f", GPU KV cache usage: {100 * (kv + chunk) / POOL_TOKENS:.1f}%"
        lines.append(line + (share if usage else ""))
    dummy = "0 context requests, 0 context tokens, 0 generation requests, 0 generation tokens"
    return [*lines, f"{PREFIX}Iteration(999): {dummy}, iteration elapsed time: 9.00 ms (dummy)", "INFO: the end"]


def at_the_beginning(steps: MeasuredSteps) -> MeasuredSteps:
    """The same steps with chunks that nothing is in front of."""
    chunk = np.where(steps.decode_only, 0, steps.tokens - steps.rows + 1)
    pairs = chunk * (chunk + 1) // 2
    changed = MeasuredSteps(
        tokens=steps.tokens, rows=steps.rows, kv=steps.kv, prefill_kv=np.zeros_like(pairs), prefill_pairs=pairs,
        swapped_blocks=steps.swapped_blocks, duration_ns=steps.duration_ns, gap_ns=steps.gap_ns,
    )  # fmt: skip
    changed.duration_ns[:] = [STEP_TIMES.duration_ns(shape) for shape in changed.shapes()]
    return changed


def test_the_log_of_a_vllm_server_gives_the_step_times_that_made_it(tmp_path: Path) -> None:
    steps = at_the_beginning(_steps(400, STEP_TIMES))
    path = tmp_path / "server.log"
    path.write_text("\n".join(log_of(steps, usage=True)))
    read = read_step_file(path)
    assert read.kv_blocks == POOL_TOKENS // 16
    assert read.steps.tokens.tolist() == steps.tokens.tolist()
    assert read.steps.prefill_pairs.tolist() == steps.prefill_pairs.tolist()
    assert np.abs(read.steps.kv - steps.kv).max() <= POOL_TOKENS / 1000  # as the usage is rounded
    fitted = calibrate(read.steps, Origin(source="log", warnings=read.warnings))
    predicted = np.array([fitted.duration_ns(shape) for shape in steps.shapes()])
    assert np.abs(predicted / steps.duration_ns - 1).mean() < 0.01
    assert fitted.decode.kv == pytest.approx(STEP_TIMES.decode.kv, rel=0.02)


def test_a_log_without_kv_usage_says_what_it_cannot_tell(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(log_of(at_the_beginning(_steps(200, STEP_TIMES)), usage=False)))
    read = read_step_file(path)
    assert NO_KV in read.warnings
    assert not read.steps.kv.any()
    fitted = calibrate(read.steps, Origin(source="log", warnings=read.warnings))
    assert fitted.decode.kv == 0
    assert NO_KV in fitted.origin.warnings


HEADER = "tokens,rows,kv,prefill_pairs,ms\n"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.csv", HEADER, "a.csv: no steps in it; .* the log of a vLLM server"),
        ("a.log", "INFO: hello\n", "a.log: no steps in it"),
        ("a.csv", "tokens,rows,ms\n1,1,2\n", "no column kv"),
        ("a.csv", HEADER + "4,4,9,0,2.5\n4,5,9,0,2.5\n", "line 3: 5 rows and 4 tokens"),
        ("a.csv", HEADER + "8,4,9,,2.5\n", "line 2: prefill_pairs must be a whole number of at least 0, got nothing"),
        ("a.csv", HEADER + "8,4,x,1,2.5\n", "line 2: kv must be a whole number of at least 0, got 'x'"),
        ("a.csv", HEADER + "8,4,1,1,inf\n", "line 2: ms must be a number of at least 0, got 'inf'"),
        ("a.csv", HEADER + "8,4,1,1,0\n", "line 2: ms must be more than 0"),
        ("a.jsonl", '{"tokens": 4, "rows": 4, "kv": true, "ms": 1}\n', "line 1: kv must be a whole number"),
        ("a.jsonl", '{"tokens": 4.5, "rows": 4, "kv": 1, "ms": 1}\n', "line 1: tokens must be a whole number"),
        (
            "a.log",
            "Iteration(1): 0 context requests, 0 context tokens, 3 generation requests, 9 generation tokens, "
            "iteration elapsed time: 2.00 ms\n",
            "line 1: 9 tokens of 3 generation requests: a server with speculative decoding",
        ),
    ],
)
def test_what_is_no_step_is_refused_with_the_line(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(CbbenchError, match=complaint) as refused:
        read_step_file(path)
    assert refused.value.field is None
