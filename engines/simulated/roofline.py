"""Step times from data sheets, for hardware and models without a measured run. UNCALIBRATED: good for ranking settings,
not for latencies.

    decode   weights / bandwidth                        + KV bytes of a position / bandwidth, per position read
    mixed    max(weights / bandwidth, tokens · FLOPs / peak)      a knee: flat until compute takes longer
             + attention FLOPs per (query, key) pair + KV before the chunks
    swap     bytes of a KV block / host link, per block moved out or in; it does not overlap the step

Bandwidth and peak are taken at the shares below; docs/simulation.md compares the result with measured kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engines.simulated.step_time import DecodeTerms, GapTerms, MixedTerms, Origin, StepTimeModel
from workloads.errors import CbbenchError

BANDWIDTH_SHARE = 0.8  # of the data sheet's, reached by decode kernels
COMPUTE_SHARE = 0.6  # of the dense bf16 peak, reached by large matrix products
MEMORY_SHARE = 0.9  # of the memory that the weights leave, for KV, unless `gpu_memory_utilization` is set
GAP_NS = 500_000.0  # host time between steps; engines report 0.2 to several ms
BLOCK_TOKENS = 16  # of the blocks that swap_block_ns is for; StepTimeModel.with_blocks_of converts it
BYTES = 2  # bf16, weights and KV
# What pinned copies reach one way, over 16 lanes; the links' own peaks are 31.5 and 63 GB/s.
PCIE_4_BYTES_PER_S = 25e9  # nvbandwidth on an A100: forums.developer.nvidia.com/t/352186
PCIE_5_BYTES_PER_S = 50e9  # KV blocks of an H100: blog.vllm.ai/2026/01/08/kv-offloading-connector.html
UNCALIBRATED = "data sheet and model shape only; expect tens of percent, and more on TTFT tails"


class ModelShape(Protocol):
    """What the roofline needs of a decoder; engines.reference.model.config.ModelConfig has it."""

    @property
    def layers(self) -> int: ...
    @property
    def d_model(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def tied(self) -> bool: ...
    @property
    def kv_elements_per_token(self) -> int: ...
    @property
    def parameters(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device, from its data sheet."""

    bytes_per_s: float
    flop_per_s: float  # dense bf16
    memory_bytes: float
    # To the host's memory, one way, as measured. A network card has the same link, and the cards sold with these
    # devices fill it: 200 Gb/s with an A100, 400 with an H100 (NVIDIA DGX A100, DGX H100).
    link_bytes_per_s: float


HARDWARE: dict[str, Hardware] = {
    "a10": Hardware(600e9, 125e12, 24e9, PCIE_4_BYTES_PER_S),
    "a100": Hardware(2039e9, 312e12, 80e9, PCIE_4_BYTES_PER_S),
    "a100-40gb": Hardware(1555e9, 312e12, 40e9, PCIE_4_BYTES_PER_S),
    "h100": Hardware(3350e9, 989e12, 80e9, PCIE_5_BYTES_PER_S),
    "h200": Hardware(4800e9, 989e12, 141e9, PCIE_5_BYTES_PER_S),
    "l4": Hardware(300e9, 121e12, 24e9, PCIE_4_BYTES_PER_S),
    "l40s": Hardware(864e9, 362e12, 48e9, PCIE_4_BYTES_PER_S),
    "rtx4090": Hardware(1008e9, 165e12, 24e9, PCIE_4_BYTES_PER_S),
}


def roofline_step_times(hardware: str, model_name: str, model: ModelShape) -> StepTimeModel:
    """Raises CbbenchError if the hardware is unknown."""
    device = find_hardware(hardware)
    bytes_per_s, flop_per_s = device.bytes_per_s * BANDWIDTH_SHARE, device.flop_per_s * COMPUTE_SHARE
    embedding = 0 if model.tied else model.vocab * model.d_model  # only the rows of the step's tokens are read
    read = model.parameters - embedding
    weights_ns = 1e9 * read * BYTES / bytes_per_s
    token_ns = 1e9 * 2 * read / flop_per_s
    kv_ns = 1e9 * model.kv_elements_per_token * BYTES / bytes_per_s
    pair_ns = 1e9 * 4 * model.layers * model.heads * model.head_dim / flop_per_s  # QK and PV, a multiply and an add
    return StepTimeModel(
        calibrated=False,
        decode=DecodeTerms(step=weights_ns, row=0.0, kv=kv_ns),
        mixed=MixedTerms(
            step=weights_ns, token=0.0, beyond_knee=token_ns, knee_tokens=round(weights_ns / token_ns),
            row=0.0, kv=kv_ns, pair=pair_ns, prefill_kv=kv_ns,
        ),
        gap=GapTerms(step=GAP_NS, row=0.0),
        swap_block_ns=1e9 * block_bytes(model, BLOCK_TOKENS) / device.link_bytes_per_s,
        origin=Origin(
            source=f"roofline of {model_name} on {hardware}",
            model=model_name, device=hardware, block_size=BLOCK_TOKENS, kv_bytes_per_token=block_bytes(model, 1),
            warnings=(UNCALIBRATED,),
        ),
    )  # fmt: skip


def block_bytes(model: ModelShape, block_size: int) -> int:
    """K and V of `block_size` tokens in all layers."""
    return block_size * model.kv_elements_per_token * BYTES


def kv_blocks_in_memory(hardware: str, model: ModelShape, block_size: int, share: float = MEMORY_SHARE) -> int:
    """KV blocks in `share` of the memory beside the weights. Raises CbbenchError if none fits.

    An engine's own count is better: a wrong one costs more accuracy than this step-time model."""
    device = find_hardware(hardware)
    kv_bytes = (device.memory_bytes - model.parameters * BYTES) * share
    blocks = int(kv_bytes / block_bytes(model, block_size))
    if blocks < 1:
        raise CbbenchError(
            "hardware",
            f"{hardware}: {model.parameters * BYTES / 1e9:.1f} GB of weights in "
            f"{device.memory_bytes / 1e9:.0f} GB leave no room for KV (`gpu_memory_utilization` {share:g})",
        )
    return blocks


def find_hardware(name: str) -> Hardware:
    if name not in HARDWARE:
        raise CbbenchError("hardware", f"{name!r} is not one of {', '.join(HARDWARE)}")
    return HARDWARE[name]
