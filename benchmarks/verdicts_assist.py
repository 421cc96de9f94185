"""What the model-assisted verdict achieves: how often it passes and fails over whole runs of the batch simulator.

    python benchmarks/verdicts_assist.py STEP_TIMES [--kv-blocks 27439] [--runs 100] [--slots 64] [--loads .5,.85]
                                         [--requests 300] [--processes 2]

The load is that of benchmarks/verdicts.py. The engine that is measured has step times that the model does not: each
step is off by 5 % (lognormal), one in 500 takes five times as long, and each calibrated term is off by 3 % more, drawn
anew for each run. The true P99 is that of long runs whose steps all take the mean of the noise longer: it evens out
over many steps. A line is a cell; for each latency the shares in percent: false passes with the bound at the true P99 /
passes at 1.67 times it / false fails where the truth is 10 % inside / fails at 0.6 times it; then mean and standard
deviation of the log of corrected over true P99.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdicts import BOUNDS, LATENCIES, Engine, _column, list_of
from engines.scheduling.config import SchedulerConfig
from engines.simulated.calibrate import calibrate, measured_steps
from engines.simulated.replay import Replay, scaled
from engines.simulated.step_time import FittedStepTimes, Origin, load_step_times
from reports.assist import assisted, model_error, simulate, times_of
from reports.metrics import RequestTimes
from reports.schema import SlaResult
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.spec import build_plan

TRUTH_RUNS, TRUTH_REQUESTS, TRUTH_SEED = 20, 60_000, 5000
STEP_NOISE, HICCUPS, HICCUP = 0.05, 1 / 500, 5.0
TERMS_OFF = 0.03
CONTEXT = 131_072


@dataclass(frozen=True)
class Noisy:
    """The engine that is measured."""

    engine: Engine
    rate_per_s: float

    @property
    def replay(self) -> Replay:
        config = SchedulerConfig(
            kv_blocks=self.engine.kv_blocks, max_model_len=CONTEXT, max_num_seqs=self.engine.slots,
            max_num_batched_tokens=8192,
        )  # fmt: skip
        return Replay(config, 0, lambda plan: Pacing(plan.arrivals_ugap, rate_per_s=self.rate_per_s))

    def plan(self, requests: int, seed: int) -> RequestPlan:
        return build_plan("azure-conv", num_requests=requests, seed=seed, arrival="poisson", max_model_len=CONTEXT)

    def noise(self, seed: int, steps: int) -> NDArray[np.float64]:
        random = np.random.default_rng(seed)
        ratios = np.exp(random.normal(0.0, STEP_NOISE, steps))
        ratios[random.random(steps) < HICCUPS] *= HICCUP
        return ratios


def truth_ms(noisy: Noisy, run: int) -> list[NDArray[np.float64]]:
    longer = math.exp(STEP_NOISE**2 / 2) * (1 + (HICCUP - 1) * HICCUPS)
    model = scaled(load_step_times(noisy.engine.step_times), lambda: longer)
    columns, _ = noisy.replay.run(model, noisy.plan(TRUTH_REQUESTS, TRUTH_SEED + run))
    times = times_of(columns)
    return [times.latency(_column(one)) for one in LATENCIES]


def judged(noisy: Noisy, requests: int, seed: int, truth: Sequence[float]) -> list[tuple[str, float]]:
    """(verdict, corrected value or NaN) per latency and bound."""
    replay, plan = noisy.replay, noisy.plan(requests, seed)
    columns, steps = replay.run(load_step_times(noisy.engine.step_times), plan, noisy.noise(seed, 100_003))
    measured = measured_steps(steps)
    model = off(calibrate(measured, Origin(source="this run")), seed)
    found = simulate(replay, model, measured, plan, noisy.plan, model_error(model))
    times = times_of(columns)
    answers: list[tuple[str, float]] = []
    for name, value in zip(LATENCIES, truth, strict=True):
        for bound in BOUNDS.values():
            done = assisted(_result(times, name, bound * value), found)
            answers.append((done.verdict, done.value or np.nan))
    return answers


def off(model: FittedStepTimes, seed: int) -> FittedStepTimes:
    """The model with each term off by 3 %; simulate() scales it to the busy time of the run."""
    random = np.random.default_rng(seed + 77)
    return scaled(model, lambda: float(np.exp(random.normal(0.0, TERMS_OFF))))


def _result(times: RequestTimes, name: str, bound: float) -> SlaResult:
    column = times.latency(_column(name))
    value = float(np.nanquantile(column, 0.99))
    return SlaResult(
        expr=f"p99_{name}<={bound!r}", metric=f"p99_{_column(name)}", value=value, bound=bound, confidence=0.95,
        n=len(column), n_eff=None, verdict="inconclusive", reason="",
    )  # fmt: skip


def cell(noisy: Noisy, load: float, requests: int, runs: int, truth: Sequence[float], pool: Pool) -> str:  # type: ignore[valid-type]
    found = pool.starmap(judged, [(noisy, requests, seed, truth) for seed in range(runs)], chunksize=1)  # type: ignore[attr-defined]
    parts = [str(noisy.engine.slots), f"{load:g}", f"{requests:,}", str(runs)]
    for at, value in enumerate(truth):
        verdicts = np.array([[one[at * len(BOUNDS) + bound][0] for bound in range(len(BOUNDS))] for one in found])
        wanted = ("pass", "pass", "fail", "fail")
        shares = [100 * float((verdicts[:, bound] == word).mean()) for bound, word in enumerate(wanted)]
        logs = np.log([one[at * len(BOUNDS)][1] / value for one in found])
        spread = f"{np.nanmean(logs):+.2f} ± {np.nanstd(logs):.2f}, {int(np.isnan(logs).sum())} without"
        parts.append(" / ".join(f"{one:.1f}" for one in shares) + f" ({spread})")
    return f"| {' | '.join(parts)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step_times", type=Path)
    parser.add_argument("--kv-blocks", type=int, default=27_439)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    for name, kind, default in (("slots", int, "64"), ("loads", float, ".5,.85"), ("requests", int, "300")):
        parser.add_argument(f"--{name}", type=list_of(kind), default=list_of(kind)(default))
    args = parser.parse_args()
    names = [f"{name}: false pass, pass, false fail, fail (log of corrected over true)" for name in LATENCIES]
    print(f"| slots | load | requests | runs | {' | '.join(names)} |")
    print("| --- " * (4 + len(LATENCIES)) + "|")
    with Pool(args.processes) as pool:
        for slots in args.slots:
            engine = Engine(args.step_times, args.kv_blocks, slots)
            capacity = engine.capacity_per_s()
            for load in args.loads:
                noisy = Noisy(engine, load * capacity)
                several = pool.starmap(truth_ms, [(noisy, run) for run in range(TRUTH_RUNS)])
                truth = [float(np.nanquantile(np.concatenate(one), 0.99)) for one in zip(*several, strict=True)]
                print(f"{slots} slots, load {load:g}: P99 {truth} ms", file=sys.stderr, flush=True)
                for requests in args.requests:
                    print(cell(noisy, load, requests, args.runs, truth, pool), flush=True)


if __name__ == "__main__":
    main()
