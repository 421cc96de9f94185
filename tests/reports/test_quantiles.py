"""Percentiles, the effective sample and its intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import binom, norm

from reports.quantiles import (
    TAU_SAMPLE,
    autocorrelation_time,
    distribution,
    effective_n,
    quantile_interval,
    rank_interval,
    wilson_interval,
)


def ar1(phi: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """A first-order autoregressive series of unit noise; its tau is (1 + phi) / (1 - phi)."""
    return np.asarray(lfilter([1.0], [1.0, -phi], rng.standard_normal(n + 2000))[2000:])


def test_percentiles_interpolate_linearly() -> None:
    one = distribution(np.arange(1.0, 101.0))
    assert (one.p50, one.p90, one.p99) == pytest.approx((50.5, 90.1, 99.01))
    assert (one.count, one.mean, one.max) == (100, 50.5, 100.0)
    assert one.std == pytest.approx(np.sqrt((100**2 - 1) / 12))


def test_missing_values_are_left_out_and_nothing_gives_no_number() -> None:
    assert distribution(np.array([np.nan, 3.0, np.nan])).mean == 3.0
    assert distribution(np.array([np.nan])).count == 0
    assert distribution(np.array([])).p99 is None


@pytest.mark.parametrize("phi", [0.3, 0.6, 0.9])
def test_autocorrelation_time_of_an_ar1_series(phi: float) -> None:
    rng = np.random.default_rng(1)
    found = np.mean([autocorrelation_time(ar1(phi, 5000, rng)) for _ in range(40)])
    assert found == pytest.approx((1 + phi) / (1 - phi), rel=0.12)


def test_independent_values_count_in_full() -> None:
    rng = np.random.default_rng(2)
    full = [effective_n(rng.exponential(size=299)) == 299 for _ in range(300)]
    assert np.mean(full) > 0.95


def test_a_constant_series_counts_in_full_and_a_trend_hardly_at_all() -> None:
    assert effective_n(np.full(500, 7.0)) == 500
    assert effective_n(np.arange(500.0)) < 10


def test_a_longer_series_than_the_estimate_needs_is_taken_from_its_middle() -> None:
    values = np.tile([0.0, 0.0, 1.0, 1.0], TAU_SAMPLE)
    values[: TAU_SAMPLE // 2] = 1e9  # a start that a middle part does not see
    assert autocorrelation_time(values) < 3


def test_rank_interval_follows_the_table_of_order_statistics() -> None:
    # research table of P99 ranks at 95 %: the smallest n that has an interval at all is 368
    assert rank_interval(367, 0.99, 0.95) is None
    assert rank_interval(368, 0.99, 0.95) == (360, 368)
    wanted = {500: (490, 500), 1000: (983, 997), 2000: (1971, 1989), 5000: (4936, 4964), 10_000: (9880, 9920)}
    for n, ranks in wanted.items():
        found = rank_interval(n, 0.99, 0.95)
        assert found is not None
        assert abs(found[0] - ranks[0]) <= 1
        assert abs(found[1] - ranks[1]) <= 1


@given(st.integers(1, 3000), st.sampled_from([0.5, 0.9, 0.99]), st.sampled_from([0.9, 0.95, 0.99]))
def test_rank_interval_is_the_tightest_with_that_coverage(n: int, p: float, confidence: float) -> None:
    tail = (1 - confidence) / 2
    ranks = rank_interval(n, p, confidence)
    if ranks is None:
        assert binom.pmf(n, n, p) > tail or binom.pmf(0, n, p) > tail
        return
    low, high = ranks
    assert binom.cdf(low - 1, n, p) <= tail < binom.cdf(low, n, p)
    assert binom.sf(high - 1, n, p) <= tail + 1e-12
    assert binom.sf(high - 2, n, p) > tail


@pytest.mark.parametrize("phi", [0.0, 0.6])
def test_the_p99_interval_covers_as_often_as_it_says(phi: float) -> None:
    rng = np.random.default_rng(3)
    truth = norm.ppf(0.99) / np.sqrt(1 - phi * phi)
    covered = []
    for _ in range(300):
        values = ar1(phi, 4000, rng)
        interval = quantile_interval(np.sort(values), 0.99, effective_n(values))
        assert interval is not None
        covered.append(interval[0] <= truth <= interval[1])
    assert np.mean(covered) >= 0.93


def test_dependence_takes_the_interval_away() -> None:
    values = np.repeat(np.random.default_rng(4).exponential(size=200), 5)
    assert distribution(np.random.default_rng(4).exponential(size=1000)).p99_ci is not None
    assert distribution(values).p99_ci is None


def test_wilson_interval() -> None:
    low, high = wilson_interval(0.9, 100) or (0, 0)
    assert (low, high) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert wilson_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(1.0, 0) is None
