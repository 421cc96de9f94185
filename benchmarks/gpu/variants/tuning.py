"""Stage: the Triton kernels as they are shipped, beside a fixed list of other settings that fit a multiprocessor of
sm_90 without spilling. A setting is compared with the shipped one's result first; a wrong one is never the best.

The blocks of a row are scattered, as in a server that has run for a while. The result is not used by the engine: the
defaults in engines/reference/kernels are changed by hand, to a setting that is best in all cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import interpreter
from benchmarks.gpu.driving import BLOCK_SIZE, blocks_for, release
from benchmarks.gpu.parts import tables_of
from benchmarks.gpu.replays import Replays
from benchmarks.gpu.setting import Row, Skip, Task
from benchmarks.gpu.variants.choice import over_all
from benchmarks.gpu.variants.trials import Way, tried
from engines.reference.kv_pool import KVPool
from engines.reference.model.config import SHAPES

LAYERS = 4  # in turn: one of them alone is more than the cache holds
PASSES = 4  # over them in a graph
CALLS = 64  # in a graph of a kernel that is short
ROW_S = 4.0
PROMPTS = (8, 1024)  # rows, tokens each

# split, tile, stages, programs per multiprocessor, warps. The list is of those that the compiler fits: 72 KB of shared
# memory a program for three stages of 64, so 3 of them; 37 KB for three of 32, so 5; and so on.
DECODE = (
    (128, 64, 3, 3, 4),
    (512, 64, 3, 3, 4),
    (1024, 64, 3, 3, 4),
    (256, 64, 3, 2, 4),
    (256, 64, 3, 12, 4),  # more than fit: the next one starts wherever one ends
    (256, 64, 3, 64, 4),  # about one for each item
    (256, 64, 2, 3, 4),
    (256, 64, 4, 2, 4),
    (512, 64, 4, 2, 4),
    (256, 64, 3, 2, 8),
    (256, 32, 3, 5, 4),
    (512, 32, 3, 5, 4),
    (256, 32, 4, 4, 4),
    (512, 32, 4, 4, 4),
    (256, 32, 5, 3, 4),
    (512, 128, 3, 1, 8),
)
PREFILL = ((128, 64, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2), (128, 32, 8, 3))  # rows of a tile, tile, warps, stages
NORM_WARPS = (4, 8, 16)
SILU = ((512, 4), (1024, 2), (1024, 8), (2048, 4), (2048, 8), (4096, 8))  # block, warps


def run(task: Task) -> Iterator[Row]:
    if task.setting.device == "cpu" and (problem := interpreter.why_not()):
        raise Skip(problem)
    bench = Bench(task)
    cells = {f"decode attention {rows}x{context}": (rows, context) for rows, context in task.setting.tuning_cells}
    found = {}
    for name, cell in cells.items():
        yield name, found.setdefault(name, bench.row(bench.decode_attention, *cell))
    yield "decode attention", over_all([one for one in found.values() if "tried" in one])
    for rows in sorted({rows for rows, _ in task.setting.tuning_cells}):
        yield f"add norm {rows} rows", bench.row(bench.add_norm, rows)
        yield f"silu {rows} rows", bench.row(bench.silu, rows)
    yield "prefill attention", bench.row(bench.prefill_attention, *((2, 20) if task.setting.quick else PROMPTS))


Other = Callable[[], Way]
Compared = tuple[Way, Mapping[str, Other], int]  # the shipped way, the others, passes


class Bench:
    def __init__(self, task: Task) -> None:
        quick = task.setting.quick
        self._task = task
        self._device = torch.device(task.setting.device)
        # The interpreter computes with the bits of a bfloat16 as if they were an integer.
        self._dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float16
        self._config = replace(SHAPES[task.setting.large], layers=1 if quick else LAYERS)
        self._passes, self._calls = (1, 1) if quick else (PASSES, CALLS)
        self._replays = Replays(self._device)

    @torch.inference_mode()
    def row(self, kernel: Callable[..., Compared], *size: int) -> dict[str, Any]:
        if self._task.left_s() < ROW_S and not self._task.setting.quick:
            return {"skipped": "no time left for it"}
        release(self._device)
        return tried(self._task, self._replays, *kernel(*size))

    def decode_attention(self, rows: int, context: int) -> Compared:
        from engines.reference.kernels.triton_decode import SHIPPED, Tuning, decode_attention, plan_splits
        from engines.reference.kernels.triton_kernels import splits_for

        q, pool, tables = self._queries(rows), self._pool(rows, context + 1), self._tables(rows, context + 1)
        lengths = torch.full((rows,), context + 1, device=self._device)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)

        def way(tuning: Tuning) -> Way:
            splits = splits_for(*tables.shape, pool, q.shape[1], tuning.split)
            plan_splits(splits, lengths, tuning)
            works = [partial(decode_attention, q, kv, tables, lengths, splits, out, tuning) for kv in pool.layers]
            return Way(partial(_afresh, works[0], out), works)

        others = {_words(one): partial(way, one) for one in (Tuning(*numbers) for numbers in DECODE)}
        return way(SHIPPED), others, self._passes

    def prefill_attention(self, rows: int, tokens: int) -> Compared:
        from engines.reference.kernels.triton_prefill import Tiling, prefill_attention

        q, pool, tables = self._queries(rows * tokens), self._pool(rows, tokens), self._tables(rows, tokens)
        lengths = torch.full((rows,), tokens, dtype=torch.int32, device=self._device)
        starts = tokens * torch.arange(rows + 1, dtype=torch.int32, device=self._device)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)

        def way(tiling: Tiling | None) -> Way:
            works = [partial(prefill_attention, q, kv, tables, lengths, starts, out, tiling) for kv in pool.layers]
            return Way(partial(_afresh, works[0], out), works)

        others = {_words(one): partial(way, one) for one in (Tiling(*numbers) for numbers in PREFILL)}
        return way(None), others, self._passes

    def add_norm(self, rows: int) -> Compared:
        from engines.reference.kernels.triton_fused import add_rms_norm, norm_warps

        d = self._config.d_model
        x, residual, weight = self._random(rows, d), self._random(rows, d), torch.ones(d, device=self._device)

        def way(warps: int | None) -> Way:
            def result() -> torch.Tensor:
                summed = residual.clone()
                return torch.cat((add_rms_norm(x, summed, weight, 1e-5, warps), summed))

            return Way(result, [partial(add_rms_norm, x, residual.clone(), weight, 1e-5, warps)])

        return way(None), {f"{n} warps": partial(way, n) for n in NORM_WARPS if n != norm_warps(d)}, self._calls

    def silu(self, rows: int) -> Compared:
        from engines.reference.kernels.triton_fused import silu_mul

        gate_up = self._random(rows, 2 * self._config.ffn)

        def way(*setting: int) -> Way:
            work = partial(silu_mul, gate_up, *setting)
            return Way(work, [work])

        return way(), {f"block {n}, {warps} warps": partial(way, n, warps) for n, warps in SILU}, self._calls

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=self._dtype, device=self._device)

    def _queries(self, tokens: int) -> torch.Tensor:
        """A slice of the fused projection, as in a step."""
        c = self._config
        return self._random(tokens, c.heads + 2 * c.kv_heads, c.head_dim)[:, : c.heads]

    def _pool(self, rows: int, tokens: int) -> KVPool:
        pool = KVPool(self._config, blocks_for(rows, tokens), BLOCK_SIZE, dtype=self._dtype, device=self._device)
        for layer in pool.layers:
            layer.normal_()
        return pool

    def _tables(self, rows: int, tokens: int) -> torch.Tensor:
        scattered = 1 + np.random.default_rng(0).permutation(blocks_for(rows, tokens)).astype(np.int32)
        tables = np.concatenate((np.zeros(1, np.int32), scattered))[tables_of(rows, tokens, BLOCK_SIZE)]
        return torch.from_numpy(tables).to(self._device)


def _afresh(work: Callable[[], object], out: torch.Tensor) -> torch.Tensor:
    """The work's output in `out`, which is cleared first."""
    out.fill_(float("nan"))
    work()
    return out.clone()


def _words(setting: Any) -> str:
    """split 256, tile 64, stages 3, ..."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in vars(setting).items())
