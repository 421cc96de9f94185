"""Stage: attention by FlashInfer, where it is installed, against the oracle of our own. Its first calls compile it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch

from benchmarks.gpu.kernels import CHECKS, Bench
from benchmarks.gpu.setting import Row, Skip, Task
from engines.reference.model.config import SHAPES


def run(task: Task) -> Iterator[Row]:
    setting = task.setting
    if setting.device != "cuda":
        raise Skip("its kernels run on a GPU")
    if find_spec("flashinfer") is None:
        raise Skip("flashinfer is not installed")
    bench = Bench(SHAPES[setting.small], torch.bfloat16, torch.device(setting.device), attention="flashinfer")
    for kernel, check in CHECKS.items():
        if kernel.endswith("attention"):
            yield f"{kernel}, {setting.small} bf16", check(bench)
