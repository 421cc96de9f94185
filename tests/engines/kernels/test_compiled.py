"""Every variant of every kernel, compiled ahead of time for sm_80 and sm_90: nothing spills, everything fits, loads are
wide, products are matrix instructions. What this cannot show is speed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("TRITON_INTERPRET=1: nothing is compiled", allow_module_level=True)

from engines.reference.kernels import triton_decode, triton_fused, triton_prefill, triton_sampling
from engines.reference.kernels.triton_kernels import TritonKernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.config import SHAPES
from tests.engines.kernels.aot import SHARED_LIMIT, Compiled, compiled, recorded

pytestmark = pytest.mark.slow  # the compiler takes its time

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
CPU = torch.device("cpu")
ROWS = 8
# The other known shapes have the kernels of one of these.
MODELS = {name: SHAPES[name] for name in ("tiny", "smollm2-135m", "qwen3-0.6b", "llama-3.1-8b", "llama-3.1-70b")}


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        yield folder


def int32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def decode(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype, rows: int = ROWS, early: bool = False) -> None:
    splits = triton_decode.DecodeSplits(rows, 4 * rows, kv_heads * group, head_dim, CPU)
    q = torch.zeros(rows, kv_heads * group, head_dim, dtype=dtype)
    kv = torch.zeros(2, 2, kv_heads, 16, head_dim, dtype=dtype)
    triton_decode.plan_splits(splits, int32(rows))
    tuning = replace(triton_decode.SHIPPED, early=early)
    triton_decode.decode_attention(q, kv, int32(rows, rows), int32(rows), splits, tuning=tuning)


def captured(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype) -> None:
    """As a graph launches it: on columns of one matrix of int64."""
    config = replace(SHAPES["tiny"], layers=1, heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim)
    pool = KVPool(config, 40, 16, dtype=dtype, device=CPU)
    inputs = torch.zeros(11, ROWS, dtype=torch.int64)
    step = TritonKernels(ROWS).static_decode(int32(ROWS, 16), inputs[3], pool, config.heads)
    step(ROWS)(torch.zeros(ROWS, config.heads + 2 * kv_heads, head_dim, dtype=dtype)[:, : config.heads], pool.layers[0])


def prefill(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype, rows: int = ROWS) -> None:
    q = torch.zeros(64, kv_heads * group, head_dim, dtype=dtype)
    kv = torch.zeros(2, 2, kv_heads, 16, head_dim, dtype=dtype)
    triton_prefill.prefill_attention(q, kv, int32(rows, rows), int32(rows), int32(rows + 1))


def mixed(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype) -> None:
    """The chunks of a step as a graph has them: q is part of qkv, and the tables are those of all slots."""
    qkv = torch.zeros(64, kv_heads * (group + 2), head_dim, dtype=dtype)
    kv = torch.zeros(2, 2, kv_heads, 16, head_dim, dtype=dtype)
    triton_prefill.prefill_attention(
        qkv[:, : kv_heads * group], kv, int32(2 * ROWS, 16)[ROWS:], int32(ROWS), int32(ROWS + 1)
    )


def rope(kv_heads: int, group: int, head_dim: int, dtype: torch.dtype, norm: bool = False, early: bool = False) -> None:
    qkv = torch.zeros(ROWS, kv_heads * (group + 2), head_dim, dtype=dtype)
    kv = torch.zeros(2, 2, kv_heads, 16, head_dim, dtype=dtype)
    cos, sin = torch.zeros(ROWS, 1, head_dim, dtype=dtype).chunk(2, dim=-1)
    weight = torch.zeros(head_dim) if norm else None  # norms stay float32 in every model
    slot_mapping = torch.zeros(ROWS, dtype=torch.int64)
    triton_fused.rope_and_write(qkv, kv, slot_mapping, cos, sin, weight, weight, 1e-6, early)


def norm(d: int, dtype: torch.dtype, residual: bool, early: bool = False) -> None:
    x, weight = torch.zeros(ROWS, d, dtype=dtype), torch.zeros(d)
    if residual:
        triton_fused.add_rms_norm(x, x.clone(), weight, 1e-6, early=early)
    else:
        triton_fused.rms_norm(x, weight, 1e-6)


def embed(d: int, dtype: torch.dtype) -> None:
    ids = torch.zeros(ROWS, dtype=torch.int64)
    triton_fused.embed(ids, ids, torch.zeros(4, d, dtype=dtype), torch.zeros(d), 1e-6)


def silu(ffn: int, dtype: torch.dtype, early: bool = False) -> None:
    triton_fused.silu_mul(torch.zeros(ROWS, 2 * ffn, dtype=dtype), early=early)


def sample(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.zeros(ROWS, vocab, dtype=dtype)
    triton_sampling.sample(logits, torch.zeros(5, ROWS, dtype=torch.int64))


# The product of a tile of 128 rows.
OF_CHUNKS = {80: "mma.sync.aligned.m16n8k16", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
Variant = tuple[Any, str, Callable[[], None]]


def attention_variants() -> Iterator[tuple[str, bool, Variant]]:
    """(name, has 16-bit products, what to record) for the kernels that attend"""
    models = {name: (c.kv_heads, c.heads // c.kv_heads, c.head_dim, BF16) for name, c in MODELS.items()}
    groups = {
        f"group {group}, head {head_dim}, {str(dtype)[6:]}": (2, group, head_dim, dtype)
        for group in (1, 3, 4, 7, 8)
        for head_dim in (64, 128)
        for dtype in ((BF16, FP16, FP32) if group == 4 else (BF16,))
    }
    # An argument of value 1 is a constant to Triton, and another program.
    alone = {"one row": (2, 4, 64, BF16, 1)}
    for name, shape in {**models, **groups, **alone}.items():
        yield f"decode, {name}", shape[3] != FP32, (triton_decode, "_attend", partial(decode, *shape))
        if name not in alone:
            yield f"captured, {name}", shape[3] != FP32, (triton_decode, "_attend", partial(captured, *shape[:4]))
        yield f"prefill, {name}", shape[3] != FP32, (triton_prefill, "_attend_chunks", partial(prefill, *shape))
    captured_too = models["llama-3.1-8b"]
    yield "mixed, llama-3.1-8b", True, (triton_prefill, "_attend_chunks", partial(mixed, *captured_too))


def other_variants() -> Iterator[tuple[str, bool, Variant]]:
    """(name, loads 16 bytes at a time, what to record) for the rest"""
    for name, c in MODELS.items():
        shape = (c.kv_heads, c.heads // c.kv_heads, c.head_dim)
        for dtype in (BF16, FP32) if name == "qwen3-0.6b" else (BF16,):
            label = f"{name}, {str(dtype)[6:]}"
            wide = name != "tiny"
            yield f"norm, {label}", wide, (triton_fused, "_rms_norm", partial(norm, c.d_model, dtype, False))
            yield f"add norm, {label}", wide, (triton_fused, "_rms_norm", partial(norm, c.d_model, dtype, True))
            yield f"embed, {label}", wide, (triton_fused, "_embed", partial(embed, c.d_model, dtype))
            yield f"silu, {label}", True, (triton_fused, "_silu_mul", partial(silu, c.ffn, dtype))
            # One warp for one token: narrow loads, but whole lines of memory.
            rotate = partial(rope, *shape, dtype, c.qk_norm)
            yield f"rope, {label}", False, (triton_fused, "_rope_and_write", rotate)
            yield f"sample, {label}", True, (triton_sampling, "_sample", partial(sample, c.vocab, dtype))
            yield f"merge, {label}", True, (triton_decode, "_merge", partial(decode, *shape, dtype))
    yield "plan", False, (triton_decode, "_plan", partial(decode, 2, 4, 64, BF16))
    yield "plan, captured", False, (triton_decode, "_plan", partial(captured, 2, 4, 64, BF16))


def on_each(variants: Iterator[tuple[str, bool, Variant]]) -> list[Any]:
    """On sm_100 the kernels of one model, elsewhere all."""
    return [
        pytest.param(capability, expected, variant, id=f"{name}-{capability}")
        for name, expected, variant in variants
        for capability in (80, 90, 100)
        if capability < 100 or "llama-3.1-8b" in name
    ]


def build(variant: Variant, capability: int, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    monkeypatch.setattr(triton_prefill, "_has_wgmma", lambda device: capability >= 90)
    result = compiled(recorded(*variant), capability, scratch)
    assert result.stack_bytes == 0
    assert result.shared_bytes <= SHARED_LIMIT[capability]
    assert result.registers * result.threads <= 65_536
    return result


@pytest.mark.parametrize(("capability", "products", "variant"), on_each(attention_variants()))
def test_attention(
    capability: int, products: bool, variant: Variant, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = build(variant, capability, scratch, monkeypatch)
    constants = recorded(*variant).arguments
    tile_bytes = 2 * constants["TILE"] * constants["D"] * constants["q"].element_size()  # K and V
    # Loads where pages are looked up inside the pipeline would leave one tile in flight: see triton_decode.
    assert result.shared_bytes >= 2 * tile_bytes
    if tile_bytes >= 2 * 16 * result.threads:
        assert "cp.async.cg.shared.global" in result.ptx  # 16 bytes a thread
    if products:
        instruction = OF_CHUNKS[capability] if variant[1] == "_attend_chunks" else "mma.sync.aligned.m16n8k16"
        assert instruction in result.ptx


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-0.6b"])
@pytest.mark.parametrize("kernel", ["_rope_and_write", "_rms_norm", "_embed"])
def test_all_loads_are_on_their_way_before_the_first_store(
    kernel: str, name: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No load passes a store, and each that waits for another is time: these kernels do little else."""
    c = SHAPES[name]
    calls = {
        "_rope_and_write": partial(rope, c.kv_heads, c.heads // c.kv_heads, c.head_dim, BF16, c.qk_norm),
        "_rms_norm": partial(norm, c.d_model, BF16, True),
        "_embed": partial(embed, c.d_model, BF16),
    }
    result = build((triton_fused, kernel, calls[kernel]), 90, scratch, monkeypatch)
    _, first_store, behind = result.ptx.partition("st.global")
    assert first_store
    assert "ld.global" not in behind
    if kernel == "_rope_and_write":
        assert result.shared_bytes == 0


@pytest.mark.parametrize("head_dim", [64, 128])
def test_partials_are_merged_without_a_barrier(head_dim: int, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = build((triton_decode, "_merge", partial(decode, 8, 4, head_dim, BF16)), 90, scratch, monkeypatch)
    assert result.shared_bytes == 0
    assert "bar.sync" not in result.ptx


def test_the_likeliest_token_is_looked_for_with_several_loads_in_flight(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row is one program, and has the memory's latency to wait for with each round: rounds of four blocks."""
    result = build((triton_sampling, "_sample", partial(sample, 128_256, BF16)), 90, scratch, monkeypatch)
    rounds = [len(re.findall(r"ld\.global\S*\.v4\.b32", block)) for block in re.split(r"\$L__BB\w+:", result.ptx)]
    assert max(rounds) >= 2 * 4


@pytest.mark.parametrize(("capability", "wide", "variant"), on_each(other_variants()))
def test_the_rest(
    capability: int, wide: bool, variant: Variant, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = build(variant, capability, scratch, monkeypatch)
    if wide:
        assert re.search(r"ld\.global\S*\.v4\.b32", result.ptx)
    assert not re.search(r"^\s*call", result.ptx, re.MULTILINE)  # no slow path of a library function


def early_variants() -> Iterator[Any]:
    c = SHAPES["llama-3.1-8b"]
    heads = (c.kv_heads, c.heads // c.kv_heads, c.head_dim, BF16)
    rotate, attend = partial(rope, *heads, early=True), partial(decode, *heads, early=True)
    for module, kernel, call in (
        (triton_fused, "_rope_and_write", rotate),
        (triton_decode, "_attend", attend),
        (triton_decode, "_merge", attend),
        (triton_fused, "_rms_norm", partial(norm, c.d_model, BF16, True, early=True)),
        (triton_fused, "_silu_mul", partial(silu, c.ffn, BF16, early=True)),
    ):
        yield pytest.param((module, kernel, call), id=kernel)


@pytest.mark.parametrize("variant", [*early_variants()])
def test_a_kernel_that_is_launched_early_waits_before_it_touches_memory(
    variant: Variant, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ptx = build(variant, 90, scratch, monkeypatch).ptx
    before, _, after = ptx.partition("griddepcontrol.wait")
    assert after.lstrip("; \n\t").find("griddepcontrol.launch_dependents") >= 0
    assert not re.search(r"(ld|st|cp\.async)\S*\.global", before)
    assert not re.search(r"^\s*@?%?\w* *(bra|ret)", before, re.MULTILINE)  # no program ends or turns off before
    assert recorded(*variant).options["launch_pdl"]


def test_the_programs_of_a_multiprocessor_fit_side_by_side(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROGRAMS_PER_SM assumes an amount of shared memory and registers; it was chosen for sm_90."""
    c = SHAPES["llama-3.1-8b"]
    variant = (triton_decode, "_attend", partial(decode, c.kv_heads, c.heads // c.kv_heads, c.head_dim, BF16))
    result = build(variant, 90, scratch, monkeypatch)
    # The system keeps 1 KiB of shared memory for each program, of 228 KiB.
    assert (result.shared_bytes + 1024) * triton_decode.PROGRAMS_PER_SM <= SHARED_LIMIT[90] + 1024
    assert result.registers * result.threads * triton_decode.PROGRAMS_PER_SM <= 65_536


@pytest.mark.parametrize(("kv_heads", "multiprocessors"), [(8, 132), (3, 132), (1, 132), (8, 108), (8, 1)])
def test_no_program_waits_for_the_end_of_another(kv_heads: int, multiprocessors: int) -> None:
    """Each has an equal share of the items: the ones beyond what fits side by side would take as long once more."""
    most = triton_decode.PROGRAMS_PER_SM * multiprocessors
    programs = kv_heads * triton_decode._resident(most, kv_heads)
    assert most - kv_heads < programs <= max(most, kv_heads)
