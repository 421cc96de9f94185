"""Hardware: what the data sheet of a GPU says, and its memory as the driver counts it."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.errors import CbbenchError

MIB = 1 << 20
# What pinned copies reach one way, over 16 lanes; the links' own peaks are 31.5 and 63 GB/s.
PCIE_4_BYTES_PER_S = 25e9  # nvbandwidth on an A100: forums.developer.nvidia.com/t/352186
PCIE_5_BYTES_PER_S = 50e9  # KV blocks of an H100: blog.vllm.ai/2026/01/08/kv-offloading-connector.html


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One GPU. Peaks are dense, without sparsity."""

    bytes_per_s: float
    flop_per_s: float  # bf16
    fp8_flop_per_s: float | None = None  # None: no FP8 arithmetic
    memory_bytes: int  # of the whole card, as `nvidia-smi` shows it: a little less or more than its name says
    # To the host's memory, one way; measured, not the data sheet's. A network card is on such a link too, and those
    # sold beside these GPUs just fill it: 200 Gb/s with an A100, 400 with an H100 (NVIDIA DGX A100, DGX H100).
    link_bytes_per_s: float
    nvlink: bool = False  # GPUs of a server reach each other by NVLink (or AMD's Infinity Fabric), not by PCIe


# Data sheets: nvidia.com/en-us/data-center/{a10,a100,h100,h200,l4,l40s}, the GB200 and DGX B200 data sheets, the
# Ada and RTX PRO 6000 Blackwell architecture whitepapers (165 and, at half of its FP8 figure, 504 TFLOP/s of bf16
# with fp32 accumulation), amd.com's Instinct MI300X data sheet.
HARDWARE: dict[str, Hardware] = {
    "a10": Hardware(
        bytes_per_s=600e9, flop_per_s=125e12, memory_bytes=23_028 * MIB, link_bytes_per_s=PCIE_4_BYTES_PER_S
    ),
    "a100": Hardware(
        bytes_per_s=2039e9, flop_per_s=312e12, memory_bytes=81_920 * MIB, link_bytes_per_s=PCIE_4_BYTES_PER_S,
        nvlink=True,
    ),
    "a100-40gb": Hardware(
        bytes_per_s=1555e9, flop_per_s=312e12, memory_bytes=40_960 * MIB, link_bytes_per_s=PCIE_4_BYTES_PER_S,
        nvlink=True,
    ),
    "h100": Hardware(
        bytes_per_s=3350e9, flop_per_s=989e12, fp8_flop_per_s=1979e12, memory_bytes=81_559 * MIB,
        link_bytes_per_s=PCIE_5_BYTES_PER_S, nvlink=True,
    ),
    "h200": Hardware(
        bytes_per_s=4800e9, flop_per_s=989e12, fp8_flop_per_s=1979e12, memory_bytes=143_771 * MIB,
        link_bytes_per_s=PCIE_5_BYTES_PER_S, nvlink=True,
    ),
    "b200": Hardware(
        bytes_per_s=8000e9, flop_per_s=2250e12, fp8_flop_per_s=4500e12, memory_bytes=183_359 * MIB,
        link_bytes_per_s=PCIE_5_BYTES_PER_S, nvlink=True,
    ),
    "l4": Hardware(
        bytes_per_s=300e9, flop_per_s=121e12, fp8_flop_per_s=242e12, memory_bytes=23_034 * MIB,
        link_bytes_per_s=PCIE_4_BYTES_PER_S,
    ),
    "l40s": Hardware(
        bytes_per_s=864e9, flop_per_s=362e12, fp8_flop_per_s=733e12, memory_bytes=46_068 * MIB,
        link_bytes_per_s=PCIE_4_BYTES_PER_S,
    ),
    "rtx4090": Hardware(
        bytes_per_s=1008e9, flop_per_s=165e12, fp8_flop_per_s=330e12, memory_bytes=24_564 * MIB,
        link_bytes_per_s=PCIE_4_BYTES_PER_S,
    ),
    "rtxpro6000": Hardware(
        bytes_per_s=1597e9, flop_per_s=504e12, fp8_flop_per_s=1008e12, memory_bytes=97_887 * MIB,
        link_bytes_per_s=PCIE_5_BYTES_PER_S,
    ),
    "mi300x": Hardware(
        bytes_per_s=5300e9, flop_per_s=1307e12, fp8_flop_per_s=2615e12, memory_bytes=196_592 * MIB,
        link_bytes_per_s=PCIE_5_BYTES_PER_S, nvlink=True,
    ),
}  # fmt: skip


def find_hardware(name: str) -> Hardware:
    if name not in HARDWARE:
        raise CbbenchError("hardware", f"{name!r} is not one of {', '.join(HARDWARE)}")
    return HARDWARE[name]


def hardware_named(device: str) -> str | None:
    """The name here of a GPU as its driver calls it ("NVIDIA H100 80GB HBM3"); None where it is not known."""
    plain = device.lower().replace(" ", "").replace("-", "")
    names = sorted(HARDWARE, key=len, reverse=True)  # a100-40gb before a100 before a10
    return next((name for name in names if name.replace("-", "") in plain), None)
