"""The elementwise parts of a layer, one kernel each: they read and write everything once, and save launches.

Signatures and meaning are those of `oracles`. Arithmetic is float32 from load to store.
"""

from __future__ import annotations

import torch

from engines.reference.kernels._triton import launched, tl, triton, wait

SILU_BLOCK = 1024
SILU_WARPS = 4


def embed(
    ids: torch.Tensor, last_token: torch.Tensor | None, embedding: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the tokens' rows of the embedding, their norm), both [tokens, d].

    ids: int64[tokens]; below 0, where last_token is given: the last token of slot -1 - id. last_token: int64[slots + 1]
    """
    tokens, d = len(ids), embedding.shape[1]
    x = torch.empty(tokens, d, dtype=embedding.dtype, device=embedding.device)
    out = torch.empty_like(x)
    _embed[(tokens,)](
        out, x, ids, last_token, embedding, weight, eps, d, out.stride(0), x.stride(0), embedding.stride(0),
        BLOCK=triton.next_power_of_2(d), num_warps=norm_warps(d),
    )  # fmt: skip
    return x, out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [tokens, d]; weight: [d]"""
    return _norm(x, None, weight, eps)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    warps: int | None = None,
    early: bool = False,
) -> torch.Tensor:
    """residual += x in place, rounded to its type; returns the norm of the rounded sum."""
    return _norm(x, residual, weight, eps, warps, early)


def silu_mul(
    gate_up: torch.Tensor, block: int = SILU_BLOCK, warps: int = SILU_WARPS, early: bool = False
) -> torch.Tensor:
    """[tokens, 2 f] -> [tokens, f]: silu(first half) * second half"""
    tokens, width = gate_up.shape
    out = torch.empty(tokens, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    _silu_mul[(tokens, triton.cdiv(width // 2, block))](
        out, gate_up, width // 2, gate_up.stride(0), BLOCK=block, num_warps=warps, **launched(early)
    )
    return out


def rope_and_write(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    early: bool = False,
) -> None:
    """Norm (where the model has it) and rotate q in place; norm and rotate k, and write k and v into the pool.

    qkv: [tokens, heads + 2 kv_heads, head_dim], its k and v are left as they are;
    kv: [blocks, 2, kv_heads, block_size, head_dim], one layer of the pool, of any strides but the last;
    slot_mapping: [tokens] block * block_size + offset of each token, one in block 0 for padding and dead rows;
    cos, sin: [tokens, head_dim / 2] or [tokens, 1, head_dim / 2]
    """
    tokens, heads, head_dim = qkv.shape
    kv_heads, block_size = kv.shape[2:4]
    group = heads // kv_heads - 2
    _rope_and_write[(kv_heads * tokens,)](
        qkv, kv, slot_mapping, cos, sin, q_norm, k_norm, eps,
        qkv.stride(0), qkv.stride(1), *kv.stride()[:4], cos.stride(0), sin.stride(0),
        KV_HEADS=kv_heads, GROUP=group, G=triton.next_power_of_2(group), HALF=head_dim // 2, BLOCK_SIZE=block_size,
        num_warps=1, **launched(early),
    )  # fmt: skip


def norm_warps(d: int) -> int:
    return min(max(triton.next_power_of_2(d) // 512, 1), 16)


def _norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    warps: int | None = None,
    early: bool = False,
) -> torch.Tensor:
    tokens, d = x.shape
    out = torch.empty_like(x)
    _rms_norm[(tokens,)](
        out, x, residual, weight, eps, d, out.stride(0), x.stride(0), residual.stride(0) if residual is not None else 0,
        BLOCK=triton.next_power_of_2(d), num_warps=warps or norm_warps(d), **launched(early),
    )  # fmt: skip
    return out


@triton.jit
def _embed(
    out, x, ids, last_token, embedding, weight, eps, d, out_row, x_row, embedding_row, BLOCK: tl.constexpr
):  # fmt: skip
    """Program (token): which token it is, its row, and the norm of that."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < d
    gain = tl.load(weight + at, mask=real, other=0.0)  # loads while the row's id is read
    own = tl.load(ids + token)
    if last_token is not None:
        own = tl.where(own < 0, tl.load(last_token + (-1 - own), mask=own < 0, other=0), own)
    row = tl.load(embedding + own * embedding_row + at, mask=real, other=0.0)
    _store_norm(out + token * out_row, row.to(tl.float32), gain, eps, d, at, real)
    tl.store(x + token * x_row + at, row, mask=real)  # first, it would cost triton 3.6 a spilled register on sm_90


@triton.jit
def _rms_norm(
    out, x, residual, weight, eps, d, out_row, x_row, residual_row, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Program (token): the whole row is in registers, so it is read once."""
    wait(EARLY)
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < d
    gain = tl.load(weight + at, mask=real, other=0.0)  # before a store, which it may not pass
    row = tl.load(x + token * x_row + at, mask=real, other=0.0).to(tl.float32)
    if residual is not None:
        row += tl.load(residual + token * residual_row + at, mask=real, other=0.0).to(tl.float32)
        # The norm is of the rounded sum, which the next layer reads: so does the oracle.
        rounded = row.to(residual.dtype.element_ty)
        tl.store(residual + token * residual_row + at, rounded, mask=real)
        row = rounded.to(tl.float32)
    _store_norm(out + token * out_row, row, gain, eps, d, at, real)


@triton.jit
def _store_norm(out, row, gain, eps, d, at, real):
    scale = tl.rsqrt(tl.sum(row * row, 0) / d + eps)
    normed = row * scale * gain.to(tl.float32)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=real)


@triton.jit
def _silu_mul(out, gate_up, width, gate_up_row, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Program (token, block of columns)"""
    wait(EARLY)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < width
    gate = tl.load(gate_up + token * gate_up_row + at, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * gate_up_row + width + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + token * width + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=real)


@triton.jit
def _rope_and_write(
    qkv, kv, slots, cos, sin, q_norm, k_norm, eps,
    qkv_token, qkv_head, kv_block, kv_value, kv_head, kv_offset, cos_token, sin_token,  # strides
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Program (token, kv head), on one axis as the others end at 65,535: the query heads of that KV head, its k and v.

    A head is a pair of halves (a, b), which become (a cos - b sin, b cos + a sin).
    """
    wait(EARLY)
    head = tl.program_id(0) % KV_HEADS
    token = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    half = tl.arange(0, HALF)
    group = tl.arange(0, G)
    real = (group < GROUP)[:, None]
    at_q = qkv + token * qkv_token + ((head * GROUP + group) * qkv_head)[:, None] + half[None, :]
    at_k = qkv + token * qkv_token + (KV_HEADS * GROUP + head) * qkv_head + half
    at_v = at_k + KV_HEADS * qkv_head

    # All loads before the first store: a load is not moved across a store, so a later one would cost a round trip.
    slot = tl.load(slots + token).to(tl.int64)  # before the product: block * stride passes 2**31 in a large pool
    at_cos, at_sin = cos + token * cos_token + half, sin + token * sin_token + half
    # Loaded twice, and for q once a head: spread over the threads by hand they would need barriers.
    q_cos = tl.load(tl.broadcast_to(at_cos[None, :], [G, HALF])).to(tl.float32)
    q_sin = tl.load(tl.broadcast_to(at_sin[None, :], [G, HALF])).to(tl.float32)
    k_cos = tl.load(at_cos).to(tl.float32)
    k_sin = tl.load(at_sin).to(tl.float32)
    q_a = tl.load(at_q, mask=real, other=0.0).to(tl.float32)
    q_b = tl.load(at_q + HALF, mask=real, other=0.0).to(tl.float32)
    k_a = tl.load(at_k).to(tl.float32)
    k_b = tl.load(at_k + HALF).to(tl.float32)
    v_a = tl.load(at_v)
    v_b = tl.load(at_v + HALF)
    if q_norm is not None:
        scale = tl.rsqrt((tl.sum(q_a * q_a, 1) + tl.sum(q_b * q_b, 1)) / (2 * HALF) + eps)[:, None]
        q_a *= scale * tl.load(q_norm + half).to(tl.float32)[None, :]
        q_b *= scale * tl.load(q_norm + HALF + half).to(tl.float32)[None, :]
    if k_norm is not None:
        scale = tl.rsqrt((tl.sum(k_a * k_a, 0) + tl.sum(k_b * k_b, 0)) / (2 * HALF) + eps)
        k_a *= scale * tl.load(k_norm + half).to(tl.float32)
        k_b *= scale * tl.load(k_norm + HALF + half).to(tl.float32)

    tl.store(at_q, (q_a * q_cos - q_b * q_sin).to(qkv.dtype.element_ty), mask=real)
    tl.store(at_q + HALF, (q_b * q_cos + q_a * q_sin).to(qkv.dtype.element_ty), mask=real)
    if slot < 0:  # as an index this would be at the end of the pool, in a request's block
        return
    at_kv = kv + (slot // BLOCK_SIZE) * kv_block + head * kv_head + (slot % BLOCK_SIZE) * kv_offset + half
    tl.store(at_kv, (k_a * k_cos - k_b * k_sin).to(kv.dtype.element_ty))
    tl.store(at_kv + HALF, (k_b * k_cos + k_a * k_sin).to(kv.dtype.element_ty))
    tl.store(at_kv + kv_value, v_a.to(kv.dtype.element_ty))
    tl.store(at_kv + kv_value + HALF, v_b.to(kv.dtype.element_ty))
