"""The kernels under the executor and the scheduler: the same requests give the same tokens as on the CPU path."""

from __future__ import annotations

import pytest
import torch

from engines.loop import VirtualClock
from engines.reference.device import open_device
from engines.reference.executor import TorchExecutor
from engines.reference.kernels.triton_kernels import TritonKernels
from engines.reference.model.checkpoint import random_checkpoint
from engines.reference.model.config import SHAPES
from engines.reference.model.llama import Llama
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Request, Sampling
from tests.engines.kernels.checks.paged import DEVICE
from tests.engines.reference import stepping
from tests.engines.reference.fake_device import FakeDevice

LENGTHS = [(5, 3), (40, 2), (1, 4), (17, 5)]  # prompt tokens, output tokens
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=1), Sampling(), Sampling(temperature=1.0, top_k=9)]


def requests() -> list[Request]:
    return [
        stepping.request(i, [(7 * i + j) % 512 for j in range(prompt)], outputs, SAMPLINGS[i])
        for i, (prompt, outputs) in enumerate(LENGTHS)
    ]


def tiny(device: torch.device) -> Llama:
    """The same weights on any device: drawn on the CPU."""
    weights = random_checkpoint(SHAPES["tiny"], device=torch.device("cpu"), dtype=torch.float32, seed=0)
    return Llama(weights, dtype=torch.float32, device=device)


def launches_early() -> bool:
    return DEVICE.type == "cuda" and torch.cuda.get_device_capability() >= (9, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "graphs", "depth"), [("continuous", False, 0), ("continuous", True, 1), ("static", True, 1)]
)
@pytest.mark.parametrize("early", [False, *([True] if launches_early() else [])])
def test_the_tokens_are_those_of_the_cpu_path(mode: str, graphs: bool, depth: int, early: bool) -> None:
    """Captured and replayed too: on a GPU by CUDA, elsewhere by a device that copies late."""
    config = SchedulerConfig(
        mode=mode, max_num_seqs=4, max_num_batched_tokens=24, kv_blocks=16, block_size=16, max_model_len=64
    )
    expected = requests()
    stepping.serve(tiny(torch.device("cpu")), config, expected)
    llama, clock = tiny(DEVICE), VirtualClock()
    executor = TorchExecutor(
        llama,
        stepping.pool_for(llama, config.kv_blocks, config.block_size),
        max_num_seqs=config.max_num_seqs,
        clock=clock,
        kernels=TritonKernels(config.max_num_seqs, early=early),
        device=open_device(DEVICE, clock) if DEVICE.type == "cuda" or not depth else FakeDevice(clock, reruns=True),
        graph_sizes=(1, 5) if graphs else (),  # no step has five rows, so most are padded
        mixed_graph_sizes=(16, 24) if graphs else (),
        max_blocks=4,
    )
    mine = requests()
    run = stepping.drive(executor, config, mine, depth=depth)
    assert [stepping.outputs_of(one) for one in mine] == [stepping.outputs_of(one) for one in expected]
    assert run.ledger["bucket_padding_tokens"].any() == graphs
