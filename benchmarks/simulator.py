"""How fast the simulator is, and what it takes in memory. For its accuracy see simulator_accuracy.py.

    python benchmarks/simulator.py speed    [--requests 20000] [--rows 32] [--output-tokens 128]
    python benchmarks/simulator.py core     [--requests 20000] [--pairs 3]
    python benchmarks/simulator.py million  [--requests 1000000] [--rows 256]

speed    the scheduler's own loop or the core, whichever a run takes, in and out of saturation
core     the compiled core beside the scheduler's own loop, in turns in one process
million  wall time and peak memory of a million requests of Azure-like traffic, records in memory

Targets: 40,000 requests per second on the compiled core, without the records; a million requests in a minute and
1 GiB, with all records. docs/simulation.md has what was measured.
"""

from __future__ import annotations

import argparse
import resource
import time
from statistics import median

import numpy as np

from engines.base import Observer, SilentObserver
from engines.scheduling.config import SchedulerConfig
from engines.simulated.compiled_run import BLOCK_STEPS, CompiledCore
from engines.simulated.data_sheet import Deployment, step_times_of
from engines.simulated.engine import SimulatedEngine
from engines.simulated.hardware import find_hardware
from engines.simulated.shapes import find_shape
from engines.simulated.step_time import DecodeTerms, FittedStepTimes, GapTerms, MixedTerms, Origin
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.spec import build_plan

STEP_TIMES_8B = FittedStepTimes(
    calibrated=True,
    decode=DecodeTerms(step=16.88e6, row=41_600.0, kv=153.0),
    mixed=MixedTerms(
        step=15.9e6, token=30_000.0, beyond_knee=60_000.0, knee_tokens=192,
        row=41_600.0, kv=153.0, pair=9.0, prefill_kv=80.0,
    ),
    gap=GapTerms(step=500_000.0, row=10_000.0),
    origin=Origin(source="published kernel times of an 8B model on an RTX 4090"),
)  # fmt: skip


def speed(args: argparse.Namespace) -> None:
    """Saturated, with outputs around the mean (so that requests end one by one) and all of the same length."""
    n, mean = args.requests, args.output_tokens
    config = SchedulerConfig(
        kv_blocks=args.rows * 64, max_model_len=1024, max_num_seqs=args.rows, max_num_batched_tokens=512
    )
    outputs = {
        f"outputs of {mean // 2} to {mean + mean // 2} tokens": np.random.default_rng(0).integers(
            mean // 2, mean * 3 // 2 + 1, n
        ),
        f"outputs of {mean} tokens": np.full(n, mean),
    }
    for name, lengths in outputs.items():
        plan = RequestPlan.of(np.full(n, 64), lengths)
        _timed(f"{args.rows} rows, {name}", config, plan, None)
        _timed(f"{args.rows} rows, {name}, load 0.5", config, plan, 0.5 * args.rows / mean / 0.020)


def core(args: argparse.Namespace) -> None:
    """The compiled core beside the scheduler's own loop, in turns: azure-conv at 12 requests/s, 64 slots, an H100."""
    step_times = step_times_of(
        "llama-3.1-8b", find_shape("llama-3.1-8b"), find_hardware("h100"), Deployment(hardware="h100")
    )
    config = SchedulerConfig(kv_blocks=27_000, max_model_len=131_072, max_num_seqs=64, max_num_batched_tokens=8192)
    plan = build_plan("azure-conv", num_requests=args.requests, seed=0, arrival="poisson", max_model_len=131_072)
    engine = SimulatedEngine(config, step_times)
    tables = step_times.tables(config.max_num_seqs, config.max_num_batched_tokens)
    assert tables is not None

    def without_records(plan: RequestPlan, pacing: Pacing, observer: Observer) -> None:
        for _ in CompiledCore(config, tables, plan, pacing, step_times.front_end_ns, BLOCK_STEPS).blocks():
            pass

    ways = {"core alone": without_records, "core": engine.run, "scheduler's loop": engine.run_on_scheduler}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.pairs + 1):  # the first turn compiles, and is left out
        for name, run in ways.items():
            begin = time.process_time()
            run(plan, Pacing(plan.arrivals_ugap, rate_per_s=12.0), SilentObserver())
            taken[name].append(time.process_time() - begin)
    for name, seconds in taken.items():
        print(f"{name}: {len(plan) / median(seconds[1:]):,.0f} requests per CPU second")
    ratios = [slow / quick for quick, slow in zip(taken["core"][1:], taken["scheduler's loop"][1:], strict=True)]
    print(f"scheduler's loop / core: {median(ratios):.1f} ({', '.join(f'{one:.1f}' for one in ratios)})")


def million(args: argparse.Namespace) -> None:
    plan = build_plan("azure-conv", num_requests=args.requests, seed=1, arrival="poisson", max_model_len=16_384)
    config = SchedulerConfig(
        kv_blocks=args.rows * 128, max_model_len=16_384, max_num_seqs=args.rows, max_num_batched_tokens=8192
    )
    _timed(f"azure-conv, {args.rows} rows", config, plan, args.rate)


def _timed(name: str, config: SchedulerConfig, plan: RequestPlan, rate_per_s: float | None) -> None:
    begin, cpu = time.perf_counter(), time.process_time()
    record = SimulatedEngine(config, STEP_TIMES_8B).run(
        plan, Pacing(plan.arrivals_ugap, rate_per_s=rate_per_s), SilentObserver()
    )
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    simulated_s = record.steps["end_ns"][-1] / 1e9
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name}: {len(plan) / cpu_s:,.0f} requests and {len(record.steps) / cpu_s:,.0f} steps per CPU second, "
        f"{simulated_s / cpu_s:,.0f} times real time "
        f"({cpu_s:.1f} s of CPU, {wall_s:.1f} s in all, peak {peak_gib:.2f} GiB)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    two = commands.add_parser("speed")
    two.add_argument("--requests", type=int, default=20_000)
    two.add_argument("--rows", type=int, default=32)
    two.add_argument("--output-tokens", type=int, default=128)
    two.set_defaults(run=speed)
    pair = commands.add_parser("core")
    pair.add_argument("--requests", type=int, default=20_000)
    pair.add_argument("--pairs", type=int, default=3)
    pair.set_defaults(run=core)
    three = commands.add_parser("million")
    three.add_argument("--requests", type=int, default=1_000_000)
    three.add_argument("--rows", type=int, default=256)
    three.add_argument("--rate", type=float, default=None)
    three.set_defaults(run=million)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
