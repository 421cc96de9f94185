"""Staging: the host's columns on their way to the device, through a ring of pinned buffers.

    step     n          n+1        n+2  ── waits for the event of step n ──┐
    buffer   0          1          0                                       │
             write ► copy ► event  ────────────────────────────────────────┘

A copy out of pinned memory does not wait, so the host may come round to a buffer that the device has not read yet: the
event behind the last copy out of a buffer says when it may be written again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engines.reference.device import Device, Event

ALIGNMENT_BYTES = 64
FIRST_BYTES = 1 << 20  # a buffer grows to what a step needs


class Send(Protocol):
    """An `Upload` that can also be told where."""

    def __call__(self, array: NDArray[Any], into: torch.Tensor | None = None) -> torch.Tensor:
        """A copy of the array on the device, for what is queued from now on; `into`: where, if that is to be chosen."""
        ...


class Staging:
    """`with staging.step() as send:` around all uploads of a step."""

    def __init__(self, device: Device, buffers: int) -> None:
        self._device = device
        self._buffers = [_Buffer(device) for _ in range(buffers if device.overlaps else 0)]
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[Send]:
        if not self._buffers:
            yield _at_once
            return
        buffer = self._buffers[self._steps % len(self._buffers)]
        self._steps += 1
        buffer.begin()
        try:
            yield buffer.send
        finally:
            buffer.end()


def _at_once(array: NDArray[Any], into: torch.Tensor | None = None) -> torch.Tensor:
    """Host and device are the same memory."""
    tensor = torch.from_numpy(array)
    return tensor if into is None else into.copy_(tensor)


class _Buffer:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._read: Event = device.main.event()  # behind the last copy out of it
        self._memory = device.pinned((FIRST_BYTES,), torch.uint8)
        self._used = 0

    def begin(self) -> None:
        self._read.wait()
        self._used = 0

    def send(self, array: NDArray[Any], into: torch.Tensor | None = None) -> torch.Tensor:
        if self._used + array.nbytes > len(self._memory):
            self._grow(array.nbytes)
        start, end = self._used, self._used + array.nbytes
        self._used = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        source = self._memory[start:end].view(dtype).view(array.shape)
        np.copyto(source.numpy(), array)
        target = self._device.main.empty(array.shape, dtype) if into is None else into
        self._device.main.copy(target, source)
        return target

    def end(self) -> None:
        self._read.record()

    def _grow(self, needed_bytes: int) -> None:
        """Rare, and then the last time: what is still to be copied out of the old memory is waited for."""
        self.end()
        self.begin()
        self._memory = self._device.pinned((2 * max(needed_bytes, len(self._memory)),), torch.uint8)
