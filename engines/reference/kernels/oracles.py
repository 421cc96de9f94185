"""The kernels in plain torch, written to be read: the others are checked against them.

`paged_attention` computes one row at a time, in float32. The rest is what `triton_fused` does in one kernel each.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from engines.reference.kernels import Attend, Upload
from engines.scheduling.plan import IntArray, Tables


def embed(
    ids: torch.Tensor, last_token: torch.Tensor | None, embedding: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the tokens' rows of the embedding, their norm), both [tokens, d].

    ids: int64[tokens]; below 0, where last_token is given: the last token of slot -1 - id. last_token: int64[slots + 1]
    """
    if last_token is not None:
        ids = torch.where(ids < 0, last_token[(-1 - ids).clamp(min=0)], ids)
    x = embedding[ids]
    return x, rms_norm(x, weight, eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [tokens, d]; weight: [d]. Computed in float32, rounded once."""
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """residual += x in place, rounded to its type; returns the norm of the rounded sum."""
    residual.add_(x)
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[tokens, 2 f] -> [tokens, f]: silu(first half) * second half"""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def rope_and_write(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> None:
    """Norm (where the model has it) and rotate q in place; norm and rotate k, and write k and v into the pool.

    qkv: [tokens, heads + 2 kv_heads, head_dim], its k and v are left as they are;
    kv: [blocks, 2, kv_heads, block_size, head_dim], one layer of the pool, of any strides but the last;
    slot_mapping: [tokens] block * block_size + offset of each token, one in block 0 for padding and dead rows;
    cos, sin: [tokens, head_dim / 2] or [tokens, 1, head_dim / 2]
    """
    kv_heads, block_size, head_dim = kv.shape[2:]
    q, k, v = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    cos, sin = (table.float().view(-1, 1, head_dim // 2) for table in (cos, sin))

    def rotated(heads: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        heads = heads.float() if norm is None else F.rms_norm(heads.float(), norm.shape, norm.float(), eps)
        a, b = heads.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(qkv.dtype)

    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    kv[blocks, 0, :, offsets] = rotated(k, k_norm)
    kv[blocks, 1, :, offsets] = v
    q.copy_(rotated(q, q_norm))


def paged_attention(
    q: torch.Tensor, kv: torch.Tensor, tables: Tables, lengths: IntArray, starts: IntArray
) -> torch.Tensor:
    """q: [queries, heads, head_dim]; kv: [blocks, 2, kv_heads, block_size, head_dim], one layer of the pool;
    tables: [rows, blocks]; lengths: [rows], each >= 1; starts: [rows + 1]. Returns the shape of q.
    """
    out = torch.empty(q.shape, dtype=q.dtype)
    group = q.shape[1] // kv.shape[2]
    for row, length in enumerate(lengths.tolist()):
        first, last = int(starts[row]), int(starts[row + 1])
        blocks = torch.from_numpy(tables[row]).long()
        keys, values = (kv[blocks, which].transpose(1, 2).flatten(0, 1)[:length].float() for which in (0, 1))
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[first:last].float(), keys) * q.shape[-1] ** -0.5
        position = (length - (last - first) + torch.arange(last - first)).clamp(min=0)
        scores.masked_fill_(torch.arange(length) > position[:, None], float("-inf"))
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values).to(q.dtype)
    return out


def prepare(
    tables: Tables, lengths: IntArray, starts: IntArray, kv: torch.Tensor, upload: Upload = torch.from_numpy
) -> Attend:
    return partial(paged_attention, tables=tables, lengths=lengths, starts=starts)
