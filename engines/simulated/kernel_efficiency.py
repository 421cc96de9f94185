"""KernelEfficiency: how much of a GPU's data sheet the kernels of a serving engine reach.

Fitted to public measurements by `benchmarks/simulator_world.py`'s tables; docs/simulation.md has the errors, table by
table. A GPU without a table of its own gets DEFAULT.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEfficiency:
    """Shares of the data sheet's peaks, and what a layer costs beside them."""

    layer_s: float  # kernel launches and their tails, per layer and step
    weights: float  # of the bandwidth, reading weights
    compute: float  # of the dense peak, in matrix products
    activations: float  # bytes moved per byte of activations: each is written, read and often read again
    blend: float  # exponent that joins reading weights and computing with them; larger is closer to the maximum
    kv: float  # of the bandwidth, reading KV in steps that only decode
    mixed_kv: float = 1.0  # how much longer a decode's KV takes beside prompt chunks, where one kernel does both
    attention: float = 0.6  # of the dense peak, in the attention of prompt chunks
    fp8_compute: float = 0.65  # of the FP8 peak, in matrix products
    fp8_kv: float = 0.58  # of the bandwidth, reading FP8 KV
    experts: float = 0.25  # of the dense peak, in the products of routed experts
    source: str
    checked: str | None = None  # mean errors, as benchmarks/simulator_world.py ends with; None: no table of this GPU


A100 = KernelEfficiency(
    layer_s=38.6e-6, weights=0.77, compute=0.74, activations=2.25, blend=2.1, kv=0.68,
    source="vidur's layers of Llama 2 70B and Llama 3 8B, aiconfigurator's kernels",
    checked="dense bf16 layers 3 %, bf16 runs of TensorRT-LLM 11 %",
)  # fmt: skip
H100 = KernelEfficiency(
    layer_s=29.4e-6, weights=0.85, compute=0.87, activations=2.7, blend=1.6, kv=0.85,
    source="vidur's layers of Llama 2 7B, aiconfigurator's kernels",
    checked="dense bf16 layers 3 %, FP8 runs of TensorRT-LLM 11 %",
)  # fmt: skip
RTX_4090 = KernelEfficiency(
    layer_s=10e-6, weights=0.884, compute=1.2, activations=4.0, blend=3.6, kv=0.922, mixed_kv=2.56, attention=0.836,
    source="LLMServingSim's steps of Llama 3.1 8B", checked="dense bf16 steps 3 %, a run of vLLM 1 %",
)  # fmt: skip
RTX_PRO_6000 = KernelEfficiency(
    layer_s=41.9e-6, weights=0.958, compute=1.077, activations=2.72, blend=1.75, kv=0.927, mixed_kv=2.1,
    attention=0.446, source="LLMServingSim's steps of Llama 3.1 8B", checked="dense bf16 steps 3 %",
)  # fmt: skip
DEFAULT = KernelEfficiency(
    layer_s=33e-6, weights=0.84, compute=0.77, activations=2.3, blend=1.7, kv=0.85,
    source="the middle of the GPUs with tables",
)  # fmt: skip

BY_HARDWARE = {
    "a100": A100,
    "a100-40gb": A100,
    "h100": H100,
    "h200": H100,
    "rtx4090": RTX_4090,
    "rtxpro6000": RTX_PRO_6000,
}


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Time of one all-reduce: latency + bytes / bytes_per_s. The custom kernel of vLLM, in a CUDA graph."""

    latency_s: float
    bytes_per_s: float


# By hardware and number of GPUs; fitted to aiconfigurator's all-reduce tables.
ALL_REDUCE: dict[tuple[str, int], AllReduce] = {
    ("h100", 2): AllReduce(4.3e-6, 262e9),
    ("h100", 4): AllReduce(5.1e-6, 185e9),
    ("h100", 8): AllReduce(6.1e-6, 161e9),
    ("a100", 2): AllReduce(5.1e-6, 174e9),
    ("a100", 4): AllReduce(6.2e-6, 113e9),
    ("a100", 8): AllReduce(7.6e-6, 99e9),
}
