"""What the verdicts of A/B achieve: `cbbench compare --ab` on the batch simulator, whose machine has noise.

    python benchmarks/verdicts_ab.py STEP_TIMES [--kv-blocks 27439] [--slots 64] [--load .5] [--cv .01] [--repeats 120]

azure-conv with Poisson arrivals, 600 requests a run. Each run as a whole is slower or faster by the machine's
coefficient of variation; B's steps take longer by a factor. The budgets are the defaults of `compare`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.verdicts import Engine
from reports.budgets import DEFAULTS, parse_budgets
from reports.paired import holm_levels, paired_spread
from reports.regression import judge

REQUESTS = 600
ALPHA = 0.05


def measured(engine: Engine, rate_per_s: float, seed: int, slower: float) -> dict[str, float]:
    """By the metrics of the default budgets."""
    times, _ = engine.times(rate_per_s, REQUESTS, seed, slower)
    return {
        "mean_tpot_ms": float(np.nanmean(times.tpot_ms)),
        "mean_e2el_ms": float(times.e2el_sched_ms.mean()),
        "p50_ttft_ms": float(np.median(times.ttft_sched_ms)),
        "output_token_per_s": float(times.output_tokens.sum() / times.end_ns.max()),
    }


def verdict(log_ratios: dict[str, list[float]]) -> str:
    """fail, inconclusive or exit 0."""
    budgets = parse_budgets(DEFAULTS)
    spreads = [paired_spread(log_ratios[one.metric]) for one in budgets]
    p_values = [one.p_value(upwards=budget.more_is_worse) for one, budget in zip(spreads, budgets, strict=True)]
    levels = holm_levels(p_values, ALPHA)
    found = {
        judge(budget, one.interval(2 * level), one.interval(2 * ALPHA))
        for budget, one, level in zip(budgets, spreads, levels, strict=True)
    }
    return "fail" if "fail" in found else "inconclusive" if "inconclusive" in found else "exit 0"


def series(
    engine: Engine, rate_per_s: float, pairs: int, slower: float, machine: NDArray[np.float64], seed: int
) -> str:
    ratios: dict[str, list[float]] = {}
    for pair in range(pairs):
        before = measured(engine, rate_per_s, seed + pair, machine[pair, 0])
        after = measured(engine, rate_per_s, seed + pair, slower * machine[pair, 1])
        for name, value in after.items():
            ratios.setdefault(name, []).append(float(np.log(value / before[name])))
    return verdict(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step_times", type=Path)
    for name, value in (("kv-blocks", 27_439), ("slots", 64), ("load", 0.5), ("cv", 0.01), ("repeats", 120)):
        parser.add_argument(f"--{name}", type=type(value), default=value)
    args = parser.parse_args()
    engine = Engine(args.step_times, args.kv_blocks, args.slots)
    rate = args.load * engine.capacity_per_s()
    rng = np.random.default_rng(3)
    print("| pairs | B is slower by | exit 0 | inconclusive | fail |\n| --- | --- | --- | --- | --- |")
    for pairs in (6, 12):
        for slower in (1.0, 1.038):
            noise = np.exp(rng.normal(0, args.cv, (args.repeats, pairs, 2)))
            found = [series(engine, rate, pairs, slower, one, at * pairs) for at, one in enumerate(noise)]
            shares = [f"{found.count(word) / args.repeats:.1%}" for word in ("exit 0", "inconclusive", "fail")]
            print(f"| {pairs} | {slower - 1:.1%} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
