from __future__ import annotations

import numpy as np
import pytest

from workloads.errors import CbbenchError
from workloads.length_distributions import parse_distribution
from workloads.length_pairs import max_over_mean
from workloads.sampling import CELLS


def mean(text: str) -> float:
    return float(parse_distribution(text).grid.mean())


def cv(text: str) -> float:
    grid = parse_distribution(text).grid
    return float(grid.std() / grid.mean())


def test_fixed() -> None:
    distribution = parse_distribution("fixed(64)")
    assert distribution.fixed
    assert set(distribution.grid.tolist()) == {64}


def test_uniform_takes_both_ends_and_every_length_equally() -> None:
    lengths, counts = np.unique(parse_distribution("uniform(16,47)").grid, return_counts=True)
    assert lengths.tolist() == list(range(16, 48))
    assert set(counts.tolist()) == {CELLS // 32}


def test_uniform_wider_than_the_grid_keeps_its_mean() -> None:
    assert mean("uniform(1,1000000)") == pytest.approx(500_000.5, abs=20)


@pytest.mark.parametrize(
    ("text", "want_mean", "want_cv"),
    [
        ("exponential(mean=200)", 200, 1),
        ("lognormal(median=128,sigma=0.8)", 128 * np.exp(0.32), np.sqrt(np.expm1(0.64))),
        ("lognormal(mean=300,sigma=0.5)", 300, np.sqrt(np.expm1(0.25))),
        ("lognormal(128, 0.8)", 128 * np.exp(0.32), np.sqrt(np.expm1(0.64))),
        ("gamma(mean=200,cv=0.7)", 200, 0.7),
        ("gamma(mean=500,cv=2)", 500, 2),
        ("0.25*fixed(100)+0.75*fixed(500)", 400, np.sqrt(0.25 * 0.75) * 400 / 400),
        ("1*fixed(100) + 3*fixed(500)", 400, np.sqrt(0.25 * 0.75) * 400 / 400),
    ],
)
def test_mean_and_variation(text: str, want_mean: float, want_cv: float) -> None:
    assert mean(text) == pytest.approx(want_mean, rel=0.005)
    assert cv(text) == pytest.approx(want_cv, rel=0.01)


@pytest.mark.parametrize(
    "name", ["exponential(mean=200,max=300)", "lognormal(150,1,max=300)", "gamma(200,1.5,max=300)"]
)
def test_max_redraws_and_leaves_no_lump(name: str) -> None:
    grid = parse_distribution(name).grid
    assert grid.max() == 300
    lump, below = np.count_nonzero(grid == 300), np.count_nonzero(grid == 299)
    assert lump < 1.5 * below + 10


def test_min_and_max_condition_the_distribution() -> None:
    whole, cut = (
        parse_distribution("exponential(mean=200)").grid,
        parse_distribution("exponential(mean=200,min=50,max=400)").grid,
    )
    kept = whole[(whole >= 50) & (whole <= 400)]
    assert (cut.min(), cut.max()) == (50, 400)
    assert np.quantile(cut, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(kept, [0.1, 0.5, 0.9]), abs=1)


def test_what_rounds_below_one_token_becomes_one() -> None:
    grid = parse_distribution("exponential(mean=4)").grid
    assert grid.min() == 1
    assert np.count_nonzero(grid == 1) / CELLS == pytest.approx(1 - np.exp(-1.5 / 4), abs=1e-3)


def test_an_atom_in_a_mixture_stays_an_atom() -> None:
    grid = parse_distribution("0.9*lognormal(median=100,sigma=0.5,max=1000)+0.1*fixed(4096)").grid
    assert np.count_nonzero(grid == 4096) / CELLS == pytest.approx(0.1, abs=1e-4)
    assert np.all(np.diff(grid) >= 0)


# research values: E[max of B] / mean of continuous distributions (numerical integral of 1 - F(x)**B over the mean)
@pytest.mark.parametrize(
    ("text", "b8", "b32"),
    [
        ("uniform(1,2000)", 1.78, 1.94),
        ("exponential(mean=1000)", 2.72, 4.06),
        ("lognormal(median=1000,sigma=0.5)", 1.89, 2.56),
        ("lognormal(median=1000,sigma=1)", 3.08, 5.49),
    ],
)
def test_longest_of_a_batch(text: str, b8: float, b32: float) -> None:
    grid = parse_distribution(text).grid
    assert max_over_mean(grid, 8) == pytest.approx(b8, rel=0.005)
    assert max_over_mean(grid, 32) == pytest.approx(b32, rel=0.005)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read the length distribution ''"),
        ("64", "cannot read the length distribution '64'"),
        ("fixed(64", "cannot read the length distribution"),
        (
            "poisson(3)",
            "unknown length distribution 'poisson'; there are exponential, fixed, gamma, lognormal, uniform",
        ),
        ("fixed()", "fixed(...) needs the number of tokens"),
        ("fixed(0)", "from 1 to"),
        ("fixed(2.5)", "whole number of tokens"),
        ("fixed(1,2)", "takes n, not 2 arguments"),
        ("uniform(5)", "needs both ends"),
        ("uniform(9,3)", "min of uniform(9,3) is above max"),
        ("exponential(max=9)", "needs mean="),
        ("exponential(mean=-1)", "must be above 0"),
        ("exponential(mean=nan)", "finite"),
        ("exponential(mean=x)", "must be a number, got 'x'"),
        ("exponential(mean=3,mean=4)", "given mean twice"),
        ("exponential(median=3)", "takes mean, min, max, not 'median'"),
        ("lognormal(sigma=1)", "needs either median= or mean="),
        ("lognormal(median=1,mean=1,sigma=1)", "needs either median= or mean="),
        ("lognormal(median=9,sigma=50)", "at most 5"),
        ("gamma(mean=9,cv=0.001)", "at least 0.01"),
        ("exponential(mean=10,min=5000)", "0.00% of its lengths within min and max"),
        ("0*fixed(3)+1*fixed(4)", "must be above 0"),
        ("x*fixed(3)+1*fixed(4)", "the weight in 'x*fixed(3)' must be a number"),
        ("0.000001*fixed(3)+1*fixed(4)", "too small"),
        ("fixed(3)+", "cannot read the length distribution ''"),
    ],
)
def test_bad_distributions_are_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        parse_distribution(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
