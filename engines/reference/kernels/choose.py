"""Which kernels a runtime uses: the setting `attention`, auto, torch, triton, triton-pdl or flashinfer."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from engines.reference.kernels import Kernels
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.model.config import ModelConfig
from workloads.errors import CbbenchError

PDL_FROM = (9, 0)  # compute capability with programmatic dependent launch
INSTALLED_BY = {"flashinfer": "cbbench[flashinfer]", "triton": "cbbench[gpu]"}


def choose_kernels(
    name: str, config: ModelConfig, dtype: torch.dtype, device: torch.device, max_num_seqs: int
) -> Kernels:
    """auto: Triton on a GPU where it is installed and tiles the model's heads, else torch. CbbenchError."""
    on_gpu = device.type == "cuda"
    if name == "torch" or (name == "auto" and not (on_gpu and find_spec("triton"))):
        return TorchKernels()
    if not on_gpu:
        raise CbbenchError("attention", f"the kernels of {name} run on a GPU, and `device` is {device.type}")
    for package in ("flashinfer", "triton") if name == "flashinfer" else ("triton",):
        if find_spec(package) is None:
            raise CbbenchError(
                "attention", f"{name} needs {package}, which is not installed: pip install '{INSTALLED_BY[package]}'"
            )
    if name == "flashinfer":
        from engines.reference.kernels import flashinfer_kernels

        flashinfer_kernels.require_shape(config, dtype)
        return flashinfer_kernels.FlashInferKernels(config, device, max_num_seqs, flashinfer_kernels.load())
    from engines.reference.kernels import triton_attention, triton_kernels

    early = name == "triton-pdl"
    if early and torch.cuda.get_device_capability(device) < PDL_FROM:
        raise CbbenchError("attention", "triton-pdl needs compute capability 9.0 (Hopper) or later; take triton")
    if problem := triton_attention.why_not(config.heads, config.kv_heads, config.head_dim):
        if name == "auto":
            return TorchKernels(because=problem)
        raise CbbenchError("attention", f"{problem} (torch takes any)")
    return triton_kernels.TritonKernels(max_num_seqs, early=early)
