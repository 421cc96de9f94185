"""How far the simulator's predictions are from the reference engine, on this machine's CPU, one thread.

    python benchmarks/simulator_accuracy.py [--model small|tiny|smollm2-135m] [--requests 64]

A step-time model is fitted to two short runs (the most slots, everything at t = 0; and a light load, whose steps have a
short prompt and few rows) and predicts a run with another setting, which is not part of the fit. The speed of a machine
drifts by more than the errors to be found, so the fitted runs and the predicted one alternate step by step, each timed
in the CPU time of its own thread. In the first line the predicted run has the settings of the first fitted run: its
error is the noise, a lower bound of any prediction's. `--base wide` fits to the first run only, to show what the second
adds.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from engines.base import RunRecord, SilentObserver
from engines.loop import Executor, Instance
from engines.recorded_loop import run_loop
from engines.reference.executor import TorchExecutor
from engines.reference.kv_pool import KVPool
from engines.reference.model.checkpoint import random_checkpoint
from engines.reference.model.config import SHAPES, ModelConfig
from engines.reference.model.llama import Llama
from engines.reference.model.weights import LoadedModel, load_model
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import Request
from engines.simulated.calibrate import calibrate, measured_steps, pooled
from engines.simulated.engine import SimulatedEngine
from engines.simulated.step_time import FittedStepTimes, Origin
from reports.metrics import request_times
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import Incoming, PlanSource
from workloads.spec import build_plan

CHAT = "prompt=lognormal(median=64,sigma=0.8,max=384);output=lognormal(median=48,sigma=0.8,max=192)"
SUMMARIES = "prompt=lognormal(median=200,sigma=0.5,max=384);output=lognormal(median=16,sigma=0.5,max=64)"
WIDE = SchedulerConfig(kv_blocks=1024, max_model_len=640, max_num_seqs=16, max_num_batched_tokens=256)
EIGHT = replace(WIDE, max_num_seqs=8)
BASE_LOAD, BASE_REQUESTS = 0.5, 24
METRICS = ("throughput", "mean TPOT", "P99 TPOT", "P50 TTFT")


class ThreadClock:
    """CPU time of the thread that made it; waiting is skipped."""

    def __init__(self) -> None:
        self._zero_ns = time.thread_time_ns()

    def now_ns(self) -> int:
        return time.thread_time_ns() - self._zero_ns

    def wait_until(self, when_ns: int) -> None:
        self._zero_ns -= max(0, when_ns - self.now_ns())


class Turns:
    """Lets threads go on one after the other, until the first of them has finished."""

    def __init__(self, threads: int) -> None:
        self._changed = threading.Condition()
        self._threads = threads
        self._turn = 0
        self.finished = False

    def begin(self, me: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == me or self.finished)

    def next(self, me: int) -> None:
        with self._changed:
            self._turn = (me + 1) % self._threads
            self._changed.notify_all()
        self.begin(me)

    def finish(self) -> None:
        with self._changed:
            self.finished = True
            self._changed.notify_all()


@dataclass(frozen=True)
class TakingTurns:
    """An executor that lets the other threads run a step each before it gives the result of its own."""

    inner: Executor
    turns: Turns
    me: int

    def submit(self, plan: StepPlan) -> None:
        self.inner.submit(plan)

    def collect(self) -> StepResult:
        result = self.inner.collect()
        self.turns.next(self.me)
        return result


@dataclass(frozen=True)
class UntilFinished(SilentObserver):
    turns: Turns

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self.turns.finished


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    config: SchedulerConfig
    plan: RequestPlan
    load: float | None = None  # of the capacity that the widest batch showed; None: all at t = 0


class Bench:
    """The reference engine's parts, shared by the threads as only one of them computes at a time."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.capacity_per_s = float("inf")  # requests; the load of a case is a share of it
        llama = model.llama
        self._pools = [
            KVPool(llama.config, WIDE.kv_blocks, WIDE.block_size, dtype=llama.dtype, device=llama.device)
            for _ in range(3)
        ]

    def pair(self, bases: Sequence[Case], other: Case) -> tuple[list[RunRecord], RunRecord]:
        """(runs of the bases, each again and again while the other ran; the run of the other)"""
        turns, base_runs, other_run = Turns(1 + len(bases)), [], []

        def run_other() -> None:
            turns.begin(0)
            other_run.append(self._run(other, turns, 0, SilentObserver()))
            turns.finish()

        def run_base(me: int, base: Case) -> None:
            turns.begin(me)
            while not turns.finished:
                base_runs.append(self._run(base, turns, me, UntilFinished(turns)))

        threads = [threading.Thread(target=run_other)]
        threads += [threading.Thread(target=run_base, args=numbered) for numbered in enumerate(bases, start=1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return base_runs, other_run[0]

    def pacing(self, case: Case) -> Pacing:
        rate_per_s = None if case.load is None else case.load * self.capacity_per_s
        return Pacing(case.plan.arrivals_ugap, rate_per_s=rate_per_s)

    def _run(self, case: Case, turns: Turns, me: int, observer: SilentObserver) -> RunRecord:
        clock = ThreadClock()
        executor = TorchExecutor(self._model.llama, self._pools[me], max_num_seqs=case.config.max_num_seqs, clock=clock)
        prompts = Prompts(case.plan, self._model.checkpoint.prompt_ids)
        return run_loop(
            Instance(case.config.build(), TakingTurns(executor, turns, me)),
            PlanSource(case.plan, self.pacing(case), prompts),
            clock,
            observer,
            planned=len(case.plan),
            make_request=_request,
        )


def _request(one: Incoming) -> Request:
    return Request(
        one.index, one.prompt_tokens, one.output_tokens,
        prompt=one.prompt, scheduled_ns=one.scheduled_ns, sent_ns=one.sent_ns,
    )  # fmt: skip


def _load(name: str) -> LoadedModel:
    if name in SHAPES:
        return load_model(name, weights="random", device="cpu", dtype="fp32")
    # Large enough that a step is arithmetic, not Python; small enough for minutes.
    small = ModelConfig(
        layers=8, d_model=384, heads=6, kv_heads=2, head_dim=64, ffn=1024, vocab=8192, max_position=2048, tied=True
    )
    cpu = torch.device("cpu")
    checkpoint = random_checkpoint(small, device=cpu, dtype=torch.float32, seed=0)
    return LoadedModel(name, Llama(checkpoint, dtype=torch.float32, device=cpu), checkpoint, "asked for")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-mean-error", type=float, default=0.25)
    parser.add_argument("--base", choices=("both", "wide"), default="both")
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(_load(args.model))
    chat, summaries = (_plan(spec, args.requests, seed=1) for spec in (CHAT, SUMMARIES))
    wide = Case("wide", WIDE, _plan(CHAT, BASE_REQUESTS, seed=2))
    light = Case("light", WIDE, _plan(CHAT, BASE_REQUESTS // 2, seed=3), load=BASE_LOAD)
    bases = [wide, light] if args.base == "both" else [wide]
    cases = [
        Case("16 slots again (noise)", WIDE, chat),
        Case("4 slots", replace(WIDE, max_num_seqs=4), chat),
        Case("8 slots", EIGHT, chat),
        Case("8 slots, 64 tokens a step", replace(EIGHT, max_num_batched_tokens=64), chat),
        Case("8 slots, prefill first", replace(EIGHT, prefill="prefill-first"), chat),
        Case("8 slots, static, padded", replace(EIGHT, mode="static"), chat),
        Case("8 slots, static, compact", replace(EIGHT, mode="static", static="compact-freed"), chat),
        Case("8 slots, KV of 768 tokens", replace(EIGHT, kv_blocks=48), chat),
        Case("8 slots, long prompts", EIGHT, summaries),
        Case("8 slots, load 0.4", EIGHT, chat, load=0.4),
        Case("8 slots, load 0.7", EIGHT, chat, load=0.7),
    ]
    _, first = bench.pair([wide], Case("capacity", WIDE, chat))
    bench.capacity_per_s = len(chat) / (first.steps["end_ns"][-1] / 1e9)
    print(
        f"model {args.model}, {args.requests} requests, {WIDE.max_num_batched_tokens} tokens a step, fitted to "
        f"{' and '.join(base.name for base in bases)}, torch {torch.__version__}\n"
    )
    print("| setting | " + " | ".join(f"{m} | error" for m in METRICS) + " |")
    print("|---|" + "---:|" * (2 * len(METRICS)))
    errors: list[list[float]] = []
    for case in cases:
        base_runs, real = bench.pair(bases, case)
        step_times = _fitted(base_runs, args.max_mean_error)
        predicted = SimulatedEngine(case.config, step_times).run(case.plan, bench.pacing(case), SilentObserver())
        measured, expected = _metrics(real), _metrics(predicted)
        errors.append([p / r - 1 for r, p in zip(measured, expected, strict=True)])
        cells = [f"{m:.1f} | {e:+.1%}" for m, e in zip(measured, errors[-1], strict=True)]
        print(f"| {case.name} | " + " | ".join(cells) + " |", flush=True)
    size = np.abs(errors[1:])
    print()
    for metric, mean, worst in zip(METRICS, size.mean(axis=0), size.max(axis=0), strict=True):
        print(f"{metric}: {mean:.1%} off on average, {worst:.1%} at worst")
    for regime, hold_out in step_times.origin.hold_out.items():
        print(f"hold-out, {regime}: {hold_out.steps} steps, mean {hold_out.mean:.1%}, P95 {hold_out.p95:.1%}, "
              f"total {hold_out.total:+.1%}")  # fmt: skip
    print(step_times.decode, step_times.mixed, step_times.gap, sep="\n")


def _plan(spec: str, num_requests: int, seed: int) -> RequestPlan:
    return build_plan(spec, num_requests=num_requests, seed=seed, arrival="poisson", max_model_len=WIDE.max_model_len)


def _fitted(runs: Sequence[RunRecord], max_mean_error: float) -> FittedStepTimes:
    measured = pooled([measured_steps(run.steps) for run in runs if len(run.steps)])
    return calibrate(measured, Origin(source="the base"), max_mean_error=max_mean_error)


def _metrics(record: RunRecord) -> list[float]:
    """METRICS, in tokens/s and ms."""
    times = request_times(record)
    tpot = times.tpot_ms[~np.isnan(times.tpot_ms)]
    seconds = (times.end_ns.max() - times.scheduled_ns.min()) / 1e9
    tokens_per_s = times.output_tokens.sum() / seconds
    return [float(v) for v in (tokens_per_s, tpot.mean(), np.percentile(tpot, 99), np.nanmedian(times.ttft_ms))]


if __name__ == "__main__":
    main()
