"""Which kernels a runtime uses, decided without a GPU: choosing allocates nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engines.reference.kernels import choose
from engines.reference.kernels.choose import choose_kernels
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.model.config import SHAPES
from workloads.errors import CbbenchError

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 32, 80), (32, 32, 96), (26, 26, 100), (8, 8, 256), (66, 2, 64)]
)
def test_auto_takes_torch_for_heads_that_triton_cannot_tile(
    heads: int, kv_heads: int, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.json names the reason; asked for by name, Triton is refused with it."""
    pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")
    monkeypatch.setattr(choose, "find_spec", lambda name: True)
    config = replace(SHAPES["tiny"], heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    kernels = choose_kernels("auto", config, torch.bfloat16, CUDA, 8)
    assert isinstance(kernels, TorchKernels)
    assert f"this model has {heads} heads of {head_dim} numbers and {kv_heads} KV heads" in kernels.name
    with pytest.raises(CbbenchError, match=f"^attention: this model has {heads} heads of {head_dim}"):
        choose_kernels("triton", config, torch.bfloat16, CUDA, 8)


@pytest.mark.parametrize("name", SHAPES)
def test_known_shapes_are_tiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")
    monkeypatch.setattr(choose, "find_spec", lambda name: True)
    assert not isinstance(choose_kernels("auto", SHAPES[name], torch.bfloat16, CUDA, 8), TorchKernels)


@pytest.mark.parametrize(("capability", "allowed"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True)])
def test_kernels_that_start_early_need_a_gpu_that_can(
    capability: tuple[int, int], allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(choose, "find_spec", lambda name: True)
    if allowed:
        assert "launched early" in choose_kernels("triton-pdl", SHAPES["tiny"], torch.bfloat16, CUDA, 8).name
        return
    with pytest.raises(CbbenchError, match=r"^attention: triton-pdl needs compute capability 9.0"):
        choose_kernels("triton-pdl", SHAPES["tiny"], torch.bfloat16, CUDA, 8)
