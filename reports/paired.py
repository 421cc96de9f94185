"""Paired statistics: how much a metric changed between two sides, with its standard error.

Several pairs of runs: the unit is the run, because requests of one run are correlated and machines differ from run to
run. Both sides of a pair replay the same plan, so the log-ratio of a pair is free of the randomness of the workload.

One pair of runs: its requests, matched by index, are resampled in blocks longer than their correlation. The interval
then covers the variation between requests of these two runs, and not the variation between runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from reports.quantiles import FloatArray, autocorrelation_time

RESAMPLES = 1000
MOST_VALUES = 1 << 22  # drawn at once
FEWEST_BLOCKS = 4  # fewer do not show how blocks differ

Statistic = Callable[[FloatArray], FloatArray]  # along the last axis


@dataclass(frozen=True)
class Spread:
    """An estimated log-ratio with its standard error and degrees of freedom."""

    log_ratio: float
    error: float
    freedom: float

    def interval(self, alpha: float) -> tuple[float, float]:
        """Two-sided, covering with probability 1 - alpha."""
        half = float(stdtrit(self.freedom, 1 - alpha / 2)) * self.error
        return self.log_ratio - half, self.log_ratio + half

    def p_value(self, *, upwards: bool) -> float:
        """One-sided: the probability of a change this far up (or down) where there is none."""
        change = self.log_ratio if upwards else -self.log_ratio
        if self.error == 0:
            return float(change <= 0)
        return float(stdtr(self.freedom, -change / self.error))


def paired_spread(log_ratios: Sequence[float]) -> Spread:
    """Student's t over two pairs of runs or more."""
    values = np.asarray(log_ratios)
    n = values.shape[0]
    return Spread(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(n), n - 1)


def holm_levels(p_values: Sequence[float], alpha: float) -> list[float]:
    """The level of each of several tests by Holm's procedure (Scand. J. Stat. 6, 1979), with family-wise error alpha:
    the smallest p at alpha / m, the next at alpha / (m - 1), ... until one is not rejected; the rest at its level."""
    levels = [alpha] * len(p_values)
    level, stopped = 0.0, False
    for place, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if not stopped:
            level = alpha / (len(p_values) - place)
            stopped = p_values[at] > level
        levels[at] = level
    return levels


def request_spread(before: FloatArray, after: FloatArray, stat: str, *, matched: bool) -> Spread | None:
    """Moving-block bootstrap of log(stat(after) / stat(before)) over requests in order of arrival (Kuensch, Ann. Stat.
    17, 1989). matched: the j-th value of both is the same request and is drawn on both sides. None with too few
    blocks."""
    statistic = statistic_of(stat)
    if min(before.shape[0], after.shape[0]) < 2:
        return None
    log_ratio = float(np.log(statistic(after)) - np.log(statistic(before)))
    groups = [[before, after]] if matched else [[before], [after]]
    variance, freedom = 0.0, math.inf
    for columns in groups:
        block = block_length(columns, stat)
        blocks = columns[0].shape[0] / block
        if blocks < FEWEST_BLOCKS:
            return None
        drawn = _resampled(columns, block, statistic)
        # Drawing b of b blocks underestimates the variance of the mean by (b - 1) / b.
        variance += float(drawn.var()) * blocks / (blocks - 1)
        freedom = min(freedom, blocks - 1)
    return Spread(log_ratio, math.sqrt(variance), freedom)


def statistic_of(stat: str) -> Statistic:
    if stat == "mean":
        return lambda values: np.asarray(values.mean(axis=-1))
    share = float(f"0.{stat[1:]}")
    return lambda values: np.asarray(np.quantile(values, share, axis=-1))


def block_length(columns: Sequence[FloatArray], stat: str) -> int:
    """Requests in a block: n^(1/3) tau^(2/3), tau of the influence of each request on the statistic. Of the form of
    Carlstein (Ann. Stat. 14, 1986)."""
    n = columns[0].shape[0]
    tau = autocorrelation_time(_influence(columns, stat))
    return max(1, min(n, math.ceil(n ** (1 / 3) * tau ** (2 / 3)))) if tau > 1 else 1


def _influence(columns: Sequence[FloatArray], stat: str) -> FloatArray:
    """Influence of each request on the log-ratio, to first order and up to a factor."""
    if stat == "mean":
        parts = [values / values.mean() for values in columns]
    else:
        share = float(f"0.{stat[1:]}")
        parts = [(values > np.quantile(values, share)).astype(np.float64) for values in columns]
    return np.asarray(parts[-1] - parts[0] if len(parts) > 1 else parts[0])


def _resampled(columns: Sequence[FloatArray], block: int, statistic: Statistic) -> FloatArray:
    """log(statistic) of each resample, or of the ratio with two columns. Seeded, so that a verdict is reproducible."""
    n = columns[0].shape[0]
    rng = np.random.Generator(np.random.PCG64(n))
    per_draw = math.ceil(n / block)
    at_once = max(1, MOST_VALUES // n)
    results = []
    for begin in range(0, RESAMPLES, at_once):
        draws = min(at_once, RESAMPLES - begin)
        picked = _block_indices(rng.integers(0, n, (draws, per_draw)), block, n)
        logs = [np.log(statistic(values[picked])) for values in columns]
        results.append(logs[-1] - logs[0] if len(logs) > 1 else logs[0])
    return np.concatenate(results)


def _block_indices(starts: NDArray[np.int64], block: int, n: int) -> NDArray[np.int64]:
    """Blocks wrap around, so that every request is drawn with the same probability."""
    return ((starts[:, :, None] + np.arange(block)) % n).reshape(starts.shape[0], -1)[:, :n]
