"""When requests go out: burst, closed loop, open loop, open loop with a cap, and the end of the duration."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.columns import IntColumn
from workloads.errors import CbbenchError
from workloads.pacing import Due, Pacing
from workloads.plan import UGAP
from workloads.rates import NS, RateSchedule


def every_gap(count: int) -> IntColumn:
    return np.arange(count, dtype=np.int64) * UGAP


def triples(due: list[Due]) -> list[tuple[int, int, int]]:
    return [(one.index, one.scheduled_ns, one.sent_ns) for one in due]


def test_burst() -> None:
    pacing = Pacing(every_gap(3))
    assert pacing.next_due_ns() == 0
    assert triples(pacing.due(0)) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert pacing.exhausted
    assert pacing.next_due_ns() is None
    assert pacing.due(10**18) == []
    assert (pacing.issued, pacing.in_flight, pacing.unfinished()) == (3, 3, [0, 1, 2])
    pacing.completed(1, 5)
    assert pacing.unfinished() == [0, 2]


def test_open_loop_follows_the_schedule_whatever_happens() -> None:
    pacing = Pacing(every_gap(4), rate_per_s=2)
    assert triples(pacing.due(0)) == [(0, 0, 0)]
    assert pacing.next_due_ns() == NS // 2
    assert pacing.due(NS // 2 - 1) == []
    # a late poll finds two requests due, each scheduled and sent at its own time
    assert triples(pacing.due(NS + 7)) == [(1, NS // 2, NS // 2), (2, NS, NS)]
    assert not pacing.exhausted
    assert triples(pacing.due(2 * NS)) == [(3, 3 * NS // 2, 3 * NS // 2)]
    assert pacing.exhausted


def test_closed_loop_schedules_a_request_when_its_slot_came_free() -> None:
    pacing = Pacing(every_gap(5), concurrency=2)
    assert triples(pacing.due(0)) == [(0, 0, 0), (1, 0, 0)]
    assert pacing.next_due_ns() is None
    assert not pacing.exhausted
    pacing.completed(1, 100)
    assert pacing.next_due_ns() == 100
    # polled late: it was meant for 100 all the same
    assert triples(pacing.due(140)) == [(2, 100, 100)]
    pacing.completed(2, 150)
    pacing.completed(0, 130)  # told out of order
    assert triples(pacing.due(160)) == [(3, 130, 130), (4, 150, 150)]
    assert pacing.exhausted


def test_a_cap_delays_sending_but_not_the_schedule() -> None:
    pacing = Pacing(every_gap(3), rate_per_s=1000, concurrency=1)
    assert triples(pacing.due(0)) == [(0, 0, 0)]
    assert pacing.due(10_000_000) == []
    assert pacing.next_due_ns() is None
    pacing.completed(0, 10_000_000)
    assert triples(pacing.due(10_000_000)) == [(1, 1_000_000, 10_000_000)]
    pacing.completed(1, 10_500_000)
    assert pacing.due(10_499_999) == []
    assert triples(pacing.due(11_000_000)) == [(2, 2_000_000, 10_500_000)]


def test_a_free_slot_waits_for_the_schedule() -> None:
    pacing = Pacing(every_gap(2), rate_per_s=1, concurrency=1)
    pacing.due(0)
    pacing.completed(0, 5)
    assert pacing.next_due_ns() == NS
    assert triples(pacing.due(NS)) == [(1, NS, NS)]


def test_duration_stops_the_open_loop() -> None:
    pacing = Pacing(every_gap(10), rate_per_s=1, duration_s=2, drain_s=3)
    assert pacing.deadline_ns == 5 * NS
    assert [one.index for one in pacing.due(0)] == [0]
    assert not pacing.exhausted
    # the request of second 2 is at the end of the duration, so it is not sent; that of second 1 still is, late
    assert triples(pacing.due(4 * NS)) == [(1, NS, NS)]
    assert pacing.exhausted
    assert pacing.next_due_ns() is None
    assert pacing.unsent == 0


def test_duration_stops_the_closed_loop_when_a_slot_comes_free_too_late() -> None:
    pacing = Pacing(every_gap(10), concurrency=1, duration_s=2)
    pacing.due(0)
    pacing.completed(0, NS)
    assert [one.index for one in pacing.due(NS)] == [1]
    assert not pacing.exhausted
    pacing.completed(1, 2 * NS)
    assert pacing.exhausted
    assert pacing.next_due_ns() is None
    assert pacing.due(9 * NS) == []


def test_what_a_cap_holds_back_until_the_end_is_never_sent_but_counted() -> None:
    pacing = Pacing(every_gap(10), rate_per_s=4, concurrency=1, duration_s=1, drain_s=0)
    pacing.due(0)
    assert not pacing.exhausted  # the requests of 0.25, 0.5 and 0.75 s may still go out
    pacing.completed(0, 3 * NS)
    assert pacing.due(3 * NS) == []
    assert pacing.exhausted
    assert pacing.unsent == 3


def test_without_a_duration_there_is_no_deadline() -> None:
    pacing = Pacing(every_gap(2), rate_per_s=1, concurrency=1)
    assert pacing.deadline_ns is None
    assert pacing.unsent == 0


def test_an_empty_plan_is_exhausted() -> None:
    for pacing in (
        Pacing(every_gap(0)),
        Pacing(every_gap(0), concurrency=2, duration_s=1),
        Pacing(every_gap(0), rate_per_s=1),
    ):
        assert pacing.exhausted
        assert pacing.due(10**18) == []


def test_only_what_is_in_flight_can_complete_and_only_once() -> None:
    pacing = Pacing(every_gap(2), concurrency=1)
    with pytest.raises(ValueError, match="request 0 is not in flight"):
        pacing.completed(0, 0)
    pacing.due(0)
    pacing.completed(0, 1)
    with pytest.raises(ValueError, match="request 0 is not in flight"):
        pacing.completed(0, 1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rate_per_s": 0}, "rate must be above 0"),
        ({"rate_per_s": -1.0}, "rate must be above 0"),
        ({"rate_per_s": float("nan")}, "rate must be above 0"),
        ({"rate_per_s": float("inf")}, "rate must be above 0"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"duration_s": 0}, "duration must be above 0"),
        ({"duration_s": float("nan")}, "duration must be above 0"),
        ({"drain_s": -1}, "drain must be at least 0"),
    ],
)
def test_bad_settings(settings: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Pacing(every_gap(2), **settings)  # type: ignore[arg-type]


class Played:
    """A server that takes `service_ns[i]` for request i, polled now and then and whenever something happens."""

    def __init__(self, pacing: Pacing, service_ns: list[int], lag_ns: int = 0) -> None:
        self.due: list[Due] = []
        self.most_in_flight = 0
        self.ended_ns: list[int] = []
        running: list[tuple[int, int]] = []
        now_ns = 0
        while True:
            new = pacing.due(now_ns)
            for one in new:
                assert one.sent_ns <= now_ns
                heappush(running, (now_ns + service_ns[one.index], one.index))
            self.due += new
            assert pacing.in_flight == len(running)
            self.most_in_flight = max(self.most_in_flight, len(running))
            next_ns = [when for when in (running[0][0] if running else None, pacing.next_due_ns()) if when is not None]
            if not next_ns:
                assert pacing.exhausted, "nothing runs, nothing is due, and yet not exhausted"
                return
            assert not pacing.exhausted or pacing.next_due_ns() is None
            # The caller may look late, as an engine does that is in the middle of a step.
            now_ns = max(now_ns, min(next_ns) + lag_ns)
            while running and running[0][0] <= now_ns:
                end_ns, index = heappop(running)
                pacing.completed(index, end_ns)
                self.ended_ns.append(end_ns)


plans = st.lists(st.integers(0, 3 * UGAP), min_size=1, max_size=40).map(
    lambda gaps: np.cumsum([0, *gaps[1:]]).astype(np.int64)
)
services = st.lists(st.integers(1, 4 * NS), min_size=40, max_size=40)
rates = st.sampled_from([0.3, 1.0, 7.0, 1e4])
lags = st.sampled_from([0, 1, 123_456_789])


@settings(deadline=None)  # a busy machine is no defect
@given(
    arrivals=plans,
    service_ns=services,
    rate=st.none() | rates,
    concurrency=st.none() | st.integers(1, 50),
    duration=st.none() | st.floats(0.001, 20),
    lag_ns=lags,
)
def test_every_pacing_hands_out_a_beginning_of_the_plan_in_order_within_the_cap(
    arrivals: IntColumn,
    service_ns: list[int],
    rate: float | None,
    concurrency: int | None,
    duration: float | None,
    lag_ns: int,
) -> None:
    pacing = Pacing(arrivals, rate_per_s=rate, concurrency=concurrency, duration_s=duration)
    played = Played(pacing, service_ns, lag_ns)
    assert [one.index for one in played.due] == list(range(len(played.due)))
    assert pacing.issued == len(played.due)
    if concurrency is not None:
        assert played.most_in_flight <= concurrency
    for one in played.due:
        assert one.sent_ns >= one.scheduled_ns
        assert duration is None or one.sent_ns < duration * NS
    if duration is None:
        assert len(played.due) == len(arrivals)
    elif rate is not None:
        before = sum(round(at * 1000 / rate) < round(duration * NS) for at in arrivals.tolist())
        assert len(played.due) + pacing.unsent == before


@settings(deadline=None)  # a busy machine is no defect
@given(arrivals=plans, one=services, other=services, rate=rates, lag_ns=lags)
def test_an_open_loop_does_not_depend_on_completions(
    arrivals: IntColumn, one: list[int], other: list[int], rate: float, lag_ns: int
) -> None:
    fast, slow = (Played(Pacing(arrivals, rate_per_s=rate), service, lag_ns) for service in (one, other))
    assert fast.due == slow.due
    assert [due.scheduled_ns for due in fast.due] == [round(at * 1000 / rate) for at in arrivals.tolist()]
    assert all(due.sent_ns == due.scheduled_ns for due in fast.due)


@settings(deadline=None)  # a busy machine is no defect
@given(arrivals=plans, service_ns=services, rate=rates, concurrency=st.integers(1, 5), lag_ns=lags)
def test_a_cap_never_moves_the_schedule(
    arrivals: IntColumn, service_ns: list[int], rate: float, concurrency: int, lag_ns: int
) -> None:
    capped = Played(Pacing(arrivals, rate_per_s=rate, concurrency=concurrency), service_ns, lag_ns)
    assert [due.scheduled_ns for due in capped.due] == [round(at * 1000 / rate) for at in arrivals.tolist()]


@settings(deadline=None)  # a busy machine is no defect
@given(count=st.integers(1, 40), service_ns=services, concurrency=st.integers(1, 50), lag_ns=lags)
def test_a_closed_loop_starts_each_request_when_a_slot_came_free(
    count: int, service_ns: list[int], concurrency: int, lag_ns: int
) -> None:
    played = Played(Pacing(every_gap(count), concurrency=concurrency), service_ns, lag_ns)
    slots_came_free = [0] * concurrency + played.ended_ns
    assert [due.scheduled_ns for due in played.due] == slots_came_free[:count]
    assert all(due.sent_ns == due.scheduled_ns for due in played.due)


@pytest.mark.parametrize("rate", [1e-6, RateSchedule.parse("0.000001 for 10s, 0.000001")])
def test_a_request_due_after_centuries_is_refused(rate: float | RateSchedule) -> None:
    """It used to be due at a negative time, as 64 bits of ns hold 292 years."""
    arrivals = every_gap(2_000_000)
    with pytest.raises(CbbenchError, match="would be due after 63,376 years") as raised:
        Pacing(arrivals, rate_per_s=rate)
    assert raised.value.field == "rate"
