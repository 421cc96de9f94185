"""HostFloor: the least time of a step, in which the host plans it and launches its kernels.

With CUDA graphs and planning that overlaps the running step, as in today's servers, no table here shows one: steps down
to 5.1 ms were measured (Qwen 2.5 0.5B on an L4). An engine without graphs launches every kernel of every layer:
Splitwise's decode steps of Llama 2 70B (80 layers, an engine of 2023) take the same time on 4 and 8 A100s, 44 ms for
one row and 0.27 ms more for each; on the host of 8 H100s 30 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EAGER_LAYER_S = 0.55e-3  # 44 ms in 80 layers, on the host of A100s
EAGER_LAYER_H100_S = 0.38e-3
EAGER_ROW_S = 0.27e-3
NEWER_HOSTS = ("h100", "h200", "b200")  # which are sold with hosts as the H100's, or newer


@dataclass(frozen=True, slots=True)
class HostFloor:
    step_s: float = 0.0
    row_s: float = 0.0


def host_floor(given_ms: float | Literal["eager"], hardware: str, layers: int) -> HostFloor:
    """given_ms: of any step; or eager, for what an engine without CUDA graphs was measured to take."""
    if given_ms != "eager":
        return HostFloor(given_ms / 1e3)
    layer_s = EAGER_LAYER_H100_S if hardware in NEWER_HOSTS else EAGER_LAYER_S
    return HostFloor(layers * layer_s, EAGER_ROW_S)
