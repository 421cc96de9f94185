"""Triton compiles a kernel anew for arguments of value 1, divisible by 16 or of another type. All of that has to happen
in the warm-up: a compilation during a run would be in a TTFT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")

import triton

from engines.loop import VirtualClock
from engines.reference.device import CpuDevice
from engines.reference.executor import TorchExecutor
from engines.reference.graphs import bucket_sizes
from engines.reference.kernels import triton_decode, triton_fused, triton_prefill, triton_sampling
from engines.reference.kernels.triton_kernels import TritonKernels
from engines.reference.model.weights import load_model
from engines.reference.synthetic_steps import synthetic_step, warm_up_steps
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Sampling
from tests.engines.reference import stepping
from tests.engines.reference.fake_device import FakeDevice

Program = tuple[Any, ...]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Program]]:
    """Every program that Triton would have compiled. The kernels do nothing, as the tokens are not checked."""
    seen: set[Program] = set()

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: object) -> Any:
            return self.launch

        def launch(self, *args: Any, **kwargs: Any) -> None:
            given = {**dict(zip(self.kernel.arg_names, args, strict=False)), **kwargs}
            if self.kernel.__name__ == "_sample":
                given["out"].zero_()  # a token that exists
            parts = [special(given.pop(p.name), p.is_constexpr, p.do_not_specialize) for p in self.kernel.params]
            seen.add((self.kernel.__name__, *parts, *given.items()))  # what is left are options, like num_warps

    for module in (triton_decode, triton_fused, triton_prefill, triton_sampling):
        for name, value in list(vars(module).items()):
            if isinstance(value, triton.runtime.JITFunction):
                monkeypatch.setattr(module, name, Recorder(value))
    return seen


def special(value: Any, is_constexpr: bool, is_plain: bool) -> Any:
    """What of an argument is part of the program."""
    if is_constexpr:
        return value
    if isinstance(value, torch.Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return "int" if is_plain else (value == 1, value % 16 == 0)
    return type(value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the recorder needs the CPU's tensors")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_after_the_warm_up_nothing_is_compiled(programs: set[Program], graphs: bool) -> None:
    llama, clock = load_model("tiny", dtype="fp32", device="cpu").llama, VirtualClock()
    config = SchedulerConfig(kv_blocks=200, max_model_len=128, max_num_seqs=20, max_num_batched_tokens=64)
    executor = TorchExecutor(
        llama,
        stepping.pool_for(llama, config.kv_blocks, config.block_size),
        max_num_seqs=config.max_num_seqs,
        clock=clock,
        kernels=TritonKernels(config.max_num_seqs),
        device=FakeDevice(clock) if graphs else CpuDevice(clock),
        graph_sizes=bucket_sizes(config.max_num_seqs) if graphs else (),
        mixed_graph_sizes=(16, 48) if graphs else (),  # and up to 64 eager
        max_blocks=8,
    )
    for counts in warm_up_steps(config.max_num_seqs, config.max_num_batched_tokens):
        executor.submit(synthetic_step(counts))
        executor.collect()
    known = set(programs)
    assert {name for name, *_ in known} == {
        "_plan", "_attend", "_merge", "_attend_chunks", "_embed", "_rms_norm", "_silu_mul", "_rope_and_write", "_sample"
    }  # fmt: skip
    rng = np.random.default_rng(0)
    for settings in (config, replace(config, mode="static")):
        requests = [
            stepping.request(i, [3] * int(prompt), int(output), Sampling(temperature=float(i % 2)))
            for i, (prompt, output) in enumerate(rng.integers(1, (90, 20), (40, 2)))
        ]
        stepping.drive(executor, settings, requests, depth=int(graphs))
    assert programs == known
