"""How many blocks fit in a GPU: the arithmetic, and the step that is measured."""

from __future__ import annotations

import weakref

import pytest
import torch

from engines.reference.kv_capacity import GpuMemory, free_bytes
from engines.reference.model.weights import load_model
from engines.reference.synthetic_steps import largest_step, synthetic_step, warm_up_steps
from tests.engines.reference.stepping import executor_for, pool_for
from workloads.errors import CbbenchError

GIB = 2**30


def test_blocks_are_a_share_of_what_weights_and_the_largest_step_leave() -> None:
    """141 GiB with 16 of weights: 125 free; 5 for a step; 0.9 of 120 is 108 GiB of blocks of 2 MiB, one the dummy."""
    assert GpuMemory(free_bytes=125 * GIB, step_bytes=5 * GIB).blocks(0.9, 2 * 2**20) == 108 * 512 - 1
    assert GpuMemory(free_bytes=100, step_bytes=0).blocks(1.0, 10) == 9
    assert GpuMemory(free_bytes=29, step_bytes=0).blocks(1.0, 10) == 1


def test_what_an_earlier_run_held_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep's next engine is made when the last one's pool is still in torch's cache, or in a cycle of objects."""

    class Pool: ...

    pool = Pool()
    pool.itself = pool  # type: ignore[attr-defined]
    held = weakref.ref(pool)
    cached = [True]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: cached.__setitem__(0, held() is not None))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 if cached[0] else 70, 80))
    del pool
    assert free_bytes(torch.device("cuda")) == 70


@pytest.mark.parametrize(("free", "step", "share"), [(10 * GIB, 11 * GIB, 0.9), (10 * GIB, 9 * GIB, 1e-4), (0, 0, 1)])
def test_no_room_for_a_block_is_one_line_that_says_why(free: int, step: int, share: float) -> None:
    with pytest.raises(CbbenchError, match=r"^gpu_memory_utilization: .* GiB are free .* `max_num_batched_tokens`"):
        GpuMemory(free, step).blocks(share, 2 * 2**20)


@pytest.mark.parametrize(
    ("slots", "budget", "context", "counts"),
    [
        (4, 100, 1000, [97, 1, 1, 1]),
        (4, 100, 40, [40, 40, 19, 1]),
        (4, 100, 10, [10, 10, 10, 10]),
        (3, 3, 1000, [1, 1, 1]),
        (1, 512, 128, [128]),
    ],
)
def test_the_largest_step_spends_the_budget_on_every_slot(
    slots: int, budget: int, context: int, counts: list[int]
) -> None:
    assert largest_step(slots, budget, context) == counts


def test_a_gpu_meets_prompts_of_every_size_before_the_clock_runs() -> None:
    usual = [[100], [1, 99], [1, 1, 1], [1]]
    assert warm_up_steps(3, 100) == usual
    assert warm_up_steps(3, 100, every_size=True) == [[100], [16], [32], [64], *usual[1:]]
    assert warm_up_steps(1, 2, every_size=True) == [[2], [1], [1]]


def test_a_synthetic_step_writes_to_the_dummy_block_only() -> None:
    llama = load_model("tiny", dtype="fp32", device="cpu").llama
    pool = pool_for(llama, 1)
    executor = executor_for(llama, pool)
    executor.submit(synthetic_step([30, 1, 2]))
    assert len(executor.collect().tokens) == 3
    assert not torch.any(pool.layers[:, 1])
