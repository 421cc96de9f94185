"""An attention for transformers' continuous batching where flash-attn is not installed: torch's own FlashAttention.

By default transformers takes `paged|sdpa` there: every query against the KV of all requests, under a mask, and no CUDA
graphs. A fair comparison needs better, and torch has the missing kernel: FlashAttention for
sequences of different lengths. This registers it, as transformers' AttentionInterface requires.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

NAME = "paged|varlen"  # a name with "flash" in it would make transformers look for the package
TOLERANCE = 0.03  # |wrong - right| / (1 + |right|) in bf16, as in the stage `kernels`


def use_varlen(model: Any, attend: Any = None) -> str:
    """Make a transformers model attend with this. Returns why not, or "". attend: a stand-in for the kernel."""
    from transformers import AttentionInterface
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    if is_flash_attn_3_available() or is_flash_attn_2_available():
        return "flash-attn is installed"
    if "paged|sdpa" not in AttentionInterface().valid_keys():
        return "this transformers takes no paged attention but its own"
    device = next(model.parameters()).device
    if attend is None and device.type != "cuda":
        return "the kernel is a GPU's"
    if problem := disagreement(attend or flash, device):
        return f"torch's FlashAttention {problem}"
    AttentionInterface.register(NAME, paged(attend or flash))
    model.set_attn_implementation(NAME)
    return ""


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts_q: torch.Tensor,
    starts_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    scale: float,
) -> torch.Tensor:
    """q: [queries, heads, d]; k, v: [positions, kv heads, d]; starts: int32[sequences + 1]. The last query of a
    sequence sees all of its positions, the one before it all but the last, and so on."""
    causal, with_mask = True, False
    return torch.ops.aten._flash_attention_forward(
        q, k, v, starts_q, starts_k, longest_q, longest_k, 0.0, causal, with_mask, scale=scale
    )[0]


def paged(attend: Any) -> Any:
    """Wraps an attention over sequences into one that transformers can register."""

    def forward(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, **given: Any
    ) -> tuple[torch.Tensor, None]:
        """query, key, value: [1, heads, tokens, d], the new tokens of all requests. Returns [tokens, heads, d]."""
        k, v = given["cache"].update(
            key_states=key,
            value_states=value,
            layer_idx=module.layer_idx,
            read_index=given["read_index"],
            write_index=given["write_index"],
        )
        q = query.transpose(1, 2).squeeze(0)
        starts = (given[name].to(torch.int32) for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
        longest = (given["max_seqlen_q"], given["max_seqlen_k"])
        return attend(q.contiguous(), k.contiguous(), v.contiguous(), *starts, *longest, module.scaling), None

    return forward


def disagreement(attend: Any, device: torch.device) -> str:
    """The error of it on this device, or "": on a prompt, the rest of one, a decode step and a padding row."""
    queries, positions = [5, 3, 1, 0], [5, 70, 33, 0]
    torch.manual_seed(0)
    q = torch.randn(sum(queries), 8, 64, dtype=torch.bfloat16, device=device)
    k, v = torch.randn(2, sum(positions), 2, 64, dtype=torch.bfloat16, device=device)
    starts_q, starts_k = (
        F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32).to(device) for lengths in (queries, positions)
    )
    try:
        got = attend(q, k, v, starts_q, starts_k, max(queries), max(positions), 0.125)
    except (RuntimeError, NotImplementedError) as problem:
        return f"fails: {' '.join(str(problem).split())[:200]}"
    right = one_by_one(q.float(), k.float(), v.float(), starts_q, starts_k, 0, 0, 0.125)
    error = float(((got.float() - right).abs() / (1 + right.abs())).max())
    return "" if error <= TOLERANCE else f"is off by {error:.3g}"


def one_by_one(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts_q: torch.Tensor,
    starts_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    scale: float,
) -> torch.Tensor:
    """The same as `flash`, a sequence at a time."""
    out = torch.zeros_like(q)
    bounds_q, bounds_k = starts_q.tolist(), starts_k.tolist()
    for i in range(len(bounds_q) - 1):
        rows, positions = slice(bounds_q[i], bounds_q[i + 1]), slice(bounds_k[i], bounds_k[i + 1])
        n, length = rows.stop - rows.start, positions.stop - positions.start
        seen = torch.ones(n, length, dtype=torch.bool, device=q.device).tril(length - n)
        one = (x.transpose(0, 1) for x in (q[rows], k[positions], v[positions]))
        out[rows] = F.scaled_dot_product_attention(*one, attn_mask=seen, scale=scale, enable_gqa=True).transpose(0, 1)
    return out
