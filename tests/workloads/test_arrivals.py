from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.arrivals import TraceGaps, at_mean_gap, requests_to_fill, unit_arrivals
from workloads.bursts import Phases
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


@pytest.mark.parametrize("arrival", ["mmpp:5:0.1:200", "mmpp:20:0.05:50", "onoff:0.3:200", "onoff:0.1:20"])
def test_bursts_have_mean_rate_one_and_the_dispersion_of_their_formula(arrival: str) -> None:
    phases = Phases.parse(arrival)
    assert phases is not None
    at = unit_arrivals(arrival, 400_000, 3) / UGAP
    error = 4 * np.sqrt(phases.dispersion / len(at))
    assert len(at) / at[-1] == pytest.approx(1, rel=error)
    window = 50 * phases.cycle_gaps  # long beside a phase
    counts = np.bincount((at / window).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(phases.dispersion, rel=5 * np.sqrt(2 / len(counts)))


def test_off_is_silence_for_its_share_of_the_time() -> None:
    at = unit_arrivals("onoff:0.25:2000", 200_000, 0) / UGAP
    gap = np.diff(at)
    assert gap[gap > 20].sum() / at[-1] == pytest.approx(0.75, abs=0.06)  # on, the mean gap is 0.25
    assert np.median(gap) == pytest.approx(0.25 * np.log(2), rel=0.02)


def test_a_duration_is_filled_by_bursts_too() -> None:
    for seed in range(20):
        count = requests_to_fill(500, "onoff:0.3:50")
        assert unit_arrivals("onoff:0.3:50", count, seed)[-1] >= 500 * UGAP


def test_poisson_is_gamma_with_cv_one() -> None:
    assert np.array_equal(unit_arrivals("poisson", 100, 5), unit_arrivals("gamma:1", 100, 5))


@settings(deadline=None)  # a busy machine is no defect
@given(
    arrival=st.sampled_from(
        ["constant", "poisson", "gamma:0.2", "gamma:8", "mmpp:5:0.1:200", "onoff:0.3:2", "onoff:0.01:5000"]
    ),
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


@pytest.mark.parametrize("arrival", ["constant", "poisson", "gamma:3", "mmpp:4:0.2:100"])
@pytest.mark.parametrize("count", [1, 20, 500])
def test_at_the_mean_gap_the_last_arrival_is_where_it_is_expected(arrival: str, count: int) -> None:
    """But for rounding to the millionth of a gap; order and proportions of the gaps stay."""
    drawn = unit_arrivals(arrival, count, seed=3)
    scaled = at_mean_gap(drawn)
    assert scaled[-1] == pytest.approx((count - 1) * UGAP, abs=1)
    assert scaled[0] == 0
    if count > 2:
        assert np.diff(scaled) == pytest.approx(np.diff(drawn) * (scaled[-1] / drawn[-1]), abs=2)
    assert at_mean_gap(np.zeros(3, np.int64)).tolist() == [0, 0, 0]  # all at once: no rate spreads them


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
        ("weibull", "unknown process 'weibull'; want constant, poisson, gamma:CV, mmpp:FACTOR:SHARE:GAPS, "),
        ("gamma", "gamma:CV needs a number"),
        ("gamma:x", "gamma:CV needs a number"),
        ("gamma:0", "between 0.01 and 10"),
        ("gamma:nan", "between 0.01 and 10"),
        ("trace", "no arrival times of its own"),
        ("mmpp", "want mmpp:FACTOR:SHARE:GAPS, as in mmpp:5:0.1:200"),
        ("onoff:0.3", "want onoff:SHARE:GAPS, as in onoff:0.3:200"),
        ("onoff:0.3:x", "want onoff:SHARE:GAPS"),
        ("onoff:1:20", "SHARE of onoff:1:20 must lie between 0.001 and 0.999"),
        ("mmpp:0.5:0.1:20", "FACTOR of mmpp:0.5:0.1:20 must lie between 1 and 10000"),
        ("onoff:nan:20", "SHARE of onoff:nan:20 must lie between"),
    ],
)
def test_bad_arrivals(arrival: str, says: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        unit_arrivals(arrival, 4, 0)
    assert says in str(caught.value)


def test_a_trace_whose_requests_all_come_at_once_has_no_mean_gap() -> None:
    with pytest.raises(CbbenchError, match="all arrive at the same time"):
        unit_arrivals("trace", 3, 0, TraceGaps(np.array([0, 0, 5]), 1.0, random_start=False))
