"""The home-made exp and inverse CDFs against the C library's and SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from workloads import sampling
from workloads.sampling import CELLS, cell_of, exp, midpoints, resample, whole


def test_exp_is_exact_to_a_few_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-699, 699, 20_001), np.linspace(-2, 2, 20_001)])
    assert np.max(np.abs(exp(x) / np.exp(x) - 1)) < 1e-15


def test_exp_is_cut_off_rather_than_overflowing() -> None:
    assert np.array_equal(exp(np.array([-1e9, 1e9])), exp(np.array([-700.0, 700.0])))


def test_normal_quantiles() -> None:
    assert np.max(np.abs(sampling.normal() - stats.norm.ppf(midpoints()))) < 1e-7


@pytest.mark.parametrize("cv", [0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0])
def test_gamma_quantiles(cv: float) -> None:
    shape = 1 / cv**2
    ours, theirs = sampling.gamma(cv), stats.gamma.ppf(midpoints(), shape, scale=1 / shape)
    large = theirs > 1e-6  # far below a millionth of the mean nothing depends on the value
    assert np.max(np.abs(ours[large] / theirs[large] - 1)) < 2e-3
    assert np.max(np.abs(ours - theirs)) < 1e-3 * theirs.max()
    # The grid stops at 1 - 1/131072, so a little of the mean is lost, more so where the tail is long.
    assert ours.mean() == pytest.approx(1, abs=1e-4 * max(1.0, cv**2))


def test_exponential_quantiles_are_the_logarithm() -> None:
    assert np.max(np.abs(sampling.gamma(1.0) + np.log1p(-midpoints()))) < 1e-5


def test_cells_are_the_top_bits() -> None:
    raw = np.array([0, 2**48 - 1, 2**48, 2**63, 2**64 - 1], dtype=np.uint64)
    assert cell_of(raw).tolist() == [0, 0, 1, CELLS // 2, CELLS - 1]
    assert cell_of(raw, 2).tolist() == [0, 0, 0, 1, 1]
    assert cell_of(raw, 1).tolist() == [0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="power of two"):
        cell_of(raw, 3)


def test_resampling_takes_order_statistics_at_midpoints() -> None:
    assert resample(np.array([10, 20, 30, 40]), 2).tolist() == [20, 40]
    assert resample(np.array([10, 20]), 4).tolist() == [10, 10, 20, 20]


def test_halves_round_up() -> None:
    assert whole(np.array([0.5, 1.5, 2.4999])).tolist() == [1, 2, 2]
