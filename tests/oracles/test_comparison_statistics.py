"""The guarantees of docs/gates.md, measured by simulation; comparison_statistics.py prints the whole table."""

from __future__ import annotations

import pytest

from tests.oracles.comparison_statistics import METRICS, SLOWER, rates, request_coverage, series, tail_coverage

# Three standard deviations of a share near 5 % are 2.1 points in 1,000 repetitions, 4.6 in 200.


def test_a_thing_compared_with_itself_raises_no_alarm() -> None:
    same = rates(0.5, machine_cv=0.01, slower=1.0, budget=0.03, repeats=150)
    assert same.any_worse < 0.05
    assert same.any_failed < 0.05


def test_three_percent_of_tpot_are_seen_in_six_pairs() -> None:
    slower = rates(0.5, machine_cv=0.01, slower=SLOWER, budget=0.01, repeats=100)
    assert slower.tpot_worse > 0.9


@pytest.mark.parametrize("pairs", [6, 12])
def test_what_is_beyond_the_budget_is_not_exit_code_0(pairs: int) -> None:
    """3.8 % more time a step against a budget of 3 %: more pairs do not make it pass."""
    assert sum(one.exits_0 for one in series(0.5, pairs, machine_cv=0.01, slower=1.038, repeats=60)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.85])
@pytest.mark.parametrize("machine_cv", [0.005, 0.01, 0.02])
def test_false_alarms_stay_below_five_percent(load: float, machine_cv: float) -> None:
    same = rates(load, machine_cv, slower=1.0, budget=0.03, repeats=600)
    assert same.any_worse < 0.05
    assert same.any_failed < 0.05
    assert 0.92 < same.tpot_covered < 0.98


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.85])
def test_power_on_a_quiet_machine_and_on_a_fair_one(load: float) -> None:
    quiet = rates(load, 0.005, SLOWER, 0.01, repeats=300)
    assert min(quiet.tpot_worse, quiet.tpot_failed) > 0.95
    assert rates(load, 0.01, SLOWER, 0.01, repeats=300).tpot_worse > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(METRICS)))
def test_one_pair_covers_at_a_moderate_load(at: int) -> None:
    covered, missing = request_coverage(0.5, *METRICS[at], repeats=200)
    assert covered > 0.8  # nominal 0.95: the reason why the gate calls one pair weaker
    assert missing < 0.05


@pytest.mark.slow
def test_one_pair_at_a_high_load_is_far_better_than_independence_would_be() -> None:
    covered, _ = request_coverage(0.85, "tpot_ms", "mean", repeats=200)
    assert covered > 0.75  # as if requests were independent: 0.4 (papers.md 3.5)


@pytest.mark.slow
def test_the_interval_of_a_tail() -> None:
    assert tail_coverage(0.5, "tpot_ms", 4000, 200)[0] > 0.85
