"""Device: what the runtime asks of a device besides arithmetic: queues, copies that do not wait, events, graphs.

    host      plan n+1 │ upload │ launch │ wait for n ....│ plan n+2 │
    main      ├ copy ├──────── step n ────────┤ copy ├─── step n+1 ───
    side      │            ├─ swap: pinned host memory ◄─► device ─┤

A stream runs what was queued on it in order, and not before the host goes on. So a buffer in pinned memory holds what
the host wrote only until the copy out of it has run: that is what events are for. On a CPU everything is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from engines.loop import Clock

Work = Callable[[], object]


class Event(Protocol):
    """A mark in a stream. One that was never recorded has passed."""

    def record(self) -> None:
        """Move the mark to the end of what is queued now."""
        ...

    def wait(self) -> int:
        """Block the host until the device has passed the mark. The time by the clock, as well as the host can tell."""
        ...

    def ns_since(self, earlier: Any) -> int:
        """Time the device took between two marks, both of them passed and timed."""
        ...


class Stream(Protocol):
    def run(self, work: Work) -> None:
        """Queue what `work` does to tensors. Python in it may run now or then."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy; one of the two may be in pinned memory."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory on the device that this stream may write at once, whatever other streams are still doing."""
        ...

    def uses(self, tensor: torch.Tensor) -> None:
        """Work queued here touches memory that is another stream's: it must not go to anybody else before."""
        ...

    def event(self, *, timed: bool = False) -> Event: ...

    def wait(self, event: Any) -> None:
        """What is queued from now on runs behind the event, which may be another stream's."""
        ...


class Device(Protocol):
    @property
    def main(self) -> Stream:
        """The steps."""
        ...

    @property
    def side(self) -> Stream:
        """Copies that need not hold up a step."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether the host gets ahead of the device."""
        ...

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the host that the device copies from and to by itself."""
        ...

    def capture(self, work: Work) -> Work:
        """Record what `work` does to tensors that stay where they are; the result, run on `main`, does it again."""
        ...


class CpuDevice:
    """No queue: done when called. So no graph either."""

    overlaps = False

    def __init__(self, clock: Clock) -> None:
        self.main = self.side = _CpuStream(clock)

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
    """The current CUDA device: steps on the stream that is current when this is made, swap copies on one beside it."""

    overlaps = True

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self.main = _CudaStream(torch.cuda.current_stream(device), clock)
        self.side = _CudaStream(torch.cuda.Stream(device), clock)  # type: ignore[no-untyped-call]
        # Of its own: cuBLAS has a workspace for each stream, a graph keeps that of the stream it was captured on, and
        # two engines beside each other must not share one.
        self._capturing = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graph_memory: Any = None  # one pool for all graphs: they replay one after another

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def capture(self, work: Work) -> Work:
        # A first run compiles kernels, loads them and makes cuBLAS's workspace of this stream: a capture allows none.
        self._capturing.wait_stream(self.main.stream)
        with torch.cuda.stream(self._capturing):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: what other threads ask of the driver meanwhile (telemetry) is no business of the capture.
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
        # From this stream's own part of the allocator: in another's, a free block may still be read by queued work.
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
