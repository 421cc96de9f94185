"""Swap on the torch runtime: bit-equal KV, and the tokens of an undisturbed run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engines.loop import VirtualClock
from engines.reference.device import CpuDevice
from engines.reference.kv_pool import KVPool
from engines.reference.model.config import SHAPES
from engines.reference.staging import Staging
from engines.reference.swap import HostPool
from engines.scheduling.plan import StepPlan
from tests.engines.reference.fake_device import FakeDevice, FakeStream


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


@pytest.mark.parametrize("eager_side", [False, True], ids=["copies late", "copies early"])
def test_a_block_is_reused_only_behind_its_copy(eager_side: bool) -> None:
    """On a device that runs ahead of nothing, and beside steps that write wherever a plan lets them."""
    device = FakeDevice(VirtualClock(), eager_side=eager_side)
    pool = KVPool(SHAPES["tiny"], 6, 4, dtype=torch.float32, device=torch.device("cpu"))
    pool.layers.copy_(torch.randn(pool.layers.shape))
    before = pool.layers.clone()
    host = HostPool(pool, 2, device)
    staging = Staging(device, 2)

    def step(out: list[tuple[int, int]], back: list[tuple[int, int]], written: list[int]) -> None:
        with staging.step() as send:
            host.queue_moves(_moves(out, back), send.now)
        device.main.run(lambda: pool.layers.index_fill_(1, torch.tensor(written, dtype=torch.int64), float("nan")))

    step([(2, 1), (5, 0)], [], written=[2, 5])
    step([], [(0, 2)], written=[4])  # the host block is free again
    step([(1, 0)], [(1, 5)], written=[1])  # and taken by another
    step([], [(0, 4)], written=[])
    device.main.synchronize()
    device.side.synchronize()
    for block, was in ((2, 5), (5, 2), (4, 1), (3, 3), (6, 6)):
        assert torch.equal(pool.layers[:, block], before[:, was])


def test_blocks_come_back_bit_equal_elsewhere_and_touch_no_other() -> None:
    """transformers 06252198: the copy went to a temporary, so swap silently restored nothing."""
    pool = KVPool(SHAPES["tiny"], 6, 4, dtype=torch.bfloat16, device=torch.device("cpu"))
    pool.layers.copy_(torch.randn(pool.layers.shape))
    before = pool.layers.clone()
    host = HostPool(pool, 3, CpuDevice(VirtualClock()))
    host.queue_moves(_moves([(2, 1), (5, 0)], []), torch.from_numpy)
    assert torch.equal(pool.layers, before)
    pool.layers[:, [2, 5]] = torch.nan  # another request writes there
    host.queue_moves(_moves([], [(0, 3), (1, 5)]), torch.from_numpy)
    assert torch.equal(pool.layers[:, 3], before[:, 5])
    assert torch.equal(pool.layers[:, 5], before[:, 2])
    assert torch.equal(pool.layers[:, [0, 1, 4, 6]], before[:, [0, 1, 4, 6]])


def test_a_plan_may_hand_a_leaving_block_to_one_that_arrives() -> None:
    pool = KVPool(SHAPES["tiny"], 4, 4, dtype=torch.float32, device=torch.device("cpu"))
    pool.layers.copy_(torch.randn(pool.layers.shape))
    before = pool.layers.clone()
    host = HostPool(pool, 2, CpuDevice(VirtualClock()))
    host.queue_moves(_moves([(1, 0)], []), torch.from_numpy)
    host.queue_moves(_moves([(2, 1)], [(0, 2)]), torch.from_numpy)
    assert torch.equal(pool.layers[:, 2], before[:, 1])
    host.queue_moves(_moves([], [(1, 3)]), torch.from_numpy)
    assert torch.equal(pool.layers[:, 3], before[:, 2])


def test_pinned_memory_is_taken_in_pieces_that_waste_little() -> None:
    """torch rounds each piece up to a power of two: 33 blocks at once would take the room of 64."""
    pool = KVPool(SHAPES["tiny"], 33, 4, dtype=torch.float32, device=torch.device("cpu"))
    pool.layers.copy_(torch.randn(pool.layers.shape))
    before = pool.layers.clone()
    device = FakeDevice(VirtualClock())
    block_bytes = before[:, 0].nbytes
    host = HostPool(pool, 33, device, piece_bytes=4 * block_bytes)
    assert device.pinned_bytes == 33 * block_bytes
    upload = torch.from_numpy
    host.queue_moves(_moves([(1 + i, i) for i in range(33)], []), upload)
    host.queue_moves(_moves([], [(i, 33 - i) for i in range(33)]), upload)
    device.main.synchronize()
    device.side.synchronize()
    assert torch.equal(pool.layers[:, 1:], before[:, 1:].flip(1))


def test_no_more_is_on_its_way_than_there_is_room_for() -> None:
    """A long request's blocks, out and in again, on a device that copies nothing before it has to."""
    pool = KVPool(SHAPES["tiny"], 33, 4, dtype=torch.float32, device=torch.device("cpu"))
    pool.layers.copy_(torch.randn(pool.layers.shape))
    before = pool.layers.clone()
    device = FakeDevice(VirtualClock())
    host = HostPool(pool, 33, device, crossing_bytes=8 * before[:, 0].nbytes)
    crossing: list[None] = []  # a block each, that no copy has been made of
    most: list[int] = []

    class Counting(FakeStream):
        def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            most.append(shape[0] + len(crossing))
            return super().empty(shape, dtype)

        def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
            super().copy(target, source)
            crossing.append(None)
            self.run(crossing.pop)

    device.main, device.side = Counting(device), Counting(device)
    host.queue_moves(_moves([(1 + i, i) for i in range(33)], []), torch.from_numpy)
    assert max(most) == 8
    host.queue_moves(_moves([], [(i, 33 - i) for i in range(33)]), torch.from_numpy)
    device.main.synchronize()
    device.side.synchronize()
    assert torch.equal(pool.layers[:, 1:], before[:, 1:].flip(1))
