"""Two instances of the runtime beside each other: each executor computes on a thread of its own, and so does the copy
of KV blocks from one pool into the other. torch lets the other threads run while it computes.

    loop      plan ─► │ plan ─► │ ............ (woken) collect │ plan ─►
    prefill   step ───┼─────────┼──────────────►
    decode            step ──► │ step ──► │ step ──►
    link                 copy ─►

What crosses a thread is a plan with a copy of the block tables, as the loop changes them while the step runs, and a
result. Nothing else is shared but the weights, which nobody writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Generic, TypeVar

import torch

from engines.loop import WallClock
from engines.reference.executor import TorchExecutor
from engines.reference.kv_pool import KVPool
from engines.scheduling.kv_transfer import Transfer
from engines.scheduling.plan import StepPlan, StepResult

Result = TypeVar("Result")


class Worker(Generic[Result]):
    """A thread that does one job after another, with so many cores for what torch computes. Wakes the clock after each;
    an error comes out where the result is asked for."""

    def __init__(self, name: str, threads: int, clock: WallClock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, name, initializer=torch.set_num_threads, initargs=(threads,))
        self._jobs: deque[Future[tuple[Result, int]]] = deque()

    def start(self, job: Callable[[], tuple[Result, int]]) -> None:
        """job: gives its result and when it ended."""
        future = self._thread.submit(job)
        self._jobs.append(future)
        future.add_done_callback(lambda _: self._clock.wake())

    def call(self, work: Callable[[], None]) -> None:
        """Do it on the thread, and wait until it is done."""
        self._thread.submit(work).result()

    def ends_ns(self) -> int | None:
        """When the oldest job ended; None: it has not."""
        return self._jobs[0].result()[1] if self._jobs and self._jobs[0].done() else None

    def collect(self) -> Result:
        """Of the oldest job; waits for it."""
        return self._jobs.popleft().result()[0]

    def __enter__(self) -> Worker[Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)


class ThreadedExecutor:
    """A TorchExecutor on a worker."""

    def __init__(self, executor: TorchExecutor, worker: Worker[StepResult]) -> None:
        self._executor = executor
        self._worker = worker

    def submit(self, plan: StepPlan) -> None:
        plan = replace(plan, tables=plan.tables.copy())
        self._worker.start(lambda: self._run(plan))

    def _run(self, plan: StepPlan) -> tuple[StepResult, int]:
        self._executor.submit(plan)
        result = self._executor.collect()
        return result, result.end_ns

    def ends_ns(self) -> int | None:
        return self._worker.ends_ns()

    def collect(self) -> StepResult:
        return self._worker.collect()


class CopyLink:
    """Copies blocks from one pool into the other. Nobody writes the sources or reads the targets meanwhile: they are
    kept for the one request, and have been given to it alone."""

    def __init__(self, source: KVPool, target: KVPool, worker: Worker[Transfer], clock: WallClock) -> None:
        self._source = source
        self._target = target
        self._worker = worker
        self._clock = clock

    def start(self, transfer: Transfer) -> None:
        self._worker.start(lambda: self._copy(transfer))

    @torch.inference_mode()
    def _copy(self, transfer: Transfer) -> tuple[Transfer, int]:
        device = self._source.layers.device
        sources, targets = (torch.tensor(blocks, device=device) for blocks in (transfer.sources, transfer.targets))
        self._target.layers.index_copy_(1, targets, self._source.layers.index_select(1, sources))
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return transfer, self._clock.now_ns()

    def ends_ns(self) -> int | None:
        return self._worker.ends_ns()

    def collect(self) -> Transfer:
        return self._worker.collect()
