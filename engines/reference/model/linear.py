"""Linear: y = x W^T (+ bias) (+ residual), with the weight packed once for oneDNN where that is faster."""

from __future__ import annotations

import torch
import torch.nn.functional as F

PACKABLE = (torch.float32, torch.bfloat16)


def can_pack(weight: torch.Tensor) -> bool:
    """True on a CPU with oneDNN, whose blocked weight layout F.linear would rebuild in every call."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in PACKABLE
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class Linear:
    """weight: [out, in]; x: [tokens, in]; result: [tokens, out]"""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.packed = can_pack(weight)
        self.bias = bias
        # The hint of rows (None) changes nothing measurable between 1 and 512.
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self.packed else weight

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if not self.packed:
            y = F.linear(x, self.weight, self.bias)
            return y if residual is None else y.add_(residual)
        op = torch.ops.mkldnn._linear_pointwise
        if residual is None:
            return op(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]
        return op.binary(x, residual, self.weight, self.bias, "add")  # type: ignore[no-any-return]
