"""HostPool: KV blocks of swapped-out requests, in host memory.

    host.block(h): [layers, 2 (K, V), kv_heads, block_size, head_dim], contiguous

One block of all layers is contiguous, so each move is a single copy between device and pinned memory. The copies run
beside the steps; only the gather or scatter on the device delays a step:

    main   step n │ gather ► block is free │ step n+1 ..........│ (wait) scatter │ step m
    side                   └─► copy out to the host block ........... copy in ─┘

All copies share one stream, so reads and writes of a host block keep their order.

Blocks in transit take device memory that the measured largest step does not include: some GiB for a request of 100,000
tokens. So moves are cut into parts, and the host waits for the oldest part where more than `CROSSING_BYTES` would be in
transit.
"""

from __future__ import annotations

import math
from collections import deque

import torch

from engines.reference.device import Device, Event, Stream
from engines.reference.kernels import Upload
from engines.reference.kv_pool import KVPool
from engines.scheduling.plan import IntArray, StepPlan

# torch rounds pinned memory up to a power of two: one piece of 33 GiB would take 64 GiB.
PIECE_BYTES = 1 << 30
CROSSING_BYTES = 1 << 30
CUTS = 4  # parts in transit at most


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
        self._crossing: deque[Event] = (
            deque()
        )  # of the last parts, in order; once passed, the memory of that part is free
        self._per_piece = max(piece_bytes // block_bytes, 1)
        self._pieces = [
            device.pinned((min(self._per_piece, blocks - first), *self._block_shape), pool.layers.dtype)
            for first in range(0, blocks, self._per_piece)
        ]

    def block(self, host: int) -> torch.Tensor:
        return self._pieces[host // self._per_piece][host % self._per_piece]

    def queue_moves(self, plan: StepPlan, upload: Upload) -> None:
        """Queue the plan's moves, out before in. Call it before any other work of the step is queued. upload: copies an
        array to the device, for work queued after it."""
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
        side.wait(_event_behind(main))
        side.uses(leaving)
        for i, host in enumerate(moves[:, 1].tolist()):
            side.copy(self.block(host), leaving[i])
        return _event_behind(side)

    def _move_in(self, moves: IntArray, upload: Upload) -> Event:
        main, side = self._device.main, self._device.side
        arriving = side.empty((len(moves), *self._block_shape), self._pool.layers.dtype)
        for i, host in enumerate(moves[:, 0].tolist()):
            side.copy(arriving[i], self.block(host))
        main.wait(_event_behind(side))
        main.uses(arriving)
        blocks = upload(moves[:, 1].copy())
        main.run(lambda: self._pool.layers.index_copy_(1, blocks, arriving.transpose(0, 1)))
        return _event_behind(main)


def _event_behind(stream: Stream) -> Event:
    event = stream.event()
    event.record()
    return event
