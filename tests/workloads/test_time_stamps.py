"""Time stamps: units that must not be misread, and clocks that tick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.errors import CbbenchError
from workloads.log_names import unit_of
from workloads.time_stamps import US, Stamps, read_stamps, spread_over_ticks, tick_of

SECONDS = [0.0, 0.25, 0.5, 1.0, 1.0, 2.75]


def read(values: list[Any], name: str = "timestamp", **how: Any) -> Stamps:
    how = {"given": None, "known": None} | how
    return read_stamps(Path("t.csv"), name, range(2, 2 + len(values)), values, **how)


@pytest.mark.parametrize("unit", US)
@pytest.mark.parametrize("known", [None, "ms"])
def test_stamps_since_1970_are_read_by_their_magnitude(unit: str, known: str | None) -> None:
    """Epoch seconds were read as milliseconds once: five requests per second became 5,059."""
    stamps = read([round((1_731_780_946 + at) * 1e6 / US[unit], 3) for at in SECONDS], known=known)  # type: ignore[index]
    since = (stamps.arrivals_us - stamps.arrivals_us[0]) / 1e6
    assert since == pytest.approx(SECONDS, abs=2e-6)
    assert stamps.dated
    assert bool(stamps.said) == (unit != known)
    if stamps.said:
        assert "1.82 requests/s over 2.75 s" in stamps.said[0]


@pytest.mark.parametrize(("unit", "gap"), [("s", 2), ("ms", 300), ("us", 150_000), ("ns", 400_000_000)])
def test_stamps_from_a_start_are_read_by_their_spread(unit: str, gap: int) -> None:
    stamps = read([number * gap for number in range(50)])
    assert stamps.arrivals_us[1] - stamps.arrivals_us[0] == gap * US[unit]  # type: ignore[index]
    assert not stamps.dated
    assert "by their spread" in stamps.said[0]
    assert "\n" not in stamps.said[0]


def test_what_the_user_says_wins_and_what_the_name_says_is_not_said_again() -> None:
    assert read([1_700_000_000, 1_700_000_001], given="ms").arrivals_us[1] - 1_700_000_000_000 == 1000
    assert read([0, 1], name="arrival_s", known="s").said == ()
    assert unit_of("StartTimeOffset", []) == "ns"
    assert unit_of("sent_ms", []) == "ms"
    assert unit_of("Timestamp", ["Request tokens"]) == "s"
    assert unit_of("timestamp", ["input_length"]) == "ms"
    assert unit_of("timestamp", ["prompt_tokens"]) is None


def test_dates() -> None:
    stamps = read(["2026-01-01T10:00:00Z", "2026-01-01T11:00:00.5+01:00", "2026-01-01 10:00:01"])
    assert ((stamps.arrivals_us - stamps.arrivals_us[0]) / 1e6).tolist() == [0, 0.5, 1]
    assert stamps.dated


@pytest.mark.parametrize("values", [[1, None], [1, "x"], [1, float("nan")], [1, True], ["2026-01-01", "soon"], [1, ""]])
def test_the_line_of_a_bad_time(values: list[Any]) -> None:
    with pytest.raises(CbbenchError, match="line 3: timestamp must be a time"):
        read(values)


def test_a_clock_that_ticks_is_spread_within_its_tick() -> None:
    ticks = np.repeat(np.arange(40) * 3000, 10)
    stamps = read(ticks.tolist(), known="ms")
    assert "steps of 3 s" in stamps.said[0]
    late_us = stamps.arrivals_us - ticks * 1000
    assert late_us.min() >= 0
    assert late_us.max() < 3_000_000
    assert abs(late_us.mean() - 1_500_000) < 5 * 3_000_000 / np.sqrt(12 * 400), "the mean of a uniform time, by 5 sigma"
    assert np.all(np.diff(stamps.arrivals_us) >= 0)
    gaps = np.diff(stamps.arrivals_us)
    assert 0.8 < gaps.std() / gaps.mean() < 1.2, "as of Poisson arrivals; that of the ticks is 3"
    assert np.array_equal(read(ticks.tolist(), known="ms").arrivals_us, stamps.arrivals_us)


def test_a_clock_that_is_fine_enough_is_left_alone() -> None:
    poisson_us = np.cumsum(np.random.default_rng(1).exponential(2e5, 2000)).astype(np.int64)
    assert tick_of(poisson_us) is None
    seconds = (poisson_us // 1_000_000) * 1_000_000
    assert tick_of(seconds) == 1_000_000, "five per second on a clock of whole seconds"
    assert tick_of(np.zeros(50, dtype=np.int64)) is None, "all at once is no tick"
    bursts = np.sort(np.repeat(np.random.default_rng(2).integers(0, 10**9, 50), 20))
    assert tick_of(bursts) is None, "bursts at irregular times are traffic"


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1_000, 5_000_000))
def test_spread_times_stay_in_their_tick_and_in_order(ticks: list[int], tick_us: int) -> None:
    before = np.sort(np.array(ticks, dtype=np.int64)) * tick_us
    after = spread_over_ticks(before, tick_us)
    assert np.array_equal(after // tick_us, before // tick_us)
    assert np.all(np.diff(after) >= 0)
