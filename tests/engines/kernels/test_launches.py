"""How the wrappers launch their kernels, with the kernels themselves left out."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")

import triton

from engines.loop import VirtualClock
from engines.reference.graphs import DecodeGraphs
from engines.reference.kernels import triton_decode, triton_fused, triton_prefill, triton_sampling
from engines.reference.kernels.triton_kernels import TritonKernels
from engines.reference.model.weights import load_model
from tests.engines.reference.fake_device import FakeDevice, memory_of
from tests.engines.reference.stepping import pool_for

MODULES = (triton_decode, triton_fused, triton_prefill, triton_sampling)
MOST = 65_535  # of CUDA, for a grid's second and third axis


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """(name, grid) of each launch. The kernels do nothing."""
    seen: list[tuple[str, tuple[int, ...]]] = []

    def record(module: ModuleType, name: str) -> None:
        class Recorder:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                return lambda *args, **kwargs: seen.append((name, grid))

        monkeypatch.setattr(module, name, Recorder())

    for module in MODULES:
        for name, value in list(vars(module).items()):
            if isinstance(value, triton.runtime.JITFunction):
                record(module, name)
    return seen


def test_a_step_may_be_longer_than_a_grids_second_axis(launches: list[tuple[str, tuple[int, ...]]]) -> None:
    """A prompt of 128k tokens in one step is one launch of each kernel, whatever the heads: CUDA refuses the launch
    of a larger grid."""
    tokens, heads, kv_heads, head_dim = 131_072, 32, 1, 16
    qkv = torch.empty(1, 1, 1).expand(tokens, heads + 2 * kv_heads, head_dim)
    kv = torch.empty(2, 2, kv_heads, 16, head_dim)
    column, angles = torch.empty(1, dtype=torch.int64).expand(tokens), torch.empty(1, 1, 1).expand(tokens, 1, 8)
    row = torch.empty(2, dtype=torch.int32)
    triton_fused.rope_and_write(qkv, kv, column, angles, angles, None, None, 1e-5)
    triton_fused.rms_norm(torch.empty(tokens, 1), torch.empty(1), 1e-5)
    triton_fused.silu_mul(torch.empty(tokens, 2))
    triton_prefill.prefill_attention(qkv[:, :heads], kv, row[None], row[:1], row, qkv[:, :heads])
    assert {name for name, _ in launches} == {"_rope_and_write", "_rms_norm", "_silu_mul", "_attend_chunks"}
    for name, grid in launches:
        assert all(size <= MOST for size in grid[1:]), name


class Operations(TorchDispatchMode):
    """The operations that torch computes; views and memory cost a device nothing."""

    FREE = ("aten.empty.memory_format", "aten.empty_like.default", "aten.detach.default")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        is_view = function.is_view and memory_of(result) <= memory_of(args)  # reshape may be a copy
        if not is_view and str(function) not in self.FREE:
            product = function in (torch.ops.aten.linear.default, torch.ops.aten.mm.default)
            self.seen.append("product" if product else str(function))
        return result


def test_a_decode_step_is_few_launches_and_nothing_that_a_capture_forbids(
    launches: list[tuple[str, tuple[int, ...]]],
) -> None:
    """Ten a layer, and seven beside them. What reads a tensor on the host (item, nonzero, a copy to it) is not among
    these operations, and would end the capture of a graph."""
    llama = load_model("tiny", dtype="fp16", device="cpu").llama  # float16 is never packed for oneDNN
    device, pool = FakeDevice(VirtualClock()), pool_for(llama)
    graphs = DecodeGraphs(
        llama, pool, TritonKernels(4), device, torch.zeros(5, dtype=torch.int64), max_blocks=8, sizes=(4,)
    )
    launches.clear()
    with Operations() as operations:
        graphs._step(4)
    layers = llama.config.layers
    assert Counter(name for name, _ in launches) == {
        "_plan": 1, "_embed": 1, "_rope_and_write": layers, "_attend": layers, "_merge": layers, "_silu_mul": layers,
        "_rms_norm": 2 * layers, "_sample": 1,
    }  # fmt: skip
    assert Counter(operations.seen) == {
        "aten.index_select.default": 1,  # the rotation
        "product": 4 * layers + 1,
        "aten.add_.Tensor": 1,  # behind the last layer there is no norm to add it in
        "aten.index_copy_.default": 1,
    }
    assert len(launches) + len(operations.seen) == 10 * layers + 7
