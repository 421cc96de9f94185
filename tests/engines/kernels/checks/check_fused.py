from __future__ import annotations

import pytest
import torch

from engines.reference.kernels import oracles, triton_fused
from tests.engines.kernels.checks.paged import CANARY, DEVICE, DTYPES, SHAPES, assert_close, far_blocks


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 64, 576, 4096])
def test_rms_norm(d: int, dtype: torch.dtype) -> None:
    x, weight = random(3, d, dtype=dtype), random(d, dtype=dtype)
    assert_close(triton_fused.rms_norm(x, weight, 1e-5), oracles.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [64, 576])
def test_embed_takes_what_a_slot_sampled_last(d: int, dtype: torch.dtype) -> None:
    embedding, weight = random(20, d, dtype=dtype), random(d)
    ids = torch.tensor([3, -1, 19, -3, 0], device=DEVICE)
    last_token = torch.tensor([7, 8, 9], device=DEVICE)
    for slot_tokens in (last_token, None):
        own = ids if slot_tokens is not None else ids.abs()
        (x, normed), (expected_x, expected) = (
            ops.embed(own, slot_tokens, embedding, weight, 1e-5) for ops in (triton_fused, oracles)
        )
        assert torch.equal(x, expected_x)
        assert_close(normed, expected)


def test_rms_norm_of_a_view() -> None:
    x, weight = random(6, 128)[::2, :64], random(64)
    assert_close(triton_fused.rms_norm(x, weight, 1e-5), oracles.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_updates_the_residual(dtype: torch.dtype) -> None:
    x, residual, weight = random(5, 576, dtype=dtype), random(5, 576, dtype=dtype) + 1, random(576, dtype=dtype)
    expected_residual = residual.clone()
    expected = oracles.add_rms_norm(x, expected_residual, weight, 1e-6)
    assert_close(triton_fused.add_rms_norm(x, residual, weight, 1e-6), expected)
    assert torch.equal(residual, expected_residual)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 1024, 1536])
def test_silu_mul(width: int, dtype: torch.dtype) -> None:
    gate_up = 3 * random(4, 2 * width, dtype=dtype)
    assert_close(triton_fused.silu_mul(gate_up), oracles.silu_mul(gate_up))


@pytest.mark.parametrize(("group", "head_dim", "dtype"), SHAPES)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("layout", ["head major", "token major"])
def test_rope_and_write(layout: str, norm: bool, head_dim: int, group: int, dtype: torch.dtype) -> None:
    kv_heads, block_size = 2, 16
    slot_mapping = torch.tensor([5 * block_size, 5 * block_size + 1, 3 * block_size + 15, 0, 0], device=DEVICE)
    qkv = random(len(slot_mapping), kv_heads * (group + 2), head_dim, dtype=dtype)
    angles = random(len(slot_mapping), 1, head_dim // 2)
    weights = (random(head_dim, dtype=dtype), random(head_dim, dtype=dtype) + 1) if norm else (None, None)
    pool = torch.full((7, 2, kv_heads, block_size, head_dim), CANARY, dtype=dtype, device=DEVICE)
    if layout == "token major":
        pool = pool.transpose(2, 3).contiguous().transpose(2, 3)
    runs = []
    for ops in (triton_fused, oracles):
        mine, kv = qkv.clone(), pool.clone()
        ops.rope_and_write(mine, kv, slot_mapping, angles.cos(), angles.sin(), *weights, 1e-6)
        runs.append((mine, kv))
    (actual_qkv, actual_kv), (expected_qkv, expected_kv) = runs
    assert_close(actual_qkv, expected_qkv)
    # Two padding tokens wrote the same position of the dummy block; either may be the last.
    assert_close(actual_kv[1:], expected_kv[1:])
    assert bool((actual_kv[0, :, :, 1:] == CANARY).all())
    assert torch.equal(actual_qkv[:, -2 * kv_heads :], qkv[:, -2 * kv_heads :])


def test_it_computes_what_the_model_computes() -> None:
    """The decoder's own steps: norm, rotate_, write_kv."""
    from engines.reference.kernels.torch_kernels import rotate_
    from engines.reference.kv_pool import write_kv

    heads, kv_heads, block_size, head_dim = 4, 2, 16, 64
    slot_mapping = torch.tensor([17, 18, 40], device=DEVICE)
    qkv, angles = random(3, heads + 2 * kv_heads, head_dim), random(3, 1, head_dim // 2)
    kv = torch.zeros(4, 2, kv_heads, block_size, head_dim, device=DEVICE)
    actual_qkv, actual_kv = qkv.clone(), kv.clone()
    triton_fused.rope_and_write(actual_qkv, actual_kv, slot_mapping, angles.cos(), angles.sin(), None, None, 1e-6)
    rotate_(qkv[:, : heads + kv_heads], angles.cos(), angles.sin())
    head = torch.arange(2 * kv_heads, device=DEVICE)
    index = ((slot_mapping // block_size)[:, None] * 2 * kv_heads + head) * block_size + (slot_mapping % block_size)[
        :, None
    ]
    write_kv(kv, qkv[:, heads:], index.flatten())
    assert_close(actual_qkv[:, :heads], qkv[:, :heads])
    assert_close(actual_kv, kv)


def test_a_negative_slot_mapping_writes_nothing() -> None:
    kv = torch.full((3, 2, 1, 16, 64), CANARY, device=DEVICE)
    qkv, angles = random(1, 3, 64), random(1, 32)
    slot_mapping = torch.tensor([-1], device=DEVICE)
    triton_fused.rope_and_write(qkv, kv, slot_mapping, angles.cos(), angles.sin(), None, None, 1e-6)
    assert bool((kv == CANARY).all())


def test_offsets_pass_two_to_the_31() -> None:
    block = (2, 1, 16, 64)
    kv = far_blocks(torch.full(block, CANARY, dtype=torch.float16, device=DEVICE))
    qkv, angles = random(1, 3, 64, dtype=torch.float16), random(1, 32)
    slot_mapping = torch.tensor([3 * 16 + 3], device=DEVICE)
    triton_fused.rope_and_write(qkv, kv, slot_mapping, angles.cos(), angles.sin(), None, None, 1e-6)
    assert torch.equal(kv[3, 1, 0, 3], qkv[0, 2])
    assert bool((kv[3, :, :, 4:] == CANARY).all())
