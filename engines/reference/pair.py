"""ReferencePair: a prefill and a decode instance of the reference engine in one process, with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from engines.base import Observer, RunRecord
from engines.disaggregated import Instance, TwoInstances, run_disaggregated
from engines.garbage import light_garbage_collection
from engines.loop import WallClock
from engines.reference.beside import CopyLink, ThreadedExecutor, Worker
from engines.reference.engine import LoadedModel, ReferenceEngine, kv_block_bytes, require_memory
from engines.reference.kv_pool import free_bytes
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from engines.scheduling.kv_transfer import Transfer
from engines.scheduling.plan import StepResult
from engines.scheduling.request import GREEDY, Sampling
from engines.scheduling.scheduler import Scheduler
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import PlanSource


class ReferencePair:
    """On a CPU each instance has half of the cores, on a GPU a stream; either way one takes from the other what it
    uses, as two machines would not. `run` may be called again, and starts from idle instances each time."""

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

        def instance(scheduler: SchedulerConfig) -> ReferenceEngine:
            with _own_stream(model.llama.device):
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

        # What a pool has not written to yet is still counted as free on a CPU.
        block_bytes, device = kv_block_bytes(model, config.prefill.block_size), model.llama.device
        left_bytes = free_bytes(device) - config.decode.kv_blocks * block_bytes
        if left_bytes > 0:  # else the decode instance says so
            where = "are free beside the decode instance's"
            require_memory("--prefill-kv-blocks", config.prefill.kv_blocks, block_bytes, left_bytes, where)
        self._prefill, self._decode = instance(config.prefill), instance(config.decode)

    def run(self, plan: RequestPlan, pacing: Pacing, observer: Observer) -> RunRecord:
        prompts = Prompts(plan, self._model.checkpoint.prompt_ids, self._prompt_seed)
        schedulers = self._config.build(frozenset(self._model.checkpoint.eos_ids))
        with ExitStack() as stack:
            prefill = self._instance("prefill", self._prefill, schedulers[0], stack)
            decode = self._instance("decode", self._decode, schedulers[1], stack)
            carrier: Worker[Transfer] = stack.enter_context(Worker("link", 1, self.clock))
            link = CopyLink(self._prefill.pool, self._decode.pool, carrier, self.clock)
            stack.enter_context(light_garbage_collection())
            self.clock.restart()
            self._prefill.executor.restart()
            self._decode.executor.restart()
            return run_disaggregated(
                TwoInstances(prefill, decode, link),
                PlanSource(plan, pacing, prompts),
                self.clock,
                observer,
                planned=len(plan),
                make_request=self._decode.request,
            )

    def _instance(self, name: str, engine: ReferenceEngine, scheduler: Scheduler, stack: ExitStack) -> Instance:
        worker: Worker[StepResult] = stack.enter_context(Worker(name, self._threads, self.clock))
        worker.call(engine.warm_up)  # what a thread does once is in no TTFT either
        return Instance(scheduler, ThreadedExecutor(engine.executor, worker))

    @property
    def _threads(self) -> int:
        """Cores of each."""
        return max(1, torch.get_num_threads() // 2)

    def describe(self) -> dict[str, Any]:
        """The `config` of run.json's engine: the decode instance's, and what the prefill instance has of its own."""
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
def _own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU, what is made here computes on a stream of its own."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)  # the weights came on another
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        yield
