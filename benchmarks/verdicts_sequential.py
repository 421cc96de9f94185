"""What `run --until-decided` achieves: how often its verdicts are right, and after how many requests.

    python benchmarks/verdicts_sequential.py STEP_TIMES [--kv-blocks 27439] [--runs 200] [--slots 64] [--loads .5,.85]
                                             [--most 16000] [--processes 2]

Runs, load and bounds are those of benchmarks/verdicts.py; the rounds and their test those of the command. A line is a
cell; for each latency the shares in percent: false passes with the bound at the true P99 / passes at 1.67 times it /
false fails where the truth is 10 % inside / fails at 0.6 times it; then the median of the requests that the second and
the fourth took.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from multiprocessing.pool import Pool as PoolType
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.verdicts import BOUNDS, LATENCIES, TRUTH_RUNS, Engine, list_of, truth_ms, with_ledger
from cbbench.experiment.until_decided import FIRST_ROUND
from reports.judge import Judge
from reports.pooled import pooled_result
from reports.schema import Criteria, SlaResult
from reports.sequential import confidence_of_look
from reports.sla import parse_all
from reports.summary_schema import Throughput

SEEDS = 1000  # between two runs, so that their rounds differ
CONFIDENCE = 0.95
WANTED = ("pass", "pass", "fail", "fail")


def rounds_of(most: int) -> list[int]:
    """Requests of each round."""
    sizes = [FIRST_ROUND]
    while sum(sizes) < most:
        sizes.append(min(sum(sizes), most - sum(sizes)))
    return sizes


def decided(
    engine: Engine, rate_per_s: float, sizes: Sequence[int], seed: int, truth: Sequence[float]
) -> list[tuple[str, int]]:
    """(verdict, requests until it) per latency and bound."""
    slas = [f"p99_{name}<={bound * value!r}" for name, value in zip(LATENCIES, truth, strict=True)
            for bound in BOUNDS.values()]  # fmt: skip
    judges: list[Judge] = []
    answers: list[tuple[str, int] | None] = [None] * len(slas)
    for look, size in enumerate(sizes, 1):
        times, steps = engine.times(rate_per_s, size, SEEDS * seed + look)
        judges.append(Judge(with_ledger(steps), times, Throughput(1.0, None, None, None), Criteria(), open_loop=True))
        missing = [at for at, answer in enumerate(answers) if answer is None]
        for at, one in zip(missing, _at_look(judges, [slas[at] for at in missing], look), strict=True):
            if one.verdict != "inconclusive":
                answers[at] = (one.verdict, sum(sizes[:look]))
        if all(answer is not None for answer in answers):
            break
    return [("inconclusive", sum(sizes)) if one is None else one for one in answers]


def _at_look(judges: Sequence[Judge], slas: Sequence[str], look: int) -> list[SlaResult]:
    criteria = Criteria(sla=tuple(slas), confidence=confidence_of_look(CONFIDENCE, look))
    parsed = parse_all(slas)
    results = [Judge(one.record, one.times, one.throughput, criteria, open_loop=True).results(parsed) for one in judges]
    pooled = [pooled_result(several) for several in zip(*results, strict=True)]
    return [first if one is None else one for first, one in zip(results[0], pooled, strict=True)]


@dataclass(frozen=True)
class Cell:
    engine: Engine
    load: float
    rate_per_s: float
    sizes: tuple[int, ...]
    runs: int
    truth: tuple[float, ...]

    def row(self, pool: PoolType) -> str:
        arguments = [(self.engine, self.rate_per_s, self.sizes, 1 + seed, self.truth) for seed in range(self.runs)]
        found = pool.starmap(decided, arguments, chunksize=1)
        parts = [str(self.engine.slots), f"{self.load:g}", f"{sum(self.sizes):,}", str(self.runs)]
        for at, _ in enumerate(LATENCIES):
            of = [[one[at * len(BOUNDS) + bound] for one in found] for bound in range(len(BOUNDS))]
            shares = [100 * float(np.mean([one[0] == word for one in several]))
                      for several, word in zip(of, WANTED, strict=True)]  # fmt: skip
            took = [float(np.median([one[1] for one in of[bound]])) for bound in (1, 3)]
            parts.append(" / ".join(f"{one:.1f}" for one in shares) + f"; {took[0]:,.0f} and {took[1]:,.0f}")
        return f"| {' | '.join(parts)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step_times", type=Path)
    parser.add_argument("--kv-blocks", type=int, default=27_439)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--most", type=int, default=16_000)
    parser.add_argument("--processes", type=int, default=2)
    for name, kind, default in (("slots", int, "64"), ("loads", float, ".5,.85")):
        parser.add_argument(f"--{name}", type=list_of(kind), default=list_of(kind)(default))
    args = parser.parse_args()
    names = [f"{name}: false pass, pass, false fail, fail; requests" for name in LATENCIES]
    print(f"| slots | load | at most | runs | {' | '.join(names)} |")
    print("| --- " * (4 + len(LATENCIES)) + "|")
    with Pool(args.processes) as pool:
        for slots in args.slots:
            engine = Engine(args.step_times, args.kv_blocks, slots)
            capacity = engine.capacity_per_s()
            for load in args.loads:
                several = pool.starmap(truth_ms, [(engine, load * capacity, run) for run in range(TRUTH_RUNS)])
                truth = tuple(float(np.nanquantile(np.concatenate(one), 0.99)) for one in zip(*several, strict=True))
                print(f"{slots} slots, load {load:g}: P99 {truth} ms", file=sys.stderr, flush=True)
                sizes = tuple(rounds_of(args.most))
                print(Cell(engine, load, load * capacity, sizes, args.runs, truth).row(pool), flush=True)


if __name__ == "__main__":
    main()
