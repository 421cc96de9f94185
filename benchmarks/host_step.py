"""Host time of a decode step on a GPU, measured without one: everything but the device is real.

    python benchmarks/host_step.py [--rows 1 64 256] [--context 512] [--steps 400] [--temperature 0]

The loop, scheduler, batch building, pinned ring and recorder are those of a run; steps overlap and every decode step
is one graph. The device does nothing, at once: its launches, copies and events cost nothing here, where on a GPU each
is a call into the driver. Medians over decode steps, in us. While the host needs less than the device for a step, the
device never waits for it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from benchmarks.gpu.mixed import mixed_plan
from engines.base import SilentObserver
from engines.garbage import light_garbage_collection
from engines.loop import Clock, Instance, WallClock, drive
from engines.recorder import StepRecorder
from engines.reference import executor as executing
from engines.reference.device import Work
from engines.reference.executor import TorchExecutor
from engines.reference.graphs import bucket_sizes
from engines.reference.kernels import Attend, MixedRows
from engines.reference.kernels.torch_kernels import TorchKernels
from engines.reference.kv_pool import KVPool
from engines.reference.model.weights import LoadedModel, load_model
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.request import Request, Sampling
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import Incoming, PlanSource

BLOCK_SIZE = 16
MIXED = (64, 512)  # decodes, tokens of a prompt
MIXED_STEPS = 200
MARGIN_STEPS = 20  # of decodes, left out at either end
SCHEDULE, COLLECT, UPDATE, RECORD = "schedule", "collect", "update", "record"
SUBMIT, BATCH, COLUMNS, STAGING = "submit", "submit: batch", "submit: columns of the graph", "submit: staging, launch"


class IdleDevice:
    """A device that overlaps with the host and has finished all work at once."""

    overlaps = True

    def __init__(self, clock: Clock) -> None:
        self.main = self.side = self.uploads = IdleStream(clock)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def capture(self, work: Work) -> Work:
        return lambda: None


class IdleStream:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def run(self, work: Work) -> None: ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None: ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def uses(self, tensor: torch.Tensor) -> None: ...

    def event(self, *, timed: bool = False) -> IdleEvent:
        return IdleEvent(self._clock)

    def wait(self, event: IdleEvent) -> None: ...


class IdleEvent:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def record(self) -> None: ...

    def wait(self) -> int:
        return self._clock.now_ns()

    def ns_since(self, earlier: IdleEvent) -> int:
        return 0


class IdleKernels(TorchKernels):
    """Queued on a device that runs nothing."""

    captures = True

    def static_decode(
        self, tables: torch.Tensor, lengths: torch.Tensor, pool: KVPool, heads: int
    ) -> Callable[[int], Attend]:
        return lambda n: lambda q, kv: q

    def static_mixed(self, rows: int, blocks: int, pool: KVPool, heads: int) -> Callable[[MixedRows], Attend]:
        return lambda on: lambda q, kv: q


class Stopwatch:
    """ns of each call of the functions it times, by name."""

    def __init__(self) -> None:
        self.spans: dict[str, list[int]] = {}
        self.begins: dict[str, list[int]] = {}

    def put_on(self, owner: Any, function: str, name: str) -> None:
        call = getattr(owner, function)
        spans, begins = self.spans.setdefault(name, []), self.begins.setdefault(name, [])
        clock = time.perf_counter_ns

        def timed(*args: Any) -> Any:
            begin = clock()
            result = call(*args)
            spans.append(clock() - begin)
            begins.append(begin)
            return result

        setattr(owner, function, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=512, help="prompt tokens of each request")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model("tiny", dtype="fp32", device="cpu")
    sampling = Sampling(temperature=options.temperature)
    columns = [measure(model, rows, options.context, options.steps, sampling) for rows in options.rows]
    print(f"us of the host per decode step, context from {options.context}, {sampling}")
    print(f"{'rows':32}" + "".join(f"{rows:>8}" for rows in options.rows))
    for name in columns[0]:
        print(f"{name:32}" + "".join(f"{column[name]:8.0f}" for column in columns))
    print(f"us to launch a step of {MIXED[0]} decodes and a prompt of {MIXED[1]} tokens from its graph")
    for name, us in measure_mixed(model, *MIXED, options.context).items():
        print(f"{name:32}{us:8.0f}")


def measure(model: LoadedModel, rows: int, context: int, steps: int, sampling: Sampling) -> dict[str, float]:
    """Medians in us by part, and of the whole step."""
    outputs = steps + 2 * MARGIN_STEPS
    limit = context + outputs
    config = SchedulerConfig(
        kv_blocks=rows * -(-limit // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_model_len=limit,
        max_num_seqs=rows,
        max_num_batched_tokens=max(8192, rows),
    )
    pool = KVPool(model.llama.config, config.kv_blocks, BLOCK_SIZE, dtype=torch.float32, device=model.llama.device)
    clock = WallClock()
    plan = RequestPlan.of([context] * rows, [outputs] * rows)
    flatten = executing.flatten
    watch = Stopwatch()
    watch.put_on(executing, "flatten", BATCH)  # looked up at each step
    try:
        executor = TorchExecutor(
            model.llama,
            pool,
            max_num_seqs=rows,
            clock=clock,
            kernels=IdleKernels(),
            device=IdleDevice(clock),
            graph_sizes=bucket_sizes(rows),
            max_blocks=-(-limit // BLOCK_SIZE),
        )
        scheduler = config.build()
        recorder = StepRecorder(SilentObserver(), rows, config.kv_blocks, thinned=False)
        watch.put_on(scheduler, "schedule", SCHEDULE)
        (graphs,) = executor._graphs
        watch.put_on(graphs, "pack", COLUMNS)
        watch.put_on(graphs, "_launch", STAGING)
        watch.put_on(executor, "submit", SUBMIT)
        watch.put_on(executor, "collect", COLLECT)
        watch.put_on(scheduler, "update", UPDATE)
        watch.put_on(recorder, "take", RECORD)
        source = PlanSource(plan, Pacing(plan.arrivals_ugap), Prompts(plan, model.checkpoint.prompt_ids))

        def make_request(incoming: Incoming) -> Request:
            return Request(incoming.index, context, outputs, prompt=incoming.prompt, sampling=sampling)

        with light_garbage_collection():
            drive(Instance(scheduler, executor, depth=1), source, clock, make_request, recorder.take, lambda: False)
    finally:
        executing.flatten = flatten
    return medians(watch, steps)


def measure_mixed(model: LoadedModel, decodes: int, prompt: int, context: int) -> dict[str, float]:
    """Medians in us by part, and of the whole launch. The number of layers makes no difference to a graph."""
    plan = mixed_plan(decodes, context, prompt)
    config = model.llama.config
    pool = KVPool(config, int(plan.tables.max()), BLOCK_SIZE, dtype=torch.float32, device=model.llama.device)
    clock = WallClock()
    flatten = executing.flatten
    watch = Stopwatch()
    watch.put_on(executing, "flatten", BATCH)
    try:
        executor = TorchExecutor(
            model.llama,
            pool,
            max_num_seqs=len(plan.slots),
            clock=clock,
            kernels=IdleKernels(),
            device=IdleDevice(clock),
            mixed_graph_sizes=(decodes + prompt,),
            max_blocks=plan.tables.shape[1],
        )
        (graphs,) = executor._graphs
        watch.put_on(graphs, "pack", COLUMNS)
        watch.put_on(graphs, "_launch", STAGING)
        watch.put_on(executor, "submit", SUBMIT)
        for _ in range(MIXED_STEPS):
            executor.submit(plan)
            executor.collect()
    finally:
        executing.flatten = flatten
    us = {name: statistics.median(spans) / 1000 for name, spans in watch.spans.items()}
    parts = {name: us[name] for name in (BATCH, COLUMNS, STAGING)}
    return parts | {"submit: the rest": us[SUBMIT] - sum(parts.values()), "a launch": us[SUBMIT]}


def medians(watch: Stopwatch, steps: int) -> dict[str, float]:
    window = slice(-(steps + MARGIN_STEPS), -MARGIN_STEPS)  # everything is called once a decode step
    us = {name: statistics.median(spans[window]) / 1000 for name, spans in watch.spans.items()}
    begins = watch.begins[SCHEDULE][window]
    whole = statistics.median(later - earlier for earlier, later in pairwise(begins)) / 1000
    table = {name: us[name] for name in (SCHEDULE, BATCH, COLUMNS, STAGING)}
    table["submit: the rest"] = us[SUBMIT] - us[BATCH] - us[COLUMNS] - us[STAGING]
    table |= {name: us[name] for name in (COLLECT, UPDATE, RECORD)}
    table["the loop around them"] = whole - sum(table.values())
    return table | {"a step": whole}


if __name__ == "__main__":
    main()
