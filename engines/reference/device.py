"""Device: streams, asynchronous copies, events and graphs, with the same interface on a CPU and on a GPU.

    host      plan n+1 │ upload │ launch │ wait for n ....│ plan n+2 │
    uploads            ├ copy ┤
    main      ├──────────────── step n ───────┤├──────── step n+1 ────
    side      │            ├─ swap: pinned host memory ◄─► device ─┤

A stream runs its work in order, and usually after the host has continued. So the host may overwrite a pinned buffer
only when the copy out of it has run; an event tells when. On a CPU all work is done when it is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from engines.loop import Clock

Work = Callable[[], object]


class Event(Protocol):
    """A position in a stream's queue. An event that was never recorded counts as passed."""

    def record(self) -> None:
        """Set the event behind the work that is queued now."""
        ...

    def wait(self) -> int:
        """Block the host until the device has passed the event. Returns the clock's time, as seen by the host."""
        ...

    def ns_since(self, earlier: Any) -> int:
        """Time on the device between two timed events that have passed."""
        ...


class Stream(Protocol):
    def run(self, work: Work) -> None:
        """Queue what `work` does to tensors. Its Python code may run now or later."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy; one of the two may be in pinned memory."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory on the device that this stream may write without waiting for another stream."""
        ...

    def uses(self, tensor: torch.Tensor) -> None:
        """Work queued here uses memory of another stream's allocator: it is not reused before that work has run."""
        ...

    def event(self, *, timed: bool = False) -> Event: ...

    def wait(self, event: Any) -> None:
        """Work queued from now on runs after the event, which may be of another stream."""
        ...


class Device(Protocol):
    @property
    def main(self) -> Stream:
        """The stream of the steps."""
        ...

    @property
    def side(self) -> Stream:
        """The stream of copies that run beside the steps."""
        ...

    @property
    def uploads(self) -> Stream:
        """The stream of the columns of the next step."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether the host continues while the device works."""
        ...

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Page-locked host memory, for asynchronous copies."""
        ...

    def capture(self, work: Work) -> Work:
        """Record what `work` does to tensors of fixed address. The result, run on `main`, repeats it."""
        ...


class CpuDevice:
    """Work is done when it is queued; there are no graphs."""

    overlaps = False

    def __init__(self, clock: Clock) -> None:
        self.main = self.side = self.uploads = _CpuStream(clock)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def capture(self, work: Work) -> Work:
        return work


class _CpuStream:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def run(self, work: Work) -> None:
        work()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def uses(self, tensor: torch.Tensor) -> None: ...

    def event(self, *, timed: bool = False) -> _CpuEvent:
        return _CpuEvent(self._clock)

    def wait(self, event: _CpuEvent) -> None: ...


class _CpuEvent:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ns = 0

    def record(self) -> None:
        self._at_ns = self._clock.now_ns()

    def wait(self) -> int:
        return self._at_ns

    def ns_since(self, earlier: _CpuEvent) -> int:
        return self._at_ns - earlier._at_ns


class CudaDevice:
    """The current CUDA device: steps on the stream that is current at construction, swap copies on a second one."""

    overlaps = True

    def __init__(self, device: torch.device, clock: Clock) -> None:
        main = torch.cuda.current_stream(device)
        self.main, self.side, self.uploads = (
            _CudaStream(stream, clock)
            for stream in (main, torch.cuda.Stream(device), torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        )
        # A stream of its own: cuBLAS has a workspace for each stream, and a graph keeps that of the stream it was
        # captured on. Two engines that run at the same time must not share one. Its kernels keep the priority too.
        self._capturing = torch.cuda.Stream(device, priority=main.priority)  # type: ignore[no-untyped-call]
        self._graph_memory: Any = None  # one pool for all graphs, which never replay at the same time

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def capture(self, work: Work) -> Work:
        # The first run compiles and loads kernels and allocates cuBLAS's workspace, which a capture forbids.
        self._capturing.wait_stream(self.main.stream)
        with torch.cuda.stream(self._capturing):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: calls of other threads to the driver (telemetry) must not invalidate the capture.
        with torch.cuda.graph(
            graph, pool=self._graph_memory, stream=self._capturing, capture_error_mode="thread_local"
        ):
            work()
        self._graph_memory = self._graph_memory or graph.pool()
        return graph.replay


class _CudaStream:
    def __init__(self, stream: torch.cuda.Stream, clock: Clock) -> None:
        self.stream = stream
        self._clock = clock

    def run(self, work: Work) -> None:
        with torch.cuda.stream(self.stream):
            work()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        # From this stream's pool of the allocator: a free block of another's may still be read by queued work.
        with torch.cuda.stream(self.stream):
            return torch.empty(tuple(shape), dtype=dtype, device=self.stream.device)

    def uses(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self.stream)

    def event(self, *, timed: bool = False) -> _CudaEvent:
        return _CudaEvent(self.stream, self._clock, timed=timed)

    def wait(self, event: _CudaEvent) -> None:
        self.stream.wait_event(event.event)


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream, clock: Clock, *, timed: bool) -> None:
        self.event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        self._stream = stream
        self._clock = clock

    def record(self) -> None:
        self.event.record(self._stream)

    def wait(self) -> int:
        self.event.synchronize()
        return self._clock.now_ns()

    def ns_since(self, earlier: _CudaEvent) -> int:
        return int(earlier.event.elapsed_time(self.event) * 1e6)


def open_device(device: torch.device, clock: Clock) -> Device:
    return CudaDevice(device, clock) if device.type == "cuda" else CpuDevice(clock)
