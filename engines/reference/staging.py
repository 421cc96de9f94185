"""Staging: uploads the columns of a step through a ring of pinned buffers, while the step before still runs.

    step      n          n+1        n+2  ── waits for the end of step n ──┐
    buffer    0          1          0                                     │
              write ► copy to its twin on the device ► event ──┐          │
    main                                                       └► step n ─┘

Each pinned buffer has a twin on the device. All columns of a step go in one copy, as a copy costs host and device some
us whatever its size. It runs on a stream of its own, so that it is done when the step before ends; `main` waits for its
event. Both buffers may be written again once `main` has passed the event behind the step.
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
FIRST_BYTES = 1 << 20  # a buffer grows with the largest step


class Send(Protocol):
    """The columns of one step."""

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        """The array's copy on the device, valid for work queued after `go` and before the step's end."""
        ...

    def go(self) -> None:
        """Queue the copy of the arrays given since the last `go`."""
        ...

    def now(self, array: NDArray[Any], into: torch.Tensor | None = None) -> torch.Tensor:
        """Queue the copy of this array at once, for work queued from now on; `into`: its destination on the device."""
        ...


class Staging:
    """`with staging.step() as send:` around all uploads of a step."""

    def __init__(self, device: Device, buffers: int) -> None:
        self._buffers = [_Buffer(device) for _ in range(buffers if device.overlaps else 0)]
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[Send]:
        if not self._buffers:
            yield _AT_ONCE
            return
        buffer = self._buffers[self._steps % len(self._buffers)]
        self._steps += 1
        buffer.begin()
        try:
            yield buffer
        finally:
            buffer.end()


class _AtOnce:
    """Host and device memory are the same."""

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array)

    def go(self) -> None: ...

    def now(self, array: NDArray[Any], into: torch.Tensor | None = None) -> torch.Tensor:
        return self(array) if into is None else into.copy_(self(array))


_AT_ONCE = _AtOnce()


class _Buffer:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._read: Event = device.main.event()  # recorded behind the step that reads this buffer
        self._allocate(FIRST_BYTES)

    def begin(self) -> None:
        self._read.wait()
        self._used = self._gone = 0

    def end(self) -> None:
        self._read.record()

    def __call__(self, array: NDArray[Any]) -> torch.Tensor:
        part = self._place(array)
        return _like(array, self._on_device[part])

    def go(self) -> None:
        if self._gone < self._used:
            part = slice(self._gone, self._used)
            uploads = self._device.uploads
            uploads.copy(self._on_device[part], self._pinned[part])
            landed = uploads.event()
            landed.record()
            self._device.main.wait(landed)
            self._gone = self._used

    def now(self, array: NDArray[Any], into: torch.Tensor | None = None) -> torch.Tensor:
        landed = self(array)
        self.go()
        if into is None:
            return landed
        self._device.main.copy(into, landed)
        return into

    def _place(self, array: NDArray[Any]) -> slice:
        """Write the array into pinned memory. Returns its byte range there, the same as on the device."""
        if self._used + array.nbytes > len(self._pinned):
            self._grow(array.nbytes)
        part = slice(self._used, self._used + array.nbytes)
        self._used = -(-part.stop // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        np.copyto(_like(array, self._pinned[part]).numpy(), array)
        return part

    def _grow(self, needed_bytes: int) -> None:
        """Rare, as the size doubles: waits until the old memory has been copied."""
        self.go()
        self.end()
        self.begin()
        self._allocate(2 * max(needed_bytes, len(self._pinned)))

    def _allocate(self, size: int) -> None:
        self._pinned = self._device.pinned((size,), torch.uint8)
        self._on_device = self._device.uploads.empty((size,), torch.uint8)
        self._device.main.uses(self._on_device)


def _like(array: NDArray[Any], memory: torch.Tensor) -> torch.Tensor:
    """The bytes seen as a tensor of the array's type and shape."""
    return memory.view(torch.from_numpy(np.empty(0, array.dtype)).dtype).view(array.shape)
