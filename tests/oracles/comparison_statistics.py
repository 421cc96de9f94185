"""How often the intervals of a comparison cover, its alarms are false, and a real change is found: measured on a queue.

    python -m tests.oracles.comparison_statistics        prints the table of docs/gates.md (minutes)

The queue is one server with Poisson arrivals and skewed services (Lindley's recursion), so latencies depend on each
other as those of a server do: at a load of 0.85 a wait is remembered over a hundred requests. A candidate is the same
queue, with the same arrivals and services, and a step that takes longer. A machine makes each run as a whole a little
faster or slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.signal import lfilter

from reports.budgets import Budget
from reports.checks import CheckVerdict
from reports.paired import Spread, holm_levels, paired_spread, request_spread, statistic_of
from reports.quantiles import FloatArray, effective_n, quantile, quantile_interval
from reports.regression import judge

REQUESTS = 1000
WARM_UP = 300
SLOWER = 1.03
ALPHA = 0.05  # 1 - the default confidence
DEFAULT_SHARES = {"ttft_ms": 0.05, "tpot_ms": 0.03, "e2el_ms": 0.05}
METRICS = (("ttft_ms", "p50"), ("tpot_ms", "mean"), ("e2el_ms", "mean"), ("tpot_ms", "p50"))


@dataclass(frozen=True)
class Latencies:
    """Of the requests of one run, in order of arrival."""

    ttft_ms: FloatArray
    tpot_ms: FloatArray
    e2el_ms: FloatArray


@dataclass(frozen=True)
class Work:
    """What both sides replay."""

    gaps: FloatArray
    services: FloatArray
    noise: FloatArray


def work_of(rng: np.random.Generator, load: float, requests: int) -> Work:
    n = requests + WARM_UP
    services = rng.lognormal(-0.5 * 0.8**2, 0.8, n)  # mean 1
    return Work(rng.exponential(1 / load, n), services, rng.lognormal(0, 0.1, n))


def serve(work: Work, slower: float = 1.0) -> Latencies:
    """Waits by Lindley's recursion; tokens come slower while others wait, smoothed as a batch smooths it."""
    path = np.cumsum(np.concatenate([[0.0], slower * work.services[:-1] - work.gaps[1:]]))
    waits = path - np.minimum.accumulate(path)
    crowd = lfilter([0.1], [1, -0.9], waits / (waits + 2))
    tpot = slower * 20 * (1 + 0.5 * crowd) * work.noise
    ttft = 1000 * waits + slower * 50 * work.services
    e2el = ttft + slower * 1000 * work.services
    return Latencies(*(column[WARM_UP:] for column in (ttft, tpot, e2el)))


def log_ratio(before: Latencies, after: Latencies, metric: str, stat: str) -> float:
    statistic = statistic_of(stat)
    return float(np.log(statistic(getattr(after, metric))) - np.log(statistic(getattr(before, metric))))


@cache
def truth(load: float, metric: str, stat: str, requests: int, runs: int) -> float:
    """The mean log-ratio of many pairs of such runs; of one very long pair when runs is 1."""
    rng = np.random.default_rng(10)
    ratios = []
    for _ in range(runs):
        work = work_of(rng, load, requests)
        ratios.append(log_ratio(serve(work), serve(work, SLOWER), metric, stat))
    return float(np.mean(ratios))


def request_intervals(load: float, metric: str, stat: str, repeats: int, *, matched: bool) -> Iterator[Spread | None]:
    """One stored baseline against one run."""
    rng = np.random.default_rng(11)
    for _ in range(repeats):
        work = work_of(rng, load, REQUESTS)
        other = work if matched else work_of(rng, load, REQUESTS)
        before, after = getattr(serve(work), metric), getattr(serve(other, SLOWER), metric)
        yield request_spread(before, after, stat, matched=matched)


def request_coverage(load: float, metric: str, stat: str, repeats: int) -> tuple[float, float]:
    """(share of the intervals given that hold the truth, share of runs that gave none)."""
    expected = truth(load, metric, stat, 2_000_000, 1)
    spreads = list(request_intervals(load, metric, stat, repeats, matched=True))
    given = [one.interval(0.05) for one in spreads if one is not None]
    return float(np.mean([low <= expected <= high for low, high in given])), 1 - len(given) / repeats


def tail_coverage(load: float, metric: str, requests: int, repeats: int) -> tuple[float, float]:
    """The same of the interval of a single run's P99."""
    rng = np.random.default_rng(12)
    expected = quantile(np.sort(getattr(serve(work_of(rng, load, 2_000_000)), metric)), 0.99)
    found = []
    for _ in range(repeats):
        values = getattr(serve(work_of(rng, load, requests)), metric)
        found.append(quantile_interval(np.sort(values), 0.99, effective_n(values)))
    given = [one for one in found if one is not None]
    covered = float(np.mean([low <= expected <= high for low, high in given])) if given else float("nan")
    return covered, 1 - len(given) / repeats


@dataclass(frozen=True)
class Series:
    """Six pairs of runs, or as many: the spread of each metric."""

    spreads: tuple[Spread, ...]  # in the order of METRICS

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """At the levels the gate uses: one-sided, all metrics being one family."""
        levels = holm_levels([one.p_value(upwards=True) for one in self.spreads], ALPHA)
        return [one.interval(2 * level) for one, level in zip(self.spreads, levels, strict=True)]

    def worse(self) -> list[bool]:
        """Which metrics are shown to be worse, whether that is a warning or more."""
        return [low > 0 for low, _ in self.intervals]

    def failed(self, share: float) -> list[bool]:
        budgets = [Budget(f"{stat}_{metric}", share) for metric, stat in METRICS]
        return [one == "fail" for one in self.verdicts(budgets)]

    def verdicts(self, budgets: Sequence[Budget]) -> list[CheckVerdict]:
        alone = [one.interval(2 * ALPHA) for one in self.spreads]
        return [judge(*one) for one in zip(budgets, self.intervals, alone, strict=True)]

    @property
    def exits_0(self) -> bool:
        """With the budgets of DEFAULTS."""
        budgets = [Budget(f"{stat}_{metric}", DEFAULT_SHARES[metric]) for metric, stat in METRICS]
        return {"fail", "inconclusive"}.isdisjoint(self.verdicts(budgets))


def log_ratios(load: float, pairs: int, machine_cv: float, slower: float, repeats: int) -> Iterator[FloatArray]:
    """Repetitions of `cbbench compare --ab`, [metric, pair]: every run has the machine's own factor."""
    rng = np.random.default_rng(13)
    for _ in range(repeats):
        ratios = np.empty((len(METRICS), pairs))
        for pair in range(pairs):
            work = work_of(rng, load, REQUESTS)
            ours, theirs = np.exp(rng.normal(0, machine_cv, 2))
            before, after = serve(work, ours), serve(work, slower * theirs)
            ratios[:, pair] = [log_ratio(before, after, *one) for one in METRICS]
        yield ratios


def series(load: float, pairs: int, machine_cv: float, slower: float, repeats: int) -> Iterator[Series]:
    for ratios in log_ratios(load, pairs, machine_cv, slower, repeats):
        yield Series(tuple(paired_spread(one) for one in ratios.tolist()))


def single_pairs(load: float, machine_cv: float, repeats: int) -> Iterator[Series]:
    """A/A in one pair of runs, by its requests; without pairs whose effective sample is too small."""
    rng = np.random.default_rng(14)
    for _ in range(repeats):
        work = work_of(rng, load, REQUESTS)
        before, after = (serve(work, float(one)) for one in np.exp(rng.normal(0, machine_cv, 2)))
        spreads = [request_spread(getattr(before, name), getattr(after, name), stat, matched=True)
                   for name, stat in METRICS]  # fmt: skip
        if all(one is not None for one in spreads):
            yield Series(tuple(one for one in spreads if one is not None))


@dataclass(frozen=True)
class Rates:
    """Shares of the repetitions."""

    any_worse: float  # some metric was shown to be worse
    any_failed: float
    tpot_worse: float  # mean TPOT was
    tpot_alone_worse: float  # it was, had it been the only one with a budget
    tpot_failed: float
    tpot_covered: float  # its 95 % interval holds the truth


def rates(load: float, machine_cv: float, slower: float, budget: float, repeats: int, pairs: int = 6) -> Rates:
    tpot = METRICS.index(("tpot_ms", "mean"))
    expected = 0.0 if slower == 1 else truth(load, "tpot_ms", "mean", REQUESTS, 300)
    made = list(series(load, pairs, machine_cv, slower, repeats))
    worse, failed = [one.worse() for one in made], [one.failed(budget) for one in made]
    alone = [one.spreads[tpot] for one in made]
    intervals = [one.interval(ALPHA) for one in alone]
    return Rates(
        any_worse=float(np.mean([any(one) for one in worse])),
        any_failed=float(np.mean([any(one) for one in failed])),
        tpot_worse=float(np.mean([one[tpot] for one in worse])),
        tpot_alone_worse=float(np.mean([one.p_value(upwards=True) <= ALPHA for one in alone])),
        tpot_failed=float(np.mean([one[tpot] for one in failed])),
        tpot_covered=float(np.mean([low <= expected <= high for low, high in intervals])),
    )


def main() -> None:
    print("| load | machine CV | A/A: some metric worse | A/A: some metric fails | +3 % seen among 4 metrics "
          "| +3 % seen alone | +3 % fails a budget of 1 % | 95 % interval covers |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for load in (0.5, 0.85):
        for cv in (0.005, 0.01, 0.02):
            same, slow = rates(load, cv, 1.0, 0.03, 1000), rates(load, cv, SLOWER, 0.01, 1000)
            print(f"| {load} | {cv:.1%} | {same.any_worse:.1%} | {same.any_failed:.1%} | {slow.tpot_worse:.1%} "
                  f"| {slow.tpot_alone_worse:.1%} | {slow.tpot_failed:.1%} | {slow.tpot_covered:.1%} |")  # fmt: skip
    print("\n| load | machine CV | one pair, A/A: some metric worse | some metric fails |\n| --- | --- | --- | --- |")
    for load in (0.5, 0.85):
        for cv in (0.002, 0.01):
            alone = list(single_pairs(load, cv, 400))
            worse = np.mean([any(one.worse()) for one in alone])
            failed = np.mean([any(one.failed(0.03)) for one in alone])
            print(f"| {load} | {cv:.1%} | {worse:.1%} | {failed:.1%} |")
    print("\n| interval | load | covers, of those given | not given |\n| --- | --- | --- | --- |")
    for load in (0.5, 0.85):
        for metric, stat in METRICS:
            covered, missing = request_coverage(load, metric, stat, 400)
            print(f"| one pair, {stat} {metric} | {load} | {covered:.1%} | {missing:.1%} |")
        for tail in ("ttft_ms", "tpot_ms"):
            covered, missing = tail_coverage(load, tail, 4000, 400)
            share = "–" if np.isnan(covered) else f"{covered:.1%}"
            print(f"| P99 of one run of 4,000, {tail} | {load} | {share} | {missing:.1%} |")


if __name__ == "__main__":
    main()
