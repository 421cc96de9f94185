"""The executor really launches what a plan says, and writes nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engines.loop import VirtualClock
from engines.reference.executor import TorchExecutor
from engines.reference.kernels import oracles
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.kv_capacity import blocks_for_host
from engines.reference.model.config import SHAPES
from engines.reference.model.llama import Llama, Tokens
from engines.reference.model.weights import load_model
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Sampling
from tests.engines.reference.stepping import (
    Dead,
    Row,
    Tables,
    executor_for,
    outputs_of,
    pool_for,
    request,
    serve,
    step_plan,
)

PROMPT = [7, 301, 45, 99, 12, 260, 33]
CANARY = 1234.5


@pytest.fixture(scope="module")
def llama() -> Llama:
    return load_model("tiny", dtype="fp32", device="cpu").llama


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each forward pass."""
    seen: list[int] = []
    forward = Llama.forward

    def counting(self: Llama, tokens: Tokens, *more: Any) -> torch.Tensor:
        seen.append(len(tokens.ids))
        return forward(self, tokens, *more)

    monkeypatch.setattr(Llama, "forward", counting)
    return seen


def test_a_run_that_broke_off_leaves_the_next_one_nothing(llama: Llama) -> None:
    executor = executor_for(llama, pool_for(llama))
    executor.submit(step_plan([Row(request(0, PROMPT, 1), 0, 0, 7)], Tables({0: [1]}).array()))
    executor.restart()
    executor.submit(step_plan([Row(request(1, PROMPT[:3], 1), 0, 0, 3)], Tables({0: [2]}).array(), step=9))
    assert executor.collect().step == 9


def _first_token(llama: Llama) -> int:
    executor = executor_for(llama, pool_for(llama))
    executor.submit(step_plan([Row(request(0, PROMPT, 1), 0, 0, 7)], Tables({0: [1]}).array()))
    tokens = executor.collect().tokens
    assert tokens is not None
    assert tokens.dtype == np.int32
    return int(tokens[0])


def test_padding_and_dead_rows_are_launched_and_change_nothing(llama: Llama, launched: list[int]) -> None:
    expected = _first_token(llama)
    pool = pool_for(llama)
    executor = executor_for(llama, pool)
    pool.layers[:, 9] = 0.5  # what the finished request in slot 3 left
    pool.layers[:, 20:] = CANARY
    before = pool.layers.clone()
    plan = step_plan(
        [
            Row(request(0, PROMPT, 1), 2, 0, 7, padding=4),
            Row(request(1, PROMPT, 1), 1, 0, 0, padding=11, samples=False),
        ],
        Tables({2: [5], 3: [9]}).array(),
        dead=[Dead(slot=3, length=13), Dead(slot=4, length=0)],
        dead_tokens=2,
    )
    executor.submit(plan)
    assert executor.collect().tokens.tolist() == [expected]
    assert launched[-1] == plan.launched_tokens == 7 + 4 + 11 + 2 * 2
    changed = (pool.layers != before).flatten(2).any(dim=2).any(dim=0)
    assert changed.nonzero().flatten().tolist() == [0, 5]  # the dummy, and the request's own block
    assert torch.equal(pool.layers[:, 5, :, :, 7:], before[:, 5, :, :, 7:])  # only the positions it computed


def test_a_step_of_padding_alone_gives_no_token(llama: Llama, launched: list[int]) -> None:
    executor = executor_for(llama, pool_for(llama))
    executor.submit(step_plan([Row(request(0, PROMPT, 1), 0, 0, 0, padding=5, samples=False)], Tables().array()))
    assert executor.collect().tokens.tolist() == []
    assert launched == [5]


def test_tables_are_copied_when_a_step_is_submitted(llama: Llama) -> None:
    expected = _first_token(llama)
    executor = executor_for(llama, pool_for(llama))
    tables = Tables({0: [4]}).array()
    executor.submit(step_plan([Row(request(0, PROMPT, 1), 0, 0, 7)], tables))
    tables[:] = 0
    assert executor.collect().tokens.tolist() == [expected]


def test_a_chunk_that_does_not_end_the_prompt_samples_nothing(llama: Llama) -> None:
    expected = _first_token(llama)
    executor = executor_for(llama, pool_for(llama))
    tables, one = Tables({0: [4]}).array(), request(0, PROMPT, 1)
    for start, count, samples in ((0, 3, False), (3, 1, False), (4, 3, True)):
        executor.submit(step_plan([Row(one, 0, start, count, samples=samples)], tables))
        assert executor.collect().tokens.tolist() == ([expected] if samples else [])


def test_tokens_come_in_row_order_whatever_the_order_inside_the_step(llama: Llama) -> None:
    executor = executor_for(llama, pool_for(llama))
    prompts = [PROMPT, PROMPT[:1], PROMPT[:4], PROMPT[:1], PROMPT[:6]]
    rows = [Row(request(i, prompt, 1), i, 0, len(prompt)) for i, prompt in enumerate(prompts)]
    tables = Tables({i: [i + 1] for i in range(5)}).array()
    executor.submit(step_plan(rows, tables))
    together = executor.collect().tokens.tolist()
    alone = []
    for row in rows:
        executor.submit(step_plan([row], tables))
        alone += executor.collect().tokens.tolist()
    assert together == alone


def test_a_block_left_full_of_nan_does_not_reach_its_next_owner(llama: Llama) -> None:
    expected = _first_token(llama)
    pool = pool_for(llama)
    pool.layers.fill_(float("nan"))
    executor = executor_for(llama, pool)
    executor.submit(step_plan([Row(request(0, PROMPT, 1), 0, 0, 7)], Tables({0: [1]}).array()))
    assert executor.collect().tokens.tolist() == [expected]


def test_times_are_the_clocks_and_busy_lies_within(llama: Llama) -> None:
    executor = executor_for(llama, pool_for(llama))
    executor.submit(step_plan([Row(request(0, PROMPT, 1), 0, 0, 7)], Tables({0: [1]}).array(), step=5))
    result = executor.collect()
    assert result.step == 5
    assert 0 <= result.busy_ns <= result.end_ns - result.start_ns


CONFIGS = {
    "continuous": SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=6),
    "chunked": SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=6, max_num_batched_tokens=7),
    "preempting": SchedulerConfig(kv_blocks=9, max_model_len=128, max_num_seqs=6, watermark=0.0),
    "padded": SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=4, mode="static"),
    "held": SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=4, mode="static", static="compact-held"),
}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, top_p=0.95)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_the_same_under_every_policy(llama: Llama, name: str, sampling: Sampling, depth: int) -> None:
    def requests() -> list:
        rng = np.random.default_rng(2)
        shapes = [(3, 20), (17, 5), (30, 12), (1, 25), (9, 1), (16, 16), (2, 18)]
        kind = (sampling.temperature, sampling.top_k, sampling.top_p)
        return [
            request(i, rng.integers(3, 512, p).tolist(), o, Sampling(*kind, seed=i)) for i, (p, o) in enumerate(shapes)
        ]

    alone = requests()
    for one in alone:
        serve(llama, SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=1), [one])
    together = requests()
    serve(llama, CONFIGS[name], together, depth=depth)
    if name == "preempting":
        assert any(one.preemptions for one in together)
    assert [outputs_of(one) for one in together] == [outputs_of(one) for one in alone]


def test_the_oracle_kernel_can_take_the_fast_ones_place(llama: Llama) -> None:
    kernels = TorchKernels(oracles.prepare)
    executor = TorchExecutor(llama, pool_for(llama), max_num_seqs=2, clock=VirtualClock(), kernels=kernels)
    executor.submit(step_plan([Row(request(0, PROMPT, 1), 0, 0, 7, padding=2)], Tables({0: [1]}).array()))
    assert executor.collect().tokens.tolist() == [_first_token(llama)]


def test_default_blocks_cover_every_slot_if_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(free_bytes: int) -> int:
        monkeypatch.setattr("engines.reference.kv_capacity.free_bytes", lambda device: free_bytes)
        return blocks_for_host(
            SHAPES["smollm2-135m"],
            16,
            max_num_seqs=32,
            max_model_len=1000,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )

    assert blocks(2**40) == 32 * 63
    assert blocks(2**30) == 2**28 // (16 * 23_040)
    assert blocks(0) == 63  # one sequence of full length, at least
