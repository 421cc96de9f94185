"""Stage: what this device can do, measured: bytes moved per second, and FLOPs per second of a matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu.driving import synchronize
from benchmarks.gpu.setting import Row, Task

GIBIBYTE = 2**30


def run(task: Task) -> Iterator[Row]:
    device = torch.device(task.setting.device)
    # Far beyond what a cache holds.
    yield "bandwidth", bandwidth(2**24 if task.setting.quick else 4 * GIBIBYTE, device)
    n = 256 if task.setting.quick else 8192
    a, b = (torch.randn(n, n, device=device).to(torch.bfloat16) for _ in range(2))
    yield "matmul", {"per_s": 2 * n**3 / seconds(lambda: a @ b, device), "n": n, "dtype": "bf16"}


def bandwidth(size: int, device: torch.device) -> dict[str, float]:
    """Bytes read and written per second. A decode step mostly reads; the better of the two is the stricter ceiling."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy = 2 * size / seconds(lambda: target.copy_(source), device)
    read = size / seconds(source.sum, device)
    return {"per_s": max(copy, read), "copy_per_s": copy, "read_per_s": read, "bytes": size}


def seconds(work: Callable[[], object], device: torch.device, rounds: int = 5, repeats: int = 4) -> float:
    """The best of some rounds: others on the machine, or a clock that still rises, only ever add."""
    for _ in range(3):
        work()
    best = float("inf")
    for _ in range(rounds):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize(device)
        best = min(best, (time.perf_counter() - began) / repeats)
    return best
