"""Swap on the torch runtime: bit-equal KV, and the tokens of an undisturbed run."""

from __future__ import annotations

import numpy as np
import torch

from engines.reference.kv_pool import KVPool
from engines.reference.model.config import SHAPES
from engines.reference.swap import HostPool
from engines.scheduling.plan import StepPlan


def _moves(out: list[tuple[int, int]], back: list[tuple[int, int]]) -> StepPlan:
    nothing = np.empty(0, dtype=np.int64)
    return StepPlan(
        step=1,
        now_ns=0,
        requests=[],
        slots=nothing,
        starts=nothing,
        counts=nothing,
        padding=nothing,
        samples=nothing.astype(bool),
        dead_slots=nothing,
        dead_lengths=nothing,
        dead_tokens=0,
        tables=np.zeros((1, 1), dtype=np.int32),
        swap_out=np.array(out, dtype=np.int64).reshape(-1, 2),
        swap_in=np.array(back, dtype=np.int64).reshape(-1, 2),
    )


def test_blocks_come_back_bit_equal_elsewhere_and_touch_no_other() -> None:
    """transformers 06252198: the copy went to a temporary, so swap silently restored nothing."""
    pool = KVPool(SHAPES["tiny"], 6, 4, dtype=torch.bfloat16, device=torch.device("cpu"))
    pool.layers.copy_(torch.randn(pool.layers.shape))
    before = pool.layers.clone()
    host = HostPool(pool, 3)
    host.carry_out(_moves([(2, 1), (5, 0)], []), pool)
    assert torch.equal(pool.layers, before)
    pool.layers[:, [2, 5]] = torch.nan  # somebody else writes there
    host.carry_out(_moves([], [(0, 3), (1, 5)]), pool)
    assert torch.equal(pool.layers[:, 3], before[:, 5])
    assert torch.equal(pool.layers[:, 5], before[:, 2])
    assert torch.equal(pool.layers[:, [0, 1, 4, 6]], before[:, [0, 1, 4, 6]])


def test_a_plan_may_hand_a_leaving_block_to_one_that_arrives() -> None:
    pool = KVPool(SHAPES["tiny"], 4, 4, dtype=torch.float32, device=torch.device("cpu"))
    pool.layers.copy_(torch.randn(pool.layers.shape))
    before = pool.layers.clone()
    host = HostPool(pool, 2)
    host.carry_out(_moves([(1, 0)], []), pool)
    host.carry_out(_moves([(2, 1)], [(0, 2)]), pool)
    assert torch.equal(pool.layers[:, 2], before[:, 1])
    host.carry_out(_moves([], [(1, 3)]), pool)
    assert torch.equal(pool.layers[:, 3], before[:, 2])
