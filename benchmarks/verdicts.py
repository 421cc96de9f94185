"""What the verdicts on a P99 achieve: how often they pass and fail over whole runs of the batch simulator.

    python benchmarks/verdicts.py STEP_TIMES [--kv-blocks 27439] [--runs 1000] [--slots 16,64] [--loads .5,.7,.85,.95]
                                  [--requests 500,2000,3000,5000,20000] [--most 20000000] [--processes 2]
                                  [--first-seed 0] [--truth-runs 8]

STEP_TIMES is a step-time model as `cbbench calibrate` writes it. azure-conv with Poisson arrivals, from an empty
engine; load is the rate over the burst capacity, at which as many requests complete per second if all arrive at once.
The true P99 is that of long runs with other seeds. A cell is a line: its bounds are the truth (a pass is false), 1.67
times the truth (a pass is right), the truth over 0.9, which it is 10 % inside (a fail is false), and 0.6 times the
truth (a fail is right). The four shares in percent, for each latency.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from multiprocessing.pool import Pool as PoolType
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from engines.base import RunRecord
from engines.ledger import StepArray
from engines.request_table import RequestTable
from engines.scheduling.config import SchedulerConfig
from engines.simulated import compiled_core as core
from engines.simulated.compiled_run import BLOCK_STEPS, CompiledCore
from engines.simulated.step_time import load_step_times
from reports.counted_values import CountedValues
from reports.judge import Judge
from reports.metrics import RequestTimes
from reports.schema import Criteria
from reports.sla import parse_all
from reports.summary_schema import Throughput
from workloads.pacing import Pacing
from workloads.spec import build_plan

CAPACITY_REQUESTS = 6000
TRUTH_RUNS, TRUTH_REQUESTS, TRUTH_SEED = 8, 150_000, 1_000_000
ROWS = 3  # index of the launched rows among the arguments of a run on the compiled core
LATENCIES = ("ttft_ms", "tpot_ms", "e2el_ms")
BOUNDS = {"truth": 1.0, "1.67 x": 1.67, "10 % inside": 1 / 0.9, "0.6 x": 0.6}


@dataclass(frozen=True)
class Engine:
    step_times: Path
    kv_blocks: int
    slots: int

    def times(
        self, rate_per_s: float | None, requests: int, seed: int, slower: float = 1.0
    ) -> tuple[RequestTimes, StepArray]:
        """One run: latencies without single gaps, and the ledger. slower: factor of the time of each step."""
        model = load_step_times(self.step_times)
        config = SchedulerConfig(
            kv_blocks=self.kv_blocks, max_model_len=131_072, max_num_seqs=self.slots, max_num_batched_tokens=8192
        )
        plan = build_plan("azure-conv", num_requests=requests, seed=seed, arrival="poisson", max_model_len=131_072)
        pacing = Pacing(plan.arrivals_ugap, rate_per_s=rate_per_s)
        tables = model.tables(config.max_num_seqs, config.max_num_batched_tokens)
        run = CompiledCore(config, tables, plan, pacing, model.front_end_ns, BLOCK_STEPS)
        if slower != 1:
            run._times = _scaled(run._times, slower)
        steps = np.concatenate([block.steps for block in run.blocks()])
        return _request_times(run._request), steps

    def capacity_per_s(self) -> float:
        times, _ = self.times(None, CAPACITY_REQUESTS, TRUTH_SEED)
        return CAPACITY_REQUESTS / (float(times.end_ns.max()) / 1e9)


def _scaled(times: tuple[Any, ...], factor: float) -> tuple[Any, ...]:
    """The terms of the step time of CompiledCore; the fourth is the number of launched rows."""
    return tuple(one if at == ROWS else _like(one, one * factor) for at, one in enumerate(times))


def _like(before: Any, after: Any) -> Any:
    return after.astype(before.dtype) if isinstance(before, np.ndarray) else type(before)(after)


def _request_times(columns: NDArray[np.int64]) -> RequestTimes:
    n = len(columns)
    scheduled, sent, first, last = (columns[:, at] for at in (core.R_SCHEDULED, core.R_SENT, core.R_FIRST, core.R_LAST))
    tokens = columns[:, core.R_DONE]
    several = (tokens > 1) & (last > first)
    tpot_ms = np.where(several, (last - first) / 1e6 / np.maximum(tokens - 1, 1), np.nan)
    no, yes = np.zeros(n, np.bool_), np.ones(n, np.bool_)
    ttft_ms, e2el_ms = (first - scheduled) / 1e6, (last - scheduled) / 1e6
    return RequestTimes(
        row=np.arange(n), completed=yes, failed=no, rejected=no, cancelled=no, was_sent=yes, single_token=~several,
        prompt_tokens=columns[:, core.R_PROMPT], output_tokens=tokens, scheduled_ns=scheduled, first_ns=first,
        last_ns=last, end_ns=last, ttft_ms=(first - sent) / 1e6, tpot_ms=tpot_ms, e2el_ms=(last - sent) / 1e6,
        ttft_sched_ms=ttft_ms, e2el_sched_ms=e2el_ms, ttfot_ms=ttft_ms,
        gaps_ms=CountedValues(np.empty(0), np.empty(0, np.int64)), gaps_in_time_ms=np.empty(0),
    )  # fmt: skip


def _column(latency: str) -> str:
    """As an SLA in open loop reads it."""
    return latency if latency == "tpot_ms" else latency.replace("_ms", "_sched_ms")


def truth_ms(engine: Engine, rate_per_s: float, run: int) -> list[NDArray[np.float64]]:
    times, _ = engine.times(rate_per_s, TRUTH_REQUESTS, TRUTH_SEED + run)
    return [times.latency(_column(one)) for one in LATENCIES]


def verdicts(engine: Engine, rate_per_s: float, requests: int, seed: int, truth: Sequence[float]) -> list[str]:
    """One per latency and bound."""
    times, steps = engine.times(rate_per_s, requests, seed)
    record = with_ledger(steps)
    slas = [f"p99_{name}<={bound * value!r}" for name, value in zip(LATENCIES, truth, strict=True)
            for bound in BOUNDS.values()]  # fmt: skip
    judge = Judge(record, times, Throughput(1.0, None, None, None), Criteria(sla=tuple(slas)), open_loop=True)
    return [one.verdict for one in judge.results(parse_all(slas))]


def with_ledger(steps: StepArray) -> RunRecord:
    """A record that has the ledger alone: the load of the run."""
    return RunRecord(planned=0, rows=RequestTable.of([]), event_values=np.empty(0, np.uint32), event_unit="us",
                     steps=steps)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    engine: Engine
    load: float
    rate_per_s: float
    requests: int
    seeds: range
    truth: tuple[float, ...]

    def row(self, pool: PoolType) -> str:
        arguments = [(self.engine, self.rate_per_s, self.requests, seed, self.truth) for seed in self.seeds]
        found, runs = pool.starmap(verdicts, arguments, chunksize=4), len(self.seeds)
        parts = [str(self.engine.slots), f"{self.load:g}", f"{self.requests:,}", str(runs)]
        for at, _ in enumerate(LATENCIES):
            counts = [Counter(one[at * len(BOUNDS) + bound] for one in found) for bound in range(len(BOUNDS))]
            truth, wide, inside, tight = counts
            shares = (truth["pass"], wide["pass"], inside["fail"], tight["fail"])
            parts += [" / ".join(f"{100 * one / runs:.1f}" for one in shares)]
        return f"| {' | '.join(parts)} |"


def rows(args: argparse.Namespace, pool: PoolType) -> Iterator[str]:
    for slots in args.slots:
        engine = Engine(args.step_times, args.kv_blocks, slots)
        capacity = engine.capacity_per_s()
        print(f"{slots} slots: {capacity:.2f} requests/s", file=sys.stderr)
        for load in args.loads:
            rate = load * capacity
            several = pool.starmap(truth_ms, [(engine, rate, run) for run in range(args.truth_runs)])
            truth = tuple(float(np.nanquantile(np.concatenate(one), 0.99)) for one in zip(*several, strict=True))
            print(f"{slots} slots, load {load:g}: P99 {truth} ms", file=sys.stderr)
            for requests in args.requests:
                runs = max(1, min(args.runs, args.most // requests))
                yield Cell(engine, load, rate, requests, range(args.first_seed, args.first_seed + runs), truth).row(
                    pool
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step_times", type=Path)
    parser.add_argument("--kv-blocks", type=int, default=27_439)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--most", type=int, default=20_000_000, help="requests of a cell; it has fewer runs beyond")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0, help="of the runs; the truth has seeds of its own")
    parser.add_argument("--truth-runs", type=int, default=TRUTH_RUNS, help="long runs that give the true P99")
    for name, kind, default in (("slots", int, "16,64"), ("loads", float, ".5,.7,.85,.95"),
                                ("requests", int, "500,2000,3000,5000,20000")):  # fmt: skip
        parser.add_argument(f"--{name}", type=list_of(kind), default=list_of(kind)(default))
    args = parser.parse_args()
    names = [f"{name}: {', '.join(('false pass', 'pass', 'false fail', 'fail'))}" for name in LATENCIES]
    print(f"| slots | load | requests | runs | {' | '.join(names)} |")
    print("| --- " * (4 + len(LATENCIES)) + "|")
    with Pool(args.processes) as pool:
        for row in rows(args, pool):
            print(row, flush=True)


def list_of(kind: Callable[[str], int | float]) -> Callable[[str], list[int | float]]:
    return lambda text: [kind(one) for one in text.split(",")]


if __name__ == "__main__":
    main()
