"""How far the simulator's predictions are from the reference engine, on this machine's CPU, one thread.

    python benchmarks/simulator_accuracy.py [--model small|tiny|smollm2-135m] [--requests 64]

A law is fitted to runs of one setting (`base`) and predicts another, which it has never seen. A machine's speed drifts
by more than the errors to be found, so the two take turns step by step, each timed in the CPU time of its own thread.
In the first line the other setting is the base itself: what it shows is the noise that no prediction can get below.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from engines.base import RunRecord, SilentObserver
from engines.loop import Executor, run_loop
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
from engines.simulated.law import Origin, StepLaw
from reports.metrics import request_times
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts
from workloads.source import Incoming, PlanSource
from workloads.spec import build_plan

CHAT = "prompt=lognormal(median=64,sigma=0.8,max=384);output=lognormal(median=48,sigma=0.8,max=192)"
SUMMARIES = "prompt=lognormal(median=200,sigma=0.5,max=384);output=lognormal(median=16,sigma=0.5,max=64)"
BASE = SchedulerConfig(kv_blocks=1024, max_model_len=640, max_num_seqs=8, max_num_batched_tokens=256)
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
    """Lets two threads go on one after the other, until one of them has finished."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._whose = 0
        self.finished = False

    def next(self, me: int) -> None:
        with self._changed:
            self._whose = 1 - me
            self._changed.notify()
            self._changed.wait_for(lambda: self._whose == me or self.finished)

    def finish(self) -> None:
        with self._changed:
            self.finished = True
            self._changed.notify()


@dataclass(frozen=True)
class TakingTurns:
    """An executor that lets the other thread run a step before it gives the result of its own."""

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
    load: float | None = None  # of the capacity that the base showed; None: all at t = 0


class Bench:
    """The reference engine's parts, shared by the two threads as only one of them computes at a time."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        llama = model.llama
        self._pools = [
            KVPool(llama.config, BASE.kv_blocks, BASE.block_size, dtype=llama.dtype, device=llama.device)
            for _ in range(2)
        ]

    def pair(self, base: Case, other: Case, rate_per_s: float | None) -> tuple[list[RunRecord], RunRecord]:
        """(runs of the base while the other ran, the run of the other)"""
        turns, base_runs, other_run = Turns(), [], []

        def run_other() -> None:
            other_run.append(self._run(other, rate_per_s, turns, 1, SilentObserver()))
            turns.finish()

        thread = threading.Thread(target=run_other)
        thread.start()
        while not turns.finished:
            base_runs.append(self._run(base, None, turns, 0, UntilFinished(turns)))
        thread.join()
        return base_runs, other_run[0]

    def _run(self, case: Case, rate_per_s: float | None, turns: Turns, me: int, observer: SilentObserver) -> RunRecord:
        clock = ThreadClock()
        executor = TorchExecutor(self._model.llama, self._pools[me], max_num_seqs=case.config.max_num_seqs, clock=clock)
        prompts = Prompts(case.plan, self._model.checkpoint.prompt_ids)
        return run_loop(
            case.config.build(),
            TakingTurns(executor, turns, me),
            PlanSource(case.plan, Pacing(case.plan.arrivals_ugap, rate_per_s=rate_per_s), prompts),
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
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(_load(args.model))
    chat, summaries = (_plan(spec, args.requests, BASE.max_model_len) for spec in (CHAT, SUMMARIES))
    base = Case("base again (noise)", BASE, chat)
    cases = [
        base,
        Case("max_num_seqs 4", replace(BASE, max_num_seqs=4), chat),
        Case("max_num_seqs 16", replace(BASE, max_num_seqs=16), chat),
        Case("budget 64 tokens", replace(BASE, max_num_batched_tokens=64), chat),
        Case("prefill first", replace(BASE, prefill="prefill-first"), chat),
        Case("static, padded", replace(BASE, mode="static"), chat),
        Case("static, compact", replace(BASE, mode="static", static="compact-freed"), chat),
        Case("KV of 768 tokens", replace(BASE, kv_blocks=48), chat),
        Case("long prompts", BASE, summaries),
        Case("load 0.4", BASE, chat, load=0.4),
        Case("load 0.7", BASE, chat, load=0.7),
    ]
    _, first = bench.pair(base, base, None)
    capacity_per_s = len(chat) / (first.steps["end_ns"][-1] / 1e9)
    print(
        f"model {args.model}, {args.requests} requests, {BASE.max_num_seqs} seats, "
        f"{BASE.max_num_batched_tokens} tokens a step, torch {torch.__version__}\n"
    )
    print("| setting | " + " | ".join(f"{m} | error" for m in METRICS) + " |")
    print("|---|" + "---:|" * (2 * len(METRICS)))
    errors: list[list[float]] = []
    for case in cases:
        rate_per_s = None if case.load is None else case.load * capacity_per_s
        base_runs, real = bench.pair(base, case, rate_per_s)
        law = _law(base_runs, args.max_mean_error)
        pacing = Pacing(case.plan.arrivals_ugap, rate_per_s=rate_per_s)
        predicted = SimulatedEngine(case.config, law).run(case.plan, pacing, SilentObserver())
        measured, expected = _metrics(real), _metrics(predicted)
        errors.append([p / r - 1 for r, p in zip(measured, expected, strict=True)])
        cells = [f"{m:.1f} | {e:+.1%}" for m, e in zip(measured, errors[-1], strict=True)]
        print(f"| {case.name} | " + " | ".join(cells) + " |", flush=True)
    size = np.abs(errors[1:])
    print()
    for metric, mean, worst in zip(METRICS, size.mean(axis=0), size.max(axis=0), strict=True):
        print(f"{metric}: {mean:.1%} off on average, {worst:.1%} at worst")
    for regime, hold_out in law.origin.hold_out.items():
        print(f"hold-out, {regime}: {hold_out.steps} steps, mean {hold_out.mean:.1%}, P95 {hold_out.p95:.1%}, "
              f"total {hold_out.total:+.1%}")  # fmt: skip
    print(law.decode, law.mixed, law.gap, sep="\n")


def _plan(spec: str, num_requests: int, max_model_len: int) -> RequestPlan:
    return build_plan(spec, num_requests=num_requests, seed=1, arrival="poisson", max_model_len=max_model_len)


def _law(runs: Sequence[RunRecord], max_mean_error: float) -> StepLaw:
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
