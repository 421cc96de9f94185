"""Stage: every kernel that a step on this device uses, against its oracle in float32 on the CPU, in bf16 and fp16.

Inputs are rounded to the type first, so what is compared is the arithmetic. `error` is the largest of
|kernel - oracle| / (1 + |oracle|). Positions of no row hold NaN and must not be read; blocks of no row
must not be written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.setting import Row, Task
from engines.reference import sampling
from engines.reference.graphs import table_columns
from engines.reference.kernels import Kernels, oracles
from engines.reference.kernels.choose import choose_kernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.config import SHAPES, ModelConfig
from engines.reference.model.linear import Linear
from engines.reference.model.weights import DTYPES
from engines.scheduling.request import Sampling

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
BLOCK_SIZE = 16
EPS = 1e-5
ROWS = 16
# Around a position, a block, a tile and a split.
DECODE_LENGTHS = [1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 700]
CHUNKS = [(37, 37), (300, 129), (65, 2), (16, 16)]  # (KV length, its last queries)


def run(task: Task) -> Iterator[Row]:
    device = torch.device(task.setting.device)
    for name in task.setting.shapes:
        for dtype_name in task.setting.dtypes:
            bench = Bench(SHAPES[name], DTYPES[dtype_name], device)
            for kernel, check in CHECKS.items():
                yield f"{kernel}, {name} {dtype_name}", check(bench)


@dataclass(frozen=True, eq=False)
class Bench:
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    attention: str = "auto"

    @property
    def kernels(self) -> Kernels:
        return choose_kernels(self.attention, self.config, self.dtype, self.device, ROWS)

    def random(self, *shape: int, seed: int = 0) -> torch.Tensor:
        """On the device, of this type."""
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
        return values.to(self.device, self.dtype)

    def pool(self, blocks: int) -> KVPool:
        """One layer of this shape."""
        return KVPool(replace(self.config, layers=1), blocks, BLOCK_SIZE, dtype=self.dtype, device=self.device)

    def compared(self, *pairs: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
        """pairs: (kernel's, oracle's)"""
        errors = [((a.cpu().float() - b.float()).abs() / (1 + b.float().abs())).max() for a, b in pairs]
        error = float(torch.stack(errors).max())  # NaN if one of them is
        ok = error <= TOLERANCE[self.dtype]
        return {"error": error if math.isfinite(error) else None, "ok": ok}  # JSON has no NaN


def attention(bench: Bench, lengths: list[int], counts: list[int]) -> dict[str, Any]:
    c = bench.config
    needed = [-(-length // BLOCK_SIZE) for length in lengths]
    pool = bench.pool(sum(needed) + 1)
    layer = pool.layers[0]
    layer.fill_(float("nan"))
    free = iter(np.random.default_rng(0).permutation(sum(needed)) + 1)
    tables = np.zeros((len(lengths), max(needed) + 1), dtype=np.int32)
    for row, (length, number) in enumerate(zip(lengths, needed, strict=True)):
        for i in range(number):
            block = tables[row, i] = next(free)
            filled = min(length - i * BLOCK_SIZE, BLOCK_SIZE)
            layer[int(block), :, :, :filled] = bench.random(2, c.kv_heads, filled, c.head_dim, seed=int(block))
    columns = (tables, np.array(lengths), np.concatenate(([0], np.cumsum(counts))))
    q = bench.random(sum(counts), c.heads, c.head_dim)
    expected = oracles.paged_attention(q.cpu().float(), layer.cpu().float(), *columns)
    attend = bench.kernels.prepare(*columns, layer, lambda array: torch.from_numpy(array).to(bench.device))
    results = [attend(q, layer)]
    if max(counts) == 1 and bench.kernels.captures:  # what a graph holds
        table = torch.zeros(len(lengths), table_columns(max(needed) + 1), dtype=torch.int32, device=bench.device)
        table[:, : tables.shape[1]] = torch.from_numpy(tables)
        static = bench.kernels.static_decode(table, torch.from_numpy(columns[1]).to(bench.device), pool, c.heads)
        results.append(static(len(lengths))(q, layer))
    return bench.compared(*((one, expected) for one in results)) | {"paths": len(results)}


def decode_attention(bench: Bench) -> dict[str, Any]:
    return attention(bench, DECODE_LENGTHS, [1] * len(DECODE_LENGTHS))


def prefill_attention(bench: Bench) -> dict[str, Any]:
    return attention(bench, [length for length, _ in CHUNKS], [count for _, count in CHUNKS])


def mixed_attention(bench: Bench) -> dict[str, Any]:
    return attention(bench, [257, 40, 65], [1, 1, 33])


def embed(bench: Bench) -> dict[str, Any]:
    """Of tokens that the host knows, and of those that were sampled last in a slot."""
    embedding, weight = bench.random(100, bench.config.d_model), bench.random(bench.config.d_model, seed=1).float()
    ids = torch.tensor([3, -1, 99, -3, 0], device=bench.device)
    last_token = torch.tensor([7, 8, 9], device=bench.device)
    expected = oracles.embed(ids.cpu(), last_token.cpu(), embedding.cpu().float(), weight.cpu(), EPS)
    return bench.compared(*zip(bench.kernels.embed(ids, last_token, embedding, weight, EPS), expected, strict=True))


def rms_norm(bench: Bench) -> dict[str, Any]:
    x, weight = bench.random(ROWS, bench.config.d_model), bench.random(bench.config.d_model, seed=1).float()
    expected = oracles.rms_norm(x.cpu().float(), weight.cpu(), EPS)
    return bench.compared((bench.kernels.rms_norm(x, weight, EPS), expected))


def project_and_norm(bench: Bench) -> dict[str, Any]:
    d = bench.config.d_model
    x, y, weight = bench.random(ROWS, d), bench.random(ROWS, 64, seed=1), bench.random(d, seed=2).float()
    matrix = bench.random(d, 64, seed=3) / 8
    expected_x = x.cpu().float() + y.cpu().float() @ matrix.cpu().float().T
    expected = oracles.rms_norm(expected_x, weight.cpu(), EPS)
    got_x, got = bench.kernels.project_and_norm(Linear(matrix), y, x, weight, EPS)
    return bench.compared((got_x, expected_x), (got, expected))


def silu_mul(bench: Bench) -> dict[str, Any]:
    gate_up = 3 * bench.random(ROWS, 2 * bench.config.ffn)
    expected = oracles.silu_mul(gate_up.cpu().float())
    return bench.compared((bench.kernels.silu_mul(gate_up.clone()), expected))


def rope_and_write(bench: Bench) -> dict[str, Any]:
    """Also: blocks that no token is written to are unchanged."""
    c, kernels = bench.config, bench.kernels
    pool = bench.pool(7)
    pool.layers.fill_(7.0)
    slot_mapping = torch.tensor([5 * BLOCK_SIZE, 5 * BLOCK_SIZE + 1, 3 * BLOCK_SIZE + 15, 0], device=bench.device)
    qkv = bench.random(len(slot_mapping), c.heads + 2 * c.kv_heads, c.head_dim)
    angles = bench.random(len(slot_mapping), 1, c.head_dim // 2, seed=1).float()
    cos, sin = angles.cos().to(bench.dtype), angles.sin().to(bench.dtype)
    norms = [bench.random(c.head_dim, seed=seed).float() if c.qk_norm else None for seed in (2, 3)]
    expected_qkv, expected_kv = qkv.cpu().float(), pool.layers[0].cpu().float()
    host_norms = [norm if norm is None else norm.cpu() for norm in norms]
    oracles.rope_and_write(expected_qkv, expected_kv, slot_mapping.cpu(), cos.cpu(), sin.cpu(), *host_norms, EPS)
    kernels.rope_and_write(qkv, pool.layers[0], kernels.kv_index(slot_mapping, pool), cos, sin, *norms, EPS)
    numbers = bench.compared((qkv[:, : c.heads], expected_qkv[:, : c.heads]), (pool.layers[0], expected_kv))
    spared = [block for block in range(8) if block not in (0, 3, 5)]
    canaries = bool((pool.layers[0, spared] == 7.0).all())
    return numbers | {"ok": numbers["ok"] and canaries, "canaries": canaries}


def sample(bench: Bench) -> dict[str, Any]:
    """Tokens equal the oracle's; a drawn one may differ where the random number is at the border of two tokens."""
    modes = [
        Sampling(),
        Sampling(temperature=1.0, seed=3),
        Sampling(temperature=1.0, top_k=5, seed=4),
        Sampling(temperature=0.8, top_p=0.7, seed=5),
    ] * 4
    logits = 3 * bench.random(len(modes), bench.config.vocab)
    columns = torch.from_numpy(sampling.columns(modes, range(len(modes))))
    expected = sampling.sample(logits.cpu(), columns, torch.empty(len(modes), dtype=torch.int64))
    out = torch.empty(len(modes), dtype=torch.int64, device=bench.device)
    equal = bench.kernels.sample(logits, columns.to(bench.device), out).cpu() == expected
    greedy = [mode.temperature == 0 for mode in modes]
    differ = int((~equal).sum())
    return {"differ": differ, "of": len(modes), "ok": bool(equal[greedy].all()) and differ <= 1}


CHECKS = {
    "decode attention": decode_attention,
    "prefill attention": prefill_attention,
    "mixed attention": mixed_attention,
    "rope and KV write": rope_and_write,
    "embedding": embed,
    "rms norm": rms_norm,
    "project, add, norm": project_and_norm,
    "silu times up": silu_mul,
    "sampling": sample,
}
