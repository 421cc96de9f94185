"""Which kernels a runtime uses: --attention auto | torch | triton."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from engines.base import EngineError
from engines.reference.kernels import Kernels
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.model.config import ModelConfig


def choose_kernels(name: str, config: ModelConfig, device: torch.device, max_num_seqs: int) -> Kernels:
    """auto: Triton on a GPU where it is installed, else torch. EngineError."""
    on_gpu, has_triton = device.type == "cuda", find_spec("triton") is not None
    if name == "torch" or (name == "auto" and not (on_gpu and has_triton)):
        return TorchKernels()
    if not on_gpu:
        raise EngineError(f"--attention triton: its kernels run on a GPU, and --device is {device.type}")
    if not has_triton:
        raise EngineError("--attention triton: triton is not installed: pip install 'cbbench[gpu]'")
    from engines.reference.kernels import triton_attention, triton_kernels

    triton_attention.require_shape(config.heads, config.kv_heads, config.head_dim)
    return triton_kernels.TritonKernels(max_num_seqs)
