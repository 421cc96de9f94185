"""TorchKernels: a step in plain torch, on any device; the fast path on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from engines.reference import sampling
from engines.reference.batch import fed
from engines.reference.kernels import Attend, MixedRows, PrepareAttention, cpu
from engines.reference.kv_pool import KVPool, write_kv
from engines.reference.model.linear import Linear


class TorchKernels:
    captures = False

    def __init__(self, prepare: PrepareAttention = cpu.prepare, *, because: str = "") -> None:
        """because: why these were chosen, where others were to be expected; for run.json."""
        self.prepare = prepare
        self.name = "torch: batched matmul over gathered blocks" + (f"; {because}" if because else "")

    def static_decode(
        self, tables: torch.Tensor, lengths: torch.Tensor, pool: KVPool, heads: int
    ) -> Callable[[int], Attend]:
        raise NotImplementedError("rows are grouped by their lengths, on the host")

    def static_mixed(self, rows: int, blocks: int, pool: KVPool, heads: int) -> Callable[[MixedRows], Attend]:
        raise NotImplementedError("rows are grouped by their lengths, on the host")

    def kv_index(self, slot_mapping: torch.Tensor, pool: KVPool) -> torch.Tensor:
        """Where the vectors of each token go in a layer seen as [vectors, head_dim]: int64[tokens * 2 * kv_heads]"""
        size, heads = pool.block_size, 2 * pool.kv_heads
        # (block * heads + head) * size + offset, in few calls: in a tiny model's step, calls are most of the time.
        first = torch.add(slot_mapping, torch.div(slot_mapping, size, rounding_mode="floor"), alpha=(heads - 1) * size)
        return (first[:, None] + torch.arange(0, heads * size, size, device=slot_mapping.device)).view(-1)

    def embed(
        self,
        ids: torch.Tensor,
        last_token: torch.Tensor | None,
        embedding: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.embedding(ids if last_token is None else fed(ids, last_token), embedding)
        return x, self.rms_norm(x, weight, eps)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        # By way of float32: on a CPU torch norms 512 rows of bfloat16 twelve times slower than of float32.
        return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)

    def project_and_norm(
        self, linear: Linear, y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = linear(y, residual=x)
        return x, self.rms_norm(x, weight, eps)

    def rope_and_write(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor,
        kv_index: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> None:
        kv_heads = kv.shape[2]
        heads = qkv.shape[1] - 2 * kv_heads
        if q_norm is not None and k_norm is not None:
            q, k = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
            q.copy_(self.rms_norm(q, q_norm, eps))
            k.copy_(self.rms_norm(k, k_norm, eps))
        rotate_(qkv[:, : heads + kv_heads], cos, sin)
        write_kv(kv, qkv[:, heads:], kv_index)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def sample(self, logits: torch.Tensor, columns: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return sampling.sample(logits, columns, out)


def rotate_(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """RoPE in place on [tokens, n, head_dim]: the halves (a, b) of a head become (a cos - b sin, b cos + a sin)."""
    a, b = heads.chunk(2, dim=-1)
    a_sin = a * sin
    a.mul_(cos).addcmul_(b, sin, value=-1.0)
    b.mul_(cos).add_(a_sin)
