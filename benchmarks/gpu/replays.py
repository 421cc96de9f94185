"""Time of a piece of work on the device alone: a CUDA graph captures it and is replayed between two events. On a CPU
it is called and timed by the wall clock.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.gpu.driving import synchronize

ROUNDS = 10
WARM_S = 0.005  # clocks rise
AHEAD = 2  # replays queued before the first that is timed, so that the host is ahead of the device

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    us: float  # median of the replays
    launches: int | None  # of one replay; None where they cannot be counted


class Replays:
    """One stream for all captures, as each new one allocates a workspace of cuBLAS."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._capturing = torch.cuda.Stream(device) if device.type == "cuda" else None

    @torch.inference_mode()
    def timed(self, work: Work) -> Timing:
        """`work` may allocate, but must not use host memory or wait for the device."""
        if self._capturing is None:
            return Timing(_called_us(work), None)
        graph, launches = self._captured(work)
        return Timing(_replayed_us(graph, self._device), launches)

    def each(self, works: Sequence[Work], passes: int) -> Timing:
        """All in turn, `passes` times; the time of one call of each."""

        def all_of_them() -> None:
            for _ in range(passes):
                for work in works:
                    work()

        timing, calls = self.timed(all_of_them), passes * len(works)
        return Timing(timing.us / calls, None if timing.launches is None else round(timing.launches / calls))

    def _captured(self, work: Work) -> tuple[torch.cuda.CUDAGraph, int | None]:
        # A first run compiles kernels, loads them and makes cuBLAS's workspace: a capture allows none of it. What is
        # still queued on the usual stream has to be over, and what this run leaves in buffers too.
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._capturing):
            work()
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, stream=self._capturing, capture_error_mode="thread_local"):
            work()
        launches = _nodes(graph)
        graph.instantiate()
        return graph, launches


def _nodes(graph: torch.cuda.CUDAGraph) -> int | None:
    """Kernels, copies and memsets of it, as the driver counts them."""
    count = ctypes.c_size_t()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        code = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    except (OSError, AttributeError, RuntimeError, TypeError):
        return None  # the times are worth having without it
    return count.value if code == 0 else None


def _replayed_us(graph: torch.cuda.CUDAGraph, device: torch.device) -> float:
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)]
    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        graph.replay()
        synchronize(device)
    for _ in range(AHEAD):
        graph.replay()
    for begin, end in marks:
        begin.record()
        graph.replay()
        end.record()
    synchronize(device)
    return median(begin.elapsed_time(end) for begin, end in marks) * 1e3


def _called_us(work: Work) -> float:
    def once() -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e6

    return median(once() for _ in range(3))
