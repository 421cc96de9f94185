"""What benchmarks/gpu_check.py times of these kernels is what a step does with them."""

from __future__ import annotations

import torch

from benchmarks.gpu.parts import DecodeStep
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.kernels.triton_decode import SPLIT
from engines.reference.kernels.triton_kernels import TritonKernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.checkpoint import random_checkpoint
from engines.reference.model.config import SHAPES
from engines.reference.model.llama import Llama
from tests.engines.kernels.checks.paged import DEVICE, assert_close

ROWS, CONTEXT = 2, SPLIT + 20


@torch.inference_mode()
def test_a_step_in_parts() -> None:
    weights = random_checkpoint(SHAPES["tiny"], device=torch.device("cpu"), dtype=torch.float32, seed=0)
    llama = Llama(weights, dtype=torch.float32, device=DEVICE)
    pool = KVPool(llama.config, 40, 16, dtype=torch.float32, device=DEVICE)
    pool.layers.normal_()
    step = DecodeStep(llama, pool, TritonKernels(ROWS), rows=ROWS, context=CONTEXT)
    parts = {part.name: part for part in step.parts()}
    out, q = (parts["attention"].works[1].keywords["out"], parts["attention"].works[1].args[0])
    out.fill_(float("nan"))
    parts["attention"].works[1]()
    assert bool(out.isnan().all())  # rows of several items are not finished yet
    parts["merge"].works[1]()
    assert_close(out, step._prepared()(q, pool.layers[1]))
    for part in parts.values():
        part.works[-1]()
    if DEVICE.type == "cpu":
        other = DecodeStep(llama, pool, TorchKernels(), rows=ROWS, context=CONTEXT)
        for one in (step, other):
            one._last_token.zero_()
            one.whole()
        assert step._sampled.tolist() == other._sampled.tolist()
