"""HostPool: KV blocks of swapped-out requests, in host memory.

    host.block(h): [layers, 2 (K, V), kv_heads, block_size, head_dim], contiguous

One block of all layers is one piece, so that on CUDA each move is a single copy between the device and pinned memory.
The copies run beside the steps; only a gather or a scatter on the device stands in a step's way:

    main   step n │ gather ► block is free │ step n+1 ..........│ (wait) scatter │ step m
    side                   └─► copy out to the host block ........... copy in ─┘

All copies share one stream, so a host block is read after it was written, and written again after it was read.

What is between pool and host takes memory that no measured step has: a request of 100,000 tokens would be some GiB at
once. So moves are cut, and the host waits for the oldest where more than `CROSSING_BYTES` would be on their way.
"""

from __future__ import annotations

import math
from collections import deque

import torch

from engines.reference.device import Device, Event, Stream
from engines.reference.kernels import Upload
from engines.reference.kv_pool import KVPool
from engines.scheduling.plan import IntArray, StepPlan

# torch takes pinned memory in powers of two: 33 GiB of one piece would be 64.
PIECE_BYTES = 1 << 30
CROSSING_BYTES = 1 << 30
CUTS = 4  # of them


class HostPool:
    def __init__(
        self,
        pool: KVPool,
        blocks: int,
        device: Device,
        piece_bytes: int = PIECE_BYTES,
        crossing_bytes: int = CROSSING_BYTES,
    ) -> None:
        layers, _, *block_shape = pool.layers.shape
        self._pool = pool
        self._device = device
        self._block_shape = (layers, *block_shape)
        block_bytes = math.prod(self._block_shape) * pool.layers.element_size()
        self._cut = max(crossing_bytes // CUTS // block_bytes, 1)  # blocks
        self._crossing: deque[Event] = deque()  # of the last cuts, in order: behind it, its memory is free again
        self._per_piece = max(piece_bytes // block_bytes, 1)
        self._pieces = [
            device.pinned((min(self._per_piece, blocks - first), *self._block_shape), pool.layers.dtype)
            for first in range(0, blocks, self._per_piece)
        ]

    def block(self, host: int) -> torch.Tensor:
        return self._pieces[host // self._per_piece][host % self._per_piece]

    def carry_out(self, plan: StepPlan, upload: Upload) -> None:
        """Queue the plan's moves: out, then in. Call before anything of the step is queued. upload: an array's copy on
        the device, there before what is queued next."""
        for move, moves in ((self._move_out, plan.swap_out), (self._move_in, plan.swap_in)):
            for first in range(0, len(moves), self._cut):
                if len(self._crossing) == CUTS:
                    self._crossing.popleft().wait()
                self._crossing.append(move(moves[first : first + self._cut], upload))

    def _move_out(self, moves: IntArray, upload: Upload) -> Event:
        main, side = self._device.main, self._device.side
        blocks = upload(moves[:, 0].copy())
        leaving = main.empty((len(moves), *self._block_shape), self._pool.layers.dtype)
        main.run(lambda: leaving.copy_(self._pool.layers.index_select(1, blocks).transpose(0, 1)))
        side.wait(_mark(main))
        side.uses(leaving)
        for i, host in enumerate(moves[:, 1].tolist()):
            side.copy(self.block(host), leaving[i])
        return _mark(side)

    def _move_in(self, moves: IntArray, upload: Upload) -> Event:
        main, side = self._device.main, self._device.side
        arriving = side.empty((len(moves), *self._block_shape), self._pool.layers.dtype)
        for i, host in enumerate(moves[:, 0].tolist()):
            side.copy(arriving[i], self.block(host))
        main.wait(_mark(side))
        main.uses(arriving)
        blocks = upload(moves[:, 1].copy())
        main.run(lambda: self._pool.layers.index_copy_(1, blocks, arriving.transpose(0, 1)))
        return _mark(main)


def _mark(stream: Stream) -> Event:
    event = stream.event()
    event.record()
    return event
