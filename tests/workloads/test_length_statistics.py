from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from workloads.length_pairs import correlation, max_over_mean, percentiles
from workloads.plan import RequestPlan, realised


def test_realised() -> None:
    plan = RequestPlan.of(
        np.arange(1, 102), [7] * 101, tenant=np.array([0] * 100 + [2]), tenants=("a", "b", "c"), outside_context=0.25
    )
    got = realised(plan)
    assert got["prompt_tokens"] == {"mean": 51.0, "p50": 51.0, "p90": 91.0, "p99": 100.0, "max": 101}
    assert got["output_tokens"] == {"mean": 7.0, "p50": 7.0, "p90": 7.0, "p99": 7.0, "max": 7}
    assert got["outside_context"] == 0.25
    assert got["tenants"] == {"a": 100, "c": 1}
    assert json.loads(json.dumps(got)) == got


def test_percentiles_interpolate() -> None:
    got = percentiles(np.array([0, 10]))
    assert (got["mean"], got["p25"], got["p99.9"], got["max"]) == (5.0, 2.5, pytest.approx(9.99), 10.0)


def test_correlation_matches_scipy_with_ties() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    x = rng.integers(1, 20, 500)
    y = x + rng.integers(1, 40, 500)
    got = correlation(x, y)
    assert got["pearson"] == pytest.approx(stats.pearsonr(x, y)[0])
    assert got["spearman"] == pytest.approx(stats.spearmanr(x, y)[0])


def test_correlation_with_a_constant_is_missing_not_zero() -> None:
    assert correlation(np.array([5, 5, 5]), np.array([1, 2, 3])) == {"pearson": None, "spearman": None}


def test_longest_of_two_of_a_coin() -> None:
    # of two draws from {1, 3} the longer is 3 with probability 3/4, so E[max] = 2.5 and the mean is 2
    assert max_over_mean(np.array([3, 1]), 2) == pytest.approx(1.25)
    assert max_over_mean(np.array([3, 1]), 1) == pytest.approx(1)
