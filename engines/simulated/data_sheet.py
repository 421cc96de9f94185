"""The step-time model of a decoder on one or several GPUs, from its shape, their data sheet and what kernels reach.

weights    bytes of all layers / TP / (share · bandwidth)
token      2 · parameters of all layers / TP / (share · peak)
activation 2 · layers · (8·d + (3·ffn + 2·(h + 2·kv)·hd) / TP) bytes
head       bytes / bandwidth; 2 · d · vocab / TP FLOP a row
kv         KV bytes of a position / TP / bandwidth
pair       4 · layers · h · hd / TP FLOP
all-reduce two a layer: latency, and d · 2 bytes a token, under tensor parallelism
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engines.simulated.analytical import AnalyticalStepTimes, ExpertTerms, WindowTerms
from engines.simulated.hardware import Hardware, find_hardware
from engines.simulated.host_floor import host_floor
from engines.simulated.kernel_efficiency import ALL_REDUCE, BY_HARDWARE, DEFAULT, AllReduce, KernelEfficiency
from engines.simulated.shapes import DecoderShape
from engines.simulated.speculation import SpeculationTerms
from engines.simulated.step_time import Origin
from workloads.errors import CbbenchError

BLOCK_TOKENS = 16  # of the block that swap_block_ns is told for
ACTIVATION_BYTES = 2  # bf16, whatever the weights are
FRONT_END_NS = 7_000_000  # 5 to 10 ms were measured between a request's arrival and its first step
UNCALIBRATED = "data sheet and model shape only; docs/simulation.md has the errors against published tables"

WeightsDtype = Literal["bf16", "fp8", "int4"]
KvDtype = Literal["bf16", "fp8"]
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5 + 2 / 128}  # int4: a scale of two bytes for 128 weights
KV_BYTES = {"bf16": 2, "fp8": 1}
SIMILAR = {"h200": "h100", "b200": "h100", "a100-40gb": "a100"}  # whose all-reduce stands in: no NVLink here is slower
# Of two GPUs without NVLink: each sends the other all of its part, as fast as it copies to the host; the latency of two
# such copies is assumed. No table has it.
PCIE_LATENCY_S = 20e-6
RUNTIME_BYTES = 1.2e9  # CUDA context, libraries and graphs; gives a 4090 the 2,588 blocks that vLLM counted (2,582)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on GPUs, as a server runs it."""

    hardware: str
    gpus: int = 1  # tensor parallelism
    weights: WeightsDtype = "bf16"
    kv: KvDtype = "bf16"
    host_floor_ms: float | Literal["eager"] = 0.0
    speculation: SpeculationTerms | None = None


def step_times_of(
    name: str,
    shape: DecoderShape,
    device: Hardware,
    deployment: Deployment,
    *,
    reached: KernelEfficiency | None = None,
    joined: AllReduce | None = None,
) -> AnalyticalStepTimes:
    """The model `shape`, called `name` in outputs. CbbenchError where the GPUs cannot compute or share it.

    reached, joined: of other kernels than those fitted for this hardware.
    """
    reached = reached or BY_HARDWARE.get(deployment.hardware, DEFAULT)
    joined = joined or all_reduce(deployment)
    gpus = deployment.gpus
    host = host_floor(deployment.host_floor_ms, deployment.hardware, shape.layers)
    bandwidth = device.bytes_per_s
    peak, kv_share = reached.compute * device.flop_per_s, reached.kv
    if deployment.weights == "fp8":
        if device.fp8_flop_per_s is None:
            raise CbbenchError("weights_dtype", f"{deployment.hardware} has no FP8 arithmetic; bf16 and int4 run on it")
        peak = reached.fp8_compute * device.fp8_flop_per_s
    if deployment.kv == "fp8":
        kv_share = reached.fp8_kv
    weight_bytes = WEIGHT_BYTES[deployment.weights]

    def reading_ns(parameters: float, bytes_each: float = weight_bytes) -> float:
        return 1e9 * parameters * bytes_each / gpus / (reached.weights * bandwidth)

    def computing_ns(parameters: float, flop_per_s: float = peak) -> float:
        return 1e9 * 2 * parameters / gpus / flop_per_s

    head = shape.vocab * shape.d_model
    bf16_peak = reached.compute * device.flop_per_s
    kv_ns = 1e9 * KV_BYTES[deployment.kv] / kv_shares(shape, gpus) / (kv_share * bandwidth)
    pair_ns = 1e9 / gpus / (reached.attention * device.flop_per_s)
    full, windowed = shape.full_layers, shape.windowed_layers
    kv_elements, pair_flop = shape.kv_elements_per_layer, shape.pair_flop_per_layer
    return AnalyticalStepTimes(
        fixed=1e9 * shape.layers * (reached.layer_s + 2 * joined.latency_s),
        weights=reading_ns(shape.dense_parameters),
        token=computing_ns(shape.dense_parameters),
        blend=reached.blend,
        activation=1e9 * reached.activations * activation_bytes(shape, gpus) / bandwidth
        + 1e9 * 2 * shape.layers * shape.d_model * ACTIVATION_BYTES / joined.bytes_per_s,
        head=reading_ns(head, ACTIVATION_BYTES),
        head_row=computing_ns(head, bf16_peak),
        kv=full * kv_elements * kv_ns,
        mixed_kv=full * kv_elements * kv_ns * reached.mixed_kv,
        pair=full * pair_flop * pair_ns,
        experts=_experts(shape, deployment, reached, device),
        window=None
        if shape.window is None
        else WindowTerms(tokens=shape.window, kv=windowed * kv_elements * kv_ns, pair=windowed * pair_flop * pair_ns),
        speculation=deployment.speculation,
        host_floor=1e9 * host.step_s,
        host_floor_row=1e9 * host.row_s,
        front_end_ns=FRONT_END_NS,
        swap_block_ns=1e9 * BLOCK_TOKENS * kv_bytes_per_token(shape, deployment) / device.link_bytes_per_s / gpus,
        origin=Origin(
            source=f"data sheet of {_gpus(deployment)}, shape of {name}; {_checked(deployment)}",
            model=name,
            device=deployment.hardware,
            block_size=BLOCK_TOKENS,
            max_model_len=shape.max_position,
            kv_bytes_per_token=kv_bytes_per_token(shape, deployment),
            warnings=(UNCALIBRATED,),
        ),
    )


def _experts(
    shape: DecoderShape, deployment: Deployment, reached: KernelEfficiency, device: Hardware
) -> ExpertTerms | None:
    if not shape.experts:
        return None
    peak = device.flop_per_s
    if deployment.weights == "fp8" and device.fp8_flop_per_s is not None:
        peak = device.fp8_flop_per_s
    bandwidth = reached.weights * device.bytes_per_s
    return ExpertTerms(
        experts=shape.experts,
        per_token=shape.experts_per_token,
        expert=1e9 * shape.expert_parameters * WEIGHT_BYTES[deployment.weights] / deployment.gpus / bandwidth,
        token=1e9 * 2 * shape.experts_per_token * shape.expert_parameters / deployment.gpus / (reached.experts * peak),
    )


def activation_bytes(shape: DecoderShape, gpus: int) -> float:
    """Bytes of activations that one token leaves in all layers, on one of the GPUs."""
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return 2 * shape.layers * (8 * shape.d_model + (3 * shape.active_ffn + 2 * heads) / gpus)


def all_reduce(deployment: Deployment) -> AllReduce:
    """One all-reduce of the GPUs that share a layer. CbbenchError where no table has them together."""
    if deployment.gpus == 1:
        return AllReduce(0.0, float("inf"))
    if over_pcie(deployment) and deployment.gpus == 2:
        return AllReduce(PCIE_LATENCY_S, find_hardware(deployment.hardware).link_bytes_per_s)
    known = ALL_REDUCE.get((deployment.hardware, deployment.gpus))
    if known is None:
        known = ALL_REDUCE.get((SIMILAR.get(deployment.hardware, ""), deployment.gpus))
    if known is None:
        sizes = sorted({gpus for _, gpus in ALL_REDUCE})
        raise CbbenchError(
            "tensor_parallel",
            f"{deployment.gpus} x {deployment.hardware}: no measured all-reduce; known are "
            f"{', '.join(map(str, sizes))} GPUs joined by NVLink; 2 on PCIe are estimated",
        )
    return known


def over_pcie(deployment: Deployment) -> bool:
    """Whether the GPUs reach each other over PCIe alone."""
    return deployment.gpus > 1 and not find_hardware(deployment.hardware).nvlink


def kv_bytes_per_token(shape: DecoderShape, deployment: Deployment) -> int:
    """K and V of one token in all layers, over all GPUs: heads that the GPUs cannot share are there several times."""
    return shape.kv_elements_per_token * KV_BYTES[deployment.kv] * deployment.gpus // kv_shares(shape, deployment.gpus)


def kv_shares(shape: DecoderShape, gpus: int) -> int:
    """GPUs among which the KV of one token is divided."""
    return 1 if shape.mla is not None else min(gpus, shape.kv_heads)


def kv_blocks_in_memory(
    shape: DecoderShape,
    device: Hardware,
    deployment: Deployment,
    *,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    memory_share: float,
) -> int:
    """KV blocks that fit, as vLLM counts: `memory_share` of the whole card, less the weights, less what the largest
    step takes (activations, and logits of every row in float32), less the CUDA context and graphs. CbbenchError where
    none fits."""
    gpus = deployment.gpus
    weights_bytes = parameters_bytes(shape, deployment) / gpus
    wide = max_num_batched_tokens * (3 * max(shape.ffn, shape.active_ffn) / gpus + 4 * shape.d_model) * 2
    logits = max_num_seqs * shape.vocab * 4 * 2 / gpus
    room_bytes = device.memory_bytes * memory_share - weights_bytes - wide - logits - RUNTIME_BYTES
    block_bytes = block_size * kv_bytes_per_token(shape, deployment) / gpus
    blocks = int(room_bytes / block_bytes)
    if blocks < 1:
        raise CbbenchError(
            "hardware",
            f"{weights_bytes / 1e9:.1f} GB of weights in {device.memory_bytes / 1e9:.1f} GB of {_gpus(deployment)} "
            f"leave no room for KV (`gpu_memory_utilization` {memory_share:g})",
        )
    return blocks


def parameters_bytes(shape: DecoderShape, deployment: Deployment) -> float:
    """Weights over all GPUs; embedding and head stay in bf16."""
    embedding = shape.vocab * shape.d_model * (1 if shape.tied else 2)
    return (shape.parameters - embedding) * WEIGHT_BYTES[deployment.weights] + embedding * 2


def _checked(deployment: Deployment) -> str:
    """How far step times of this GPU are from the nearest published tables."""
    if over_pcie(deployment):
        return "no published table of GPUs joined by PCIe was checked: their all-reduce is assumed"
    reached = BY_HARDWARE.get(deployment.hardware)
    if reached is None or reached.checked is None or deployment.hardware in SIMILAR:
        return "no published table of this GPU was checked"
    return f"mean error against published {reached.checked}"


def _gpus(deployment: Deployment) -> str:
    return deployment.hardware if deployment.gpus == 1 else f"{deployment.gpus} x {deployment.hardware}"
