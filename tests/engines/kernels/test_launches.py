"""How the wrappers launch their kernels, with the kernels themselves left out."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")

import triton

from engines.reference.kernels import triton_decode, triton_fused, triton_prefill, triton_sampling

MODULES = (triton_decode, triton_fused, triton_prefill, triton_sampling)
MOST = 65_535  # of CUDA, for a grid's second and third axis


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, ...]]:
    """The last grid of each kernel by its name. The kernels do nothing."""
    seen: dict[str, tuple[int, ...]] = {}

    def record(module: ModuleType, name: str) -> None:
        class Recorder:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                seen[name] = grid
                return lambda *args, **kwargs: None

        monkeypatch.setattr(module, name, Recorder())

    for module in MODULES:
        for name, value in list(vars(module).items()):
            if isinstance(value, triton.runtime.JITFunction):
                record(module, name)
    return seen


def test_a_step_may_be_longer_than_a_grids_second_axis(grids: dict[str, tuple[int, ...]]) -> None:
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
    assert set(grids) == {"_rope_and_write", "_rms_norm", "_silu_mul", "_attend_chunks"}
    for name, grid in grids.items():
        assert all(size <= MOST for size in grid[1:]), name
