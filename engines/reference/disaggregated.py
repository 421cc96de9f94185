"""DisaggregatedReferenceEngine: a prefill and a decode instance of the reference engine on one device, in one process.

Each executor computes on a thread of its own, and so does the copy of KV blocks from one pool into the other. torch
releases the interpreter lock while it computes.

    loop      plan ─► │ plan ─► │ ............ (woken) collect │ plan ─►
    prefill   step ───┼─────────┼──────────────►
    decode            step ──► │ step ──► │ step ──►
    link                 copy ─►

Threads exchange plans and results only. A plan carries a copy of the block tables, because the loop changes them while
the step runs. The weights are shared and read-only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

from engines.base import Observer, RunRecord
from engines.disaggregated import TimedInstance, TwoInstances
from engines.garbage import light_garbage_collection
from engines.loop import WallClock
from engines.recorded_loop import run_loop
from engines.reference.engine import ReferenceEngine
from engines.reference.executor import TorchExecutor
from engines.reference.kv_capacity import free_bytes, kv_block_bytes, require_memory
from engines.reference.kv_pool import KVPool
from engines.reference.model.weights import LoadedModel
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from engines.scheduling.kv_transfer import Transfer
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import GREEDY, Sampling
from engines.scheduling.scheduler import Scheduler
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import PlanSource

Result = TypeVar("Result")
HIGH_PRIORITY = -1  # of a CUDA stream; the usual one is 0


class DisaggregatedReferenceEngine:
    """On a CPU each instance has half of the cores, on a GPU a stream of its own. The instances compete for memory
    bandwidth, and on a GPU for its cores, which two machines would not. `run` may be called again; each run starts from
    idle instances."""

    client = None

    def __init__(
        self,
        model: LoadedModel,
        config: DisaggregatedConfig,
        *,
        prompt_seed: int = 0,
        ignore_eos: bool = True,
        sampling: Sampling = GREEDY,
        attention: str = "auto",
        cuda_graphs: bool | None = None,
    ) -> None:
        """As ReferenceEngine."""
        self._model = model
        self._config = config
        self._prompt_seed = prompt_seed
        self.clock = WallClock()

        def instance(scheduler: SchedulerConfig, priority: int) -> ReferenceEngine:
            with _own_stream(model.llama.device, priority):
                return ReferenceEngine(
                    model,
                    scheduler,
                    prompt_seed=prompt_seed,
                    ignore_eos=ignore_eos,
                    sampling=sampling,
                    attention=attention,
                    cuda_graphs=cuda_graphs,
                    clock=self.clock,
                )

        # Checked before either pool exists: on a CPU, pages of a pool count as free until they are written.
        block_bytes, device = kv_block_bytes(model, config.prefill.block_size), model.llama.device
        left_bytes = free_bytes(device) - config.decode.kv_blocks * block_bytes
        if left_bytes > 0:  # otherwise the decode instance raises the error, about `kv_blocks`
            where = "are free beside the decode instance's"
            require_memory("prefill_kv_blocks", config.prefill.kv_blocks, block_bytes, left_bytes, where)
        # A decode step must not wait behind the blocks of a prefill step that are not running yet.
        self._prefill, self._decode = instance(config.prefill, 0), instance(config.decode, HIGH_PRIORITY)

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        prompts = Prompts(plan, self._model.checkpoint.prompt_ids, self._prompt_seed)
        schedulers = self._config.build(frozenset(self._model.checkpoint.eos_ids))
        with ExitStack() as stack:
            prefill = self._instance("prefill", self._prefill, schedulers[0], stack)
            decode = self._instance("decode", self._decode, schedulers[1], stack)
            copier: Worker[Transfer] = stack.enter_context(Worker("link", 1, self.clock))
            link = CopyLink(self._prefill.pool, self._decode.pool, copier, self.clock)
            stack.enter_context(light_garbage_collection())
            self.clock.restart()
            self._prefill.executor.restart()
            self._decode.executor.restart()
            return run_loop(
                TwoInstances(prefill, decode, link),
                PlanSource(plan, pacing, prompts),
                self.clock,
                observer,
                planned=len(plan),
                make_request=self._decode.request,
            )

    def _instance(self, name: str, engine: ReferenceEngine, scheduler: Scheduler, stack: ExitStack) -> TimedInstance:
        worker: Worker[StepResult] = stack.enter_context(Worker(name, self._threads, self.clock))
        worker.call(engine.warm_up)  # one-time costs of a new thread must not enter a TTFT
        return TimedInstance(scheduler, ThreadedExecutor(engine.executor, worker))

    @property
    def _threads(self) -> int:
        """Cores of each instance."""
        return max(1, torch.get_num_threads() // 2)

    def describe(self) -> dict[str, Any]:
        """The `config` of run.json's engine: the decode instance's, and the settings of the prefill instance."""
        prefill = self._config.prefill
        return self._decode.describe() | {
            "disaggregate": True,
            "prefill_max_num_seqs": prefill.max_num_seqs,
            "prefill_max_num_batched_tokens": prefill.max_num_batched_tokens,
            "prefill_kv_blocks": prefill.kv_blocks,
            "threads": self._threads,
            "overlap_steps": 0,
        }


@contextmanager
def _own_stream(device: torch.device, priority: int) -> Iterator[None]:
    """On a GPU, what is created in the block computes on a stream of its own."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)  # the weights were copied on another stream
    with torch.cuda.stream(torch.cuda.Stream(device, priority=priority)):  # type: ignore[no-untyped-call]
        yield


class Worker(Generic[Result]):
    """A thread that runs jobs in order, with `threads` cores for torch. It wakes the clock after each job; an error in
    a job is raised where its result is collected."""

    def __init__(self, name: str, threads: int, clock: WallClock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, name, initializer=torch.set_num_threads, initargs=(threads,))
        self._jobs: deque[Future[tuple[Result, int]]] = deque()

    def start(self, job: Callable[[], tuple[Result, int]]) -> None:
        """job: returns its result and the time it ended, in ns."""
        future = self._thread.submit(job)
        self._jobs.append(future)
        future.add_done_callback(lambda _: self._clock.wake())

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` on the thread and wait for it."""
        self._thread.submit(work).result()

    def ends_ns(self) -> int | None:
        """When the oldest job ended; None while it runs, or without a job."""
        return self._jobs[0].result()[1] if self._jobs and self._jobs[0].done() else None

    def collect(self) -> Result:
        """Wait for the oldest job and return its result."""
        return self._jobs.popleft().result()[0]

    def __enter__(self) -> Worker[Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)


class ThreadedExecutor:
    """A TorchExecutor whose steps run on a worker."""

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
    """Copies KV blocks from one pool into the other. No step writes the sources or reads the targets meanwhile: both
    belong to the transferred request alone."""

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
