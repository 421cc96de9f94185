"""Rates that change: the text, the integral, and the change of time that leaves the plan as it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from workloads.arrivals import unit_arrivals
from workloads.columns import IntColumn
from workloads.pacing import Pacing
from workloads.plan import UGAP
from workloads.rates import NS, RateSchedule, Stage, read_rate

RATES = st.one_of(st.just(0.0), st.floats(0.01, 500))
LENGTHS_S = st.floats(0.05, 500)


@st.composite
def schedules(draw: st.DrawFn) -> RateSchedule:
    """Steps and ramps, zeros among them, then a constant rate for ever."""
    stages = []
    for _ in range(draw(st.integers(0, 5))):
        first = draw(RATES)
        last = draw(st.one_of(st.just(first), RATES))
        stages.append(Stage(first, last, draw(LENGTHS_S)))
    end = draw(st.floats(0.01, 500))
    return RateSchedule((*stages, Stage(end, end, float("inf"))), None)


def units(*gaps: float) -> IntColumn:
    return np.rint(np.array(gaps) * UGAP).astype(np.int64)


def due_s(text: str, *gaps: float) -> list[float]:
    return (RateSchedule.parse(text).due_ns(units(*gaps)) / NS).tolist()


@pytest.mark.parametrize(
    ("text", "stages", "end_s", "written"),
    [
        ("4", [(4, 4, float("inf"))], None, "4"),
        ("2 for 60s, 8", [(2, 2, 60), (8, 8, float("inf"))], None, "2 for 60s, 8"),
        ("2 for 1m,8 for 0.5 h", [(2, 2, 60), (8, 8, 1800), (8, 8, float("inf"))], 1860, "2 for 60s, 8 for 1800s"),
        ("  2..20  for  2m ", [(2, 20, 120), (20, 20, float("inf"))], 120, "2..20 for 120s"),
        ("0.5..1.5 for 10s, 0 for 5s, 3", [(0.5, 1.5, 10), (0, 0, 5), (3, 3, float("inf"))], None, None),
        ("3..3 for 1s", [(3, 3, 1), (3, 3, float("inf"))], 1, "3 for 1s"),
        ("1000000 for 2000000s, 0.00001", [(1e6, 1e6, 2e6), (1e-5, 1e-5, float("inf"))], None, None),
        ("0.3333333 for 12.3456789s, 1", [(0.3333333, 0.3333333, 12.3456789), (1, 1, float("inf"))], None, None),
    ],
)
def test_the_text(text: str, stages: list[tuple[float, ...]], end_s: float | None, written: str | None) -> None:
    read = RateSchedule.parse(text)
    assert [(one.from_per_s, one.to_per_s, one.lasts_s) for one in read.stages] == stages
    assert read.end_s == end_s
    assert str(read) == (text if written is None else written)
    assert RateSchedule.parse(str(read)) == read


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read ''"),
        ("fast", "cannot read 'fast'; want requests per second, as in 4, or stages"),
        ("2 for 60", "cannot read '2 for 60'"),
        ("2 for 60s,", "cannot read ''"),
        ("2 for 60s 8", "cannot read '2 for 60s 8'"),
        ("-2 for 60s", "cannot read '-2 for 60s'"),
        ("2...5 for 60s", "cannot read"),
        ("1e3 for 60s", "cannot read"),
        ("0:2,60:8", "cannot read '0:2'"),
        ("2, 8 for 60s", "'2' is not the last stage, so it needs a length"),
        ("2..8", "'2..8' must say how long it takes"),
        ("2 for 0s", "must last above 0"),
        ("2 for 9999h", "at most 10,000,000 s"),
        ("2..2000000 for 60s", "more than 1,000,000 requests per second"),
        ("1 for 9000000s, 1 for 9000000s, 2", "must last at most 10,000,000 s together"),
        ("2 for 60s, 0.0000001", "is less than 0.000001 requests per second"),
        ("2 for 60s, 0", "the last rate continues, so it must be above 0"),
        ("2..0 for 60s", "the last rate continues, so it must be above 0"),
    ],
)
def test_what_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_rate(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_number_is_a_number_however_it_is_written() -> None:
    assert read_rate("4") == read_rate(4.0) == read_rate("4.0") == 4.0
    assert isinstance(read_rate("4 for 1s"), RateSchedule)


def test_steps() -> None:
    assert due_s("2 for 60s, 8 for 60s, 2", 0, 1, 119, 120, 121, 600, 602) == [0, 0.5, 59.5, 60, 60.125, 120, 121]


def test_a_ramp() -> None:
    """Of 0 to 20 within 2 min half of the requests come in the last third and a bit: t = 120 sqrt(i / 1200)."""
    assert due_s("0..20 for 2m", 0, 300, 1200, 1220) == [0, 60, 120, 121]
    assert due_s("20..0 for 2m, 1", 0, 900, 1200, 1201) == [0, 60, 120, 121]
    assert due_s("2..6 for 10s", 3, 40) == [pytest.approx((-2 + np.sqrt(4 + 4 * 0.6)) / 0.4), 10]


def test_no_request_comes_while_the_rate_is_0() -> None:
    assert due_s("0 for 10s, 2 for 10s, 0 for 5s, 4", 0, 19, 20, 21) == [10, 19.5, 25, 25.25]


def test_expected_and_mean() -> None:
    schedule = RateSchedule.parse("2 for 60s, 2..10 for 60s, 0 for 10s, 4 for 10s")
    assert schedule.expected(np.array([0, 30, 60, 90, 120, 130, 140, 150])).tolist() == [
        0,
        60,
        120,
        240,
        480,
        480,
        520,
        560,
    ]
    assert schedule.requests == 520
    assert schedule.time_s(520) == 140
    assert schedule.mean_per_s(520) == pytest.approx(520 / 140)
    assert RateSchedule.parse("2 for 60s, 8").requests is None
    assert RateSchedule.parse("2 for 60s, 8 for 60s").names == ["1: 2 for 60s", "2: 8 for 60s", "then 8"]
    assert RateSchedule.parse("2 for 60s, 8").names == ["1: 2 for 60s", "2: 8"]


@settings(max_examples=200, deadline=None)
@given(schedules(), st.lists(st.floats(0, 5000), min_size=1, max_size=40))
def test_the_integral_up_to_when_a_request_is_due_is_its_unit_arrival(
    schedule: RateSchedule, gaps: list[float]
) -> None:
    arrivals = units(*sorted(gaps))
    due_ns = schedule.due_ns(arrivals)
    # Rounded to a ns, in which at most so many requests come.
    slack = 2e-9 * max(max(one.from_per_s, one.to_per_s) for one in schedule.stages) + 1e-9 * 5000
    assert np.allclose(schedule.expected(due_ns / NS), arrivals / UGAP, rtol=0, atol=slack)


@settings(max_examples=200, deadline=None)
@given(schedules(), st.lists(st.integers(0, 10**9), min_size=2, max_size=40))
def test_monotone(schedule: RateSchedule, arrivals: list[int]) -> None:
    column = np.array(sorted(arrivals), dtype=np.int64)
    assert (np.diff(schedule.due_ns(column)) >= 0).all()
    at = np.sort(column / 1e6)
    assert (np.diff(schedule.expected(at)) >= 0).all()


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-3, 1e4), st.lists(LENGTHS_S, max_size=4), st.lists(st.integers(0, 10**10), min_size=1, max_size=40))
def test_flat_is_the_constant_rate(rate: float, lengths_s: list[float], arrivals: list[int]) -> None:
    """To the bit where it is one stage; cut in pieces, to a rounding."""
    column = np.array(sorted(arrivals), dtype=np.int64)
    constant_ns = np.rint(column.astype(np.float64) * (NS / UGAP) / rate).astype(np.int64)
    whole = RateSchedule((Stage(rate, rate, float("inf")),), None)
    assert np.array_equal(whole.due_ns(column), constant_ns)
    pieces = RateSchedule((*(Stage(rate, rate, one) for one in lengths_s), *whole.stages), None)
    assert np.allclose(pieces.due_ns(column), constant_ns, rtol=1e-12, atol=2)


@settings(max_examples=50, deadline=None)
@given(schedules(), st.sampled_from(["poisson", "constant", "gamma:2"]))
def test_as_many_come_as_the_rate_adds_up_to(schedule: RateSchedule, arrival: str) -> None:
    """The number of requests in a time against the integral over it, under any process. One is due at its end."""
    count = 2000
    due_ns = schedule.due_ns(unit_arrivals(arrival, count, seed=3))
    until_s = schedule.time_s(count / 2)
    assume(until_s > 0)
    came = int(np.searchsorted(due_ns, until_s * NS))
    spread = {"constant": 1.01, "poisson": 5 * np.sqrt(count / 2), "gamma:2": 5 * 2 * np.sqrt(count / 2)}[arrival]
    assert abs(came - float(schedule.expected(until_s))) <= spread


def test_pacing_follows_it_and_has_the_duration_of_others() -> None:
    pacing = Pacing(units(0, 1, 2, 3, 4), rate_per_s=RateSchedule.parse("1 for 2s, 10"), duration_s=2.15)
    assert [(one.index, one.scheduled_ns) for one in pacing.due(10 * NS)] == [
        (0, 0),
        (1, NS),
        (2, 2 * NS),
        (3, 2_100_000_000),
    ]
    assert pacing.exhausted
    assert pacing.unsent == 0


def test_a_wave_is_a_cosine_from_low_to_high_and_back() -> None:
    wave = RateSchedule.parse("2~20 every 24h for 48h")
    assert wave.end_s == 48 * 3600
    assert wave.requests == pytest.approx(11 * 48 * 3600)
    hours = np.arange(0, 48, 0.25)
    slope = 1.0  # s
    rates = (wave.expected(hours * 3600 + slope) - wave.expected(hours * 3600)) / slope
    cosine = 11 - 9 * np.cos(2 * np.pi * hours / 24)
    assert np.abs(rates - cosine).max() <= 0.018 * 18
    at_ends = np.arange(0, 48, 2)
    assert (wave.expected(at_ends * 3600.0 + slope) - wave.expected(at_ends * 3600.0)) / slope == pytest.approx(
        11 - 9 * np.cos(2 * np.pi * at_ends / 24), abs=0.01
    )
    assert RateSchedule.parse(str(wave)).stages == wave.stages


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2~20", "a wave is written as in"),
        ("2~20 for 60s", "a wave is written as in"),
        ("2~20 every 0s for 60s", "use a longer period"),
        ("2~20 every 1s for 10h", "use a longer period"),
        ("0~20 every 24h for 24h", "the last rate continues"),
    ],
)
def test_bad_waves(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RateSchedule.parse(text)


def test_a_wave_may_stop_within_and_be_followed() -> None:
    schedule = RateSchedule.parse("2~20 every 60s for 33s, 5")
    assert schedule.starts_s[-1] == pytest.approx(33)
    assert schedule.stages[-1].from_per_s == 5
