"""The kernels under the executor and the scheduler: the same requests give the same tokens as on the CPU path."""

from __future__ import annotations

from functools import partial

import pytest

from engines.reference import executor
from engines.reference.kernels import triton_attention, triton_sampling
from engines.reference.model.weights import load_model
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Sampling
from tests.engines.kernels.checks.paged import DEVICE
from tests.engines.reference import stepping

SHAPES = [(5, 3), (40, 2), (1, 4), (17, 5)]  # prompt tokens, output tokens


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["continuous", "static"])
def test_the_tokens_are_those_of_the_cpu_path(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llama = load_model("tiny", dtype="fp32", device=DEVICE.type).llama
    config = SchedulerConfig(
        mode=mode, max_num_seqs=3, max_num_batched_tokens=24, kv_blocks=16, block_size=16, max_model_len=64
    )

    def tokens() -> list[list[int]]:
        samplings = [Sampling(), Sampling(temperature=1.0, seed=1), Sampling(), Sampling(temperature=1.0, top_k=9)]
        requests = [
            stepping.request(i, [(7 * i + j) % 512 for j in range(prompt)], outputs, samplings[i])
            for i, (prompt, outputs) in enumerate(SHAPES)
        ]
        stepping.serve(llama, config, requests)
        return [stepping.outputs_of(one) for one in requests]

    expected = tokens()
    with_triton = partial(executor.TorchExecutor, prepare_attention=triton_attention.prepare)
    monkeypatch.setattr(stepping, "TorchExecutor", with_triton)
    monkeypatch.setattr(executor, "next_tokens", triton_sampling.next_tokens)
    assert tokens() == expected
