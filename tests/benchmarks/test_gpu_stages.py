"""What gpu_check's stages would say of a kernel or a runtime that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu import driving, graphs, kernels
from benchmarks.gpu.kernels import Bench
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.model.config import SHAPES

CPU = torch.device("cpu")
BENCH = Bench(SHAPES["tiny"], torch.float16, CPU)


def with_wrong(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> None:
    made = TorchKernels()
    setattr(made, name, wrong(getattr(made, name)))
    monkeypatch.setattr(kernels, "choose_kernels", lambda *about: made)


def test_the_right_kernels_are_right() -> None:
    assert all(check(BENCH)["ok"] for check in kernels.CHECKS.values())


@pytest.mark.parametrize(
    ("check", "name", "wrong"),
    [
        ("silu times up", "silu_mul", lambda right: lambda x: right(x) * 1.02),
        ("silu times up", "silu_mul", lambda right: lambda x: right(x) * float("nan")),
        ("rms norm", "rms_norm", lambda right: lambda x, weight, eps: right(x, weight, 0.1)),
        ("embedding", "embed", lambda right: lambda ids, last, *rest: right(ids, last.flip(0), *rest)),
        ("sampling", "sample", lambda right: lambda logits, columns, out: right(-logits, columns, out)),
    ],
)
def test_a_wrong_kernel_is_told(check: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_wrong(monkeypatch, name, wrong)
    assert kernels.CHECKS[check](BENCH)["ok"] is False


def test_attention_that_reads_beyond_its_row_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(right: Any) -> Any:
        return lambda tables, lengths, starts, *rest: right(tables, lengths + 1, starts, *rest)

    with_wrong(monkeypatch, "prepare", greedy)
    found = kernels.decode_attention(BENCH)
    assert (found["ok"], found["error"]) == (False, None)  # it met a NaN


def test_writing_to_a_free_block_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def stray(right: Any) -> Any:
        def write(qkv: torch.Tensor, kv: torch.Tensor, *rest: Any) -> None:
            right(qkv, kv, *rest)
            kv[6, 0, 0, 0, 0] = 1.0

        return write

    with_wrong(monkeypatch, "rope_and_write", stray)
    found = kernels.rope_and_write(BENCH)
    assert (found["ok"], found["canaries"]) == (False, False)


def test_what_a_step_may_change_in_the_pool() -> None:
    pool = driving.filled_pool(driving.build("tiny", "cpu"), 30)
    before = pool.layers.clone()
    grown = -(-(graphs.CONTEXT + graphs.STEPS) // pool.block_size) - graphs.CONTEXT // pool.block_size
    pool.layers[:, 1 : 1 + grown] = 0.0
    assert graphs.untouched(pool, before, rows=1)
    pool.layers[0, 20, 0, 0, 0] += 1.0  # one block more than a request grows by
    assert not graphs.untouched(pool, before, rows=1)
    assert graphs.untouched(pool, before, rows=2)
    pool.layers[0, 30, 0, 0, 0] += 1.0  # and a block of no request
    assert not graphs.untouched(pool, before, rows=2)


def test_skipped_prompts_leave_the_decode_steps_alone() -> None:
    model = driving.build("tiny", "cpu", "fp32")
    pool = driving.filled_pool(model, driving.blocks_for(3, 40 + 5 + 1))
    decoded = driving.decode(model, pool, rows=3, context=40, steps=5)
    steps = decoded.steps
    assert [int(n) for n in steps["decode_rows"]] == [0, 3, 3, 3, 3, 3]
    assert int(steps["prefill_rows"][0]) == 3
    assert (int(steps["busy_ns"][0]), bool((steps["busy_ns"][1:] > 0).all())) == (0, True)
    assert [len(one) for one in decoded.outputs] == [5, 5, 5]
    assert len({tuple(one) for one in decoded.outputs}) == 3  # their KV differs
    assert len(decoded.full_steps()) == 4
