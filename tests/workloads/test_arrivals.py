from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.arrivals import TraceGaps, unit_arrivals
from workloads.errors import CbbenchError
from workloads.plan import UGAP


def gaps(arrival: str, count: int = 200_001) -> np.ndarray:
    return np.diff(unit_arrivals(arrival, count, 0)) / UGAP


def test_constant() -> None:
    assert unit_arrivals("constant", 4, 9).tolist() == [0, UGAP, 2 * UGAP, 3 * UGAP]


@pytest.mark.parametrize(("arrival", "cv"), [("poisson", 1), ("gamma:0.5", 0.5), ("gamma:1", 1), ("gamma:3", 3)])
def test_gaps_have_mean_one_and_the_asked_variation(arrival: str, cv: float) -> None:
    sample = gaps(arrival)
    error = 4 * cv / np.sqrt(len(sample))
    assert sample.mean() == pytest.approx(1, abs=error)
    assert sample.std() == pytest.approx(cv, rel=0.05)


def test_poisson_is_gamma_with_cv_one() -> None:
    assert np.array_equal(unit_arrivals("poisson", 100, 5), unit_arrivals("gamma:1", 100, 5))


@settings(deadline=None)  # a busy machine is no defect
@given(
    arrival=st.sampled_from(["constant", "poisson", "gamma:0.2", "gamma:8"]),
    count=st.integers(1, 300),
    seed=st.integers(0, 2**70),
)
def test_arrivals_are_whole_start_at_zero_and_never_go_back(arrival: str, count: int, seed: int) -> None:
    at = unit_arrivals(arrival, count, seed)
    assert at.dtype == np.int64
    assert at.shape == (count,)
    assert at[0] == 0
    assert np.all(np.diff(at) >= 0)
    assert np.array_equal(at, unit_arrivals(arrival, count + 7, seed)[:count]), "fewer are the beginning of more"


def test_seeds_differ() -> None:
    assert not np.array_equal(unit_arrivals("poisson", 50, 0), unit_arrivals("poisson", 50, 1))


def test_trace_keeps_the_order_of_the_gaps_and_scales_their_mean_to_one() -> None:
    trace = TraceGaps(np.array([1, 0, 5]), rate_per_s=2.0, random_start=False)
    at = unit_arrivals("trace", 6, 0, trace)
    # gaps 1 0 5 1 0, whose mean is 7/5
    assert at.tolist() == [round(total * UGAP * 5 / 7) for total in (0, 1, 1, 6, 7, 7)]
    assert unit_arrivals("trace", 1, 0, trace).tolist() == [0]


def test_a_random_start_depends_on_the_seed_alone() -> None:
    trace = TraceGaps(np.arange(1, 1000), rate_per_s=2.0, random_start=True)
    one, again, other = (unit_arrivals("trace", 5, seed, trace) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert one[-1] == 4 * UGAP


@pytest.mark.parametrize(
    ("arrival", "says"),
    [
        ("weibull", "unknown process 'weibull'; want constant, poisson, gamma:CV or trace"),
        ("gamma", "gamma:CV needs a number"),
        ("gamma:x", "gamma:CV needs a number"),
        ("gamma:0", "between 0.01 and 10"),
        ("gamma:nan", "between 0.01 and 10"),
        ("trace", "no arrival times of its own"),
    ],
)
def test_bad_arrivals(arrival: str, says: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        unit_arrivals(arrival, 4, 0)
    assert says in str(caught.value)


def test_a_trace_whose_requests_all_come_at_once_has_no_mean_gap() -> None:
    with pytest.raises(CbbenchError, match="all arrive at the same time"):
        unit_arrivals("trace", 3, 0, TraceGaps(np.array([0, 0, 5]), 1.0, random_start=False))
