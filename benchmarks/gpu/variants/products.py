"""Stage: the matrix products of a decode step at several batch sizes: bandwidth, and whether another call for the
same product is faster. The time of a product of few rows is that of reading the weight.

    shipped          F.linear(x, w): x w^T, with the library chosen by torch
    cublaslt         the same by cuBLASLt
    N rows           x with rows of padding
    weight first     (w x^T)^T
    columns          x v, where v is w^T copied: the weight lies column by column
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.driving import release
from benchmarks.gpu.floor import decode_operators, floor_s, products
from benchmarks.gpu.replays import Replays
from benchmarks.gpu.setting import Row, Task
from benchmarks.gpu.variants.trials import Way, tried
from engines.reference.model.config import SHAPES

UNCACHED_BYTES = 2**29  # of weights in turn: ten times what the cache of such a device holds
CALLS = 32  # in a graph
PADDED = (16, 64, 128)  # rows
ROW_S = 2.0

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (x, weight) -> x w^T


def run(task: Task) -> Iterator[Row]:
    setting = task.setting
    device, shape = torch.device(setting.device), SHAPES[setting.large]
    replays = Replays(device)
    for name, (inner, outer) in products(shape).items():
        release(device)
        copies = 2 if setting.quick else max(UNCACHED_BYTES // (2 * inner * outer), 1)
        weights = [_random((outer, inner), device) for _ in range(copies)]
        for rows in setting.product_rows:
            if task.left_s() < ROW_S and not setting.quick:
                yield f"{name} {rows} rows", {"skipped": "no time left for it"}
                continue
            x = _random((rows, inner), device)
            shipped = _way(F.linear, x, weights)
            found = tried(task, replays, shipped, _others(x, weights), -(-CALLS // copies))
            yield f"{name} {rows} rows", found | _against_floor(task, name, rows, found["us"])


def _random(shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16) * shape[1] ** -0.5


def _way(product: Product, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> Way:
    return Way(lambda: product(x, weights[0]), [partial(product, x, weight) for weight in weights])


def _others(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> Mapping[str, Callable[[], Way]]:
    rows = len(x)
    ways = {"weight first": partial(_way, _weight_first, x, weights)}
    if x.device.type == "cuda":
        ways["cublaslt"] = partial(_way, _by_lt, x, weights)
    for padded in PADDED:
        if rows < padded <= max(16 * rows, 64):
            ways[f"{padded} rows"] = partial(_padded, x, weights, padded)
    ways["columns"] = lambda: _way(torch.mm, x, [weight.t().contiguous() for weight in weights])
    return ways


def _weight_first(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(weight, x.t()).t()


def _by_lt(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    usual = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        return F.linear(x, weight)
    finally:
        torch.backends.cuda.preferred_blas_library(usual)


def _padded(x: torch.Tensor, weights: Sequence[torch.Tensor], rows: int) -> Way:
    wide = F.pad(x, (0, 0, 0, rows - len(x)))
    return Way(lambda: F.linear(wide, weights[0])[: len(x)], [partial(F.linear, wide, weight) for weight in weights])


def _against_floor(task: Task, name: str, rows: int, us: float) -> dict[str, Any]:
    """bytes_per_s: of reading the weight."""
    shape = SHAPES[task.setting.large]
    [operator] = [one for one in decode_operators(shape, rows=rows, context=1, item_bytes=2) if one.name == name]
    rate = {"bytes_per_s": operator.bytes * 1e6 / us, "flop_per_s": operator.flops * 1e6 / us}
    bytes_per_s, flop_per_s = (task.number("ceilings", row, "per_s") for row in ("bandwidth", "matmul"))
    if not bytes_per_s or not flop_per_s:
        return rate | {"floor_us": None, "over_floor": None}
    floor_us = 1e6 * floor_s([operator], bytes_per_s=bytes_per_s, flop_per_s=flop_per_s) / operator.count
    return rate | {"floor_us": floor_us, "over_floor": us / floor_us}
