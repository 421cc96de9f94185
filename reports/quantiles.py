"""Percentiles, their confidence intervals, and the binomial test of a percentile.

Latencies of one run are correlated: a request that arrives while the queue is long waits long, and so does the next.
The effective sample size of n requests is n / tau, where tau is the integrated autocorrelation time in order of
sending. Every interval and every test here uses it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betainc, ndtri

from reports.counted_values import CountedValues
from reports.summary_schema import Distribution

FloatArray = NDArray[np.float64]
Ordered = FloatArray | CountedValues  # ascending

# tau is a property of the process, so this many values from the middle of the series are enough to estimate it.
TAU_SAMPLE = 1 << 18

# The dependence that a test of the tail needs is that of the values in the tail: at least this share of all, and so
# many, as the few beyond a bound that is met do not show how they cluster.
TAIL_SHARE = 0.02
TAIL_VALUES = 20
# An estimated tau is too small where the run met few clusters; n / (margin * tau) holds what a verdict claims
# (benchmarks/verdicts.py). By whether the latency contains the queue.
MARGIN = 1.05
MARGIN_WITH_QUEUE = 1.25
MOST_NEEDED = 10**9  # requests; beyond, no number is named

# White noise of length n has lag sums of standard deviation sqrt(m / n). Only sums beyond 2.5 of them count as
# correlation; otherwise the noise of the estimate alone would reduce every independent sample by a fifth.
NOISE_LIMIT = 2.5
NOISE_LAGS = (1, 4, 16, 64)


def autocorrelation(values: FloatArray) -> FloatArray:
    """rho[0..n-1] by FFT; the biased estimate (divides by n), which keeps the sequence positive definite."""
    n = values.shape[0]
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 1 << (2 * n - 1).bit_length())
    covariance = np.fft.irfft(spectrum * spectrum.conj())[:n]
    return np.asarray(covariance / covariance[0], dtype=np.float64)


def autocorrelation_time(values: FloatArray) -> float:
    """tau = 1 + 2 * sum of rho(k), at least 1, of a series in order of sending.

    Geyer's initial monotone sequence (Practical Markov Chain Monte Carlo, 1992): the sums rho(2k) + rho(2k+1) of a
    stationary process decrease and stay positive, so they are added up to the first that is not positive, each no
    larger than the one before. 1 where the series is no more correlated than white noise of its length.
    """
    if values.shape[0] > TAU_SAMPLE:
        start = (values.shape[0] - TAU_SAMPLE) // 2
        values = values[start : start + TAU_SAMPLE]
    n = values.shape[0]
    if n < 4 or np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())):
        return 1.0
    rho = autocorrelation(values)
    lag_sums = np.cumsum(rho[1:])
    if all(lag_sums[m - 1] <= NOISE_LIMIT * math.sqrt(m / n) for m in NOISE_LAGS if m < n):
        return 1.0
    pairs = rho[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    ended = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: ended[0]] if ended.size else pairs)
    return float(np.clip(2 * pairs.sum() - 1, 1.0, n))


def effective_n(values: FloatArray) -> float:
    """Effective sample size of a series in order of sending: n / tau."""
    n = values.shape[0]
    return float(n / autocorrelation_time(values))


def tail_effective_n(values: FloatArray, bound: float, share: float = TAIL_SHARE, *, queued: bool) -> float:
    """Effective sample size for a test of the tail beyond a bound, of values in order of sending, infinite where one is
    missing. queued: the latency contains the queue, so the dependence of all values counts as well."""
    n = values.shape[0]
    tau = autocorrelation_time(tail_indicator(values, np.sort(values), bound, share))
    present = values[np.isfinite(values)]
    if queued and present.shape[0]:
        tau = max(tau, autocorrelation_time(present))
    return float(n / with_margin(tau, n, queued=queued))


def with_margin(tau: float, n: int, *, queued: bool) -> float:
    """tau with its margin, at most n; 1 stays 1."""
    return min(n, (MARGIN_WITH_QUEUE if queued else MARGIN) * tau) if tau > 1 else 1.0


def tail_values(n: int, share: float = TAIL_SHARE) -> int:
    """How many of n values are the tail: that share, 20 at least, half at most."""
    return min(max(TAIL_VALUES, math.ceil(share * n)), max(1, n // 2))


def tail_indicator(values: FloatArray, ordered: Ordered, bound: float, share: float = TAIL_SHARE) -> FloatArray:
    """1 where a value is beyond the bound, or among the largest `share` of all (20 values at least) where that is the
    lower threshold, else 0. values: in order of sending; ordered: all values, ascending."""
    n = len(ordered)
    threshold = float(ordered[n - tail_values(n, share)])
    beyond = values > bound if bound < threshold else values >= threshold
    return beyond.astype(np.float64)


def rank_interval(n: int, p: float, confidence: float) -> tuple[int, int] | None:
    """Ranks (from 1) of the order statistics that enclose the p-quantile of n independent values with `confidence`,
    each tail taking half of the rest: P(Bin(n, p) < low) and P(Bin(n, p) >= high). None if n is too small for one
    (under 368 for P99 at 0.95). Distribution-free; papers.md 3.4."""
    tail = (1 - confidence) / 2
    reach = 10 * math.sqrt(n * p * (1 - p)) + 10  # ranks further off have no weight
    begin = max(0, math.floor(n * p - reach))
    at_most = bdtr(np.arange(begin, min(n, math.ceil(n * p + reach)) + 1), n, p)  # P(Bin <= rank)
    low = begin + int(np.searchsorted(at_most, tail, side="right"))  # P(Bin <= low - 1) <= tail
    high = begin + int(np.searchsorted(at_most, 1 - tail, side="left")) + 1  # P(Bin <= high - 1) >= 1 - tail
    return (low, high) if low >= 1 and high <= n else None


def quantile_interval(ordered: Ordered, p: float, n_eff: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """Confidence interval of the p-quantile of sorted values with effective sample size n_eff; None where that is too
    small.

    The ranks are those of n_eff values, scaled to the ranks of all values and rounded outwards.
    """
    n, m = len(ordered), math.floor(n_eff)
    ranks = rank_interval(m, p, confidence) if m else None
    if ranks is None:
        return None
    low, high = math.floor(ranks[0] * n / m), min(n, math.ceil(ranks[1] * n / m))
    return float(ordered[low - 1]), float(ordered[high - 1])


def wilson_interval(share: float, n_eff: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """Wilson's score interval of a share of n_eff independent trials (JASA 22, 1927). None below one trial."""
    if n_eff < 1:
        return None
    z = float(ndtri((1 + confidence) / 2))
    centre = share + z * z / (2 * n_eff)
    half = z * math.sqrt(share * (1 - share) / n_eff + z * z / (4 * n_eff * n_eff))
    scale = 1 + z * z / n_eff
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def quantile(ordered: Ordered, p: float) -> float:
    """Linear interpolation of sorted values, as np.quantile by default, but without sorting again, and infinite where
    an infinite value takes part, where NumPy gives NaN."""
    at = p * (len(ordered) - 1)
    low = math.floor(at)
    below = float(ordered[low])
    if at == low or math.isinf(below):
        return below
    return float(below + (ordered[low + 1] - below) * (at - low))


def distribution(values: FloatArray, n_eff: float | None = None) -> Distribution:
    """Count, mean, population standard deviation and percentiles, without missing values (NaN). values: in order of
    sending, unless n_eff gives their effective sample size."""
    values = values[~np.isnan(values)]
    if values.shape[0] == 0:
        return Distribution(count=0)
    if n_eff is None:
        n_eff = effective_n(values)
    return _distribution(np.sort(values), float(values.mean()), float(values.std()), n_eff)


def counted_distribution(values: CountedValues, n_eff: float) -> Distribution:
    """The same of counted values."""
    if len(values) == 0:
        return Distribution(count=0)
    return _distribution(values, values.mean(), values.std(), n_eff)


def _distribution(ordered: Ordered, mean: float, std: float, n_eff: float) -> Distribution:
    p50, p90, p95, p99, p999 = (quantile(ordered, p) for p in (0.5, 0.9, 0.95, 0.99, 0.999))
    return Distribution(
        count=len(ordered),
        mean=mean,
        std=std,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        p999=p999,
        p99_ci=quantile_interval(ordered, 0.99, n_eff),
        max=float(ordered[-1]),
    )


def accepts(total: int, violations: int, p: float, confidence: float) -> bool:
    """Whether `total` independent requests, `violations` of them beyond the bound, prove that a share p is within it.

    The binomial early-stopping test of MLPerf's loadgen (early_stopping.cc): with t violations it takes the smallest h
    requests within the bound with I_p(h, t + 1) <= 1 - confidence, I the regularised incomplete beta function.
    """
    within = total - violations
    return within > 0 and float(betainc(within, violations + 1, p)) <= 1 - confidence


def refuses(total: int, violations: int, p: float, confidence: float) -> bool:
    """Whether `total` independent requests, `violations` of them beyond the bound, prove that less than a share p is
    within it: the mirror of `accepts`. The lower bound of Clopper and Pearson (Biometrika 26, 1934) on the share beyond
    is then above 1 - p, which is P(Bin(total, 1 - p) >= violations) <= 1 - confidence."""
    within = total - violations
    return violations > 0 and float(betainc(violations, within + 1, 1 - p)) <= 1 - confidence


def total_to_refuse(share: float, p: float, confidence: float) -> int | None:
    """About how many independent requests prove that less than a share p is within the bound, if `share` of them are
    beyond it. None where the share is too close to 1 - p for any sample."""
    total = 1
    while not refuses(total, math.floor(share * total), p, confidence):
        total = math.ceil(total * 1.05) + 1
        if total > MOST_NEEDED:
            return None
    return total


def total_needed(violations: int, p: float, confidence: float) -> int:
    """The smallest number of independent requests that proves it with this many violations (P99 at 0.95: 299, 473)."""
    high = 1
    while not accepts(high, violations, p, confidence):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepts(middle, violations, p, confidence) else (middle, high)
    return high
