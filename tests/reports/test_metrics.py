"""Latencies of requests, by hand and against plain Python."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.base import RunRecord
from engines.request_table import RequestRow
from reports.metrics import LATENCIES, definitions, request_times
from reports.summary_schema import Latency
from tests.reports.factory import all_values, bus_stop, record, row


def test_one_request_by_hand() -> None:
    times = request_times(record([row(0, [250, 270, 310], scheduled_ms=100, sent_ms=120)]))
    assert times.ttft_ms.tolist() == [130]
    assert times.ttft_sched_ms.tolist() == [150]
    assert times.tpot_ms.tolist() == [30]
    assert times.e2el_ms.tolist() == [190]
    assert times.e2el_sched_ms.tolist() == [210]
    assert all_values(times.gaps_ms).tolist() == [20, 40]  # the wait for the first token is no gap


def test_failures_never_enter_latencies() -> None:
    bad = row(0, [5, 6], status="failed", finish_reason="error", error="cut off")
    gone = row(1, [5, 6], status="cancelled", finish_reason="aborted")
    times = request_times(record([bad, gone, row(2, [50, 60])]))
    assert np.isnan(times.ttft_ms).tolist() == [True, True, False]
    assert all_values(times.gaps_ms).tolist() == [10]
    assert (times.failed.sum(), times.cancelled.sum(), times.completed.sum()) == (1, 1, 1)


def test_one_token_has_no_tpot_and_no_token_has_no_ttft() -> None:
    times = request_times(record([row(0, [50]), row(1, [])]))
    assert np.isnan(times.tpot_ms).all()
    assert np.isnan(times.ttft_ms).tolist() == [False, True]
    assert times.single_token.tolist() == [True, False]


def test_a_server_that_sends_all_tokens_in_one_event_shows_no_tpot() -> None:
    assert np.isnan(request_times(record([row(0, [50], output_tokens=100)])).tpot_ms[0])


def test_several_tokens_per_event_divide_by_tokens_not_events() -> None:
    assert request_times(record([row(0, [10, 40], output_tokens=4)])).tpot_ms.tolist() == [10]


def test_requests_are_put_in_order_of_sending() -> None:
    rows = [row(2, [30], sent_ms=9, scheduled_ms=9), row(0, [40], sent_ms=1), row(1, [50], sent_ms=1)]
    assert request_times(record(rows)).ttft_ms.tolist() == [39, 49, 21]


def test_events_as_step_numbers_happen_when_the_step_ends() -> None:
    times = request_times(bus_stop((2, 3)))
    assert all_values(times.gaps_ms).tolist() == [10, 10, 10]
    assert times.ttft_ms.tolist() == [10, 10]


def test_an_empty_run_has_no_numbers_and_no_error() -> None:
    times = request_times(record([]))
    assert len(times) == 0
    assert len(times.gaps_ms) == 0


def test_every_latency_has_a_definition() -> None:
    assert {*LATENCIES, "ttfot_ms"} == set(Latency.__struct_fields__)
    assert set(Latency.__struct_fields__) <= set(definitions())


@st.composite
def records(draw: Callable[..., object]) -> RunRecord:
    made = []
    for i in range(draw(st.integers(0, 12))):
        scheduled = draw(st.integers(0, 1000))
        sent = scheduled + draw(st.integers(0, 50))
        gaps = draw(st.lists(st.integers(0, 100), max_size=8))
        events = (sent + np.cumsum(gaps)).tolist()
        status = draw(st.sampled_from(["completed", "completed", "failed", "cancelled"]))
        more = draw(st.integers(0, 3)) if events else 0
        made.append(
            row(i, events, scheduled_ms=scheduled, sent_ms=sent, status=status, output_tokens=len(events) + more)
        )
    return record(draw(st.permutations(made)))


def brute_force(one: RequestRow) -> dict[str, float | None]:
    if one.status != "completed" or one.first is None or one.last is None or one.sent is None:
        return {}
    found: dict[str, float | None] = {
        "ttft_ms": (one.first - one.sent) / 1e6,
        "e2el_ms": (one.last - one.sent) / 1e6,
        "ttft_sched_ms": (one.first - one.scheduled) / 1e6,
        "e2el_sched_ms": (one.last - one.scheduled) / 1e6,
    }
    if one.output_tokens >= 2 and one.last > one.first:
        found["tpot_ms"] = (one.last - one.first) / 1e6 / (one.output_tokens - 1)
    return found


@given(records())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no defect
def test_columns_equal_plain_python(made: RunRecord) -> None:
    times = request_times(made)
    event_ns = made.event_times_ns()
    rows = sorted(made.rows, key=lambda one: (one.sent or 0, one.i))
    gaps = []
    for at, one in enumerate(rows):
        wanted = brute_force(one)
        for name in ("ttft_ms", "tpot_ms", "e2el_ms", "ttft_sched_ms", "e2el_sched_ms"):
            value = times.latency(name)[at]
            assert wanted.get(name) == (None if np.isnan(value) else pytest.approx(value))
    for one in made.rows:
        if one.status == "completed":
            own = event_ns[one.events_at : one.events_at + one.events].tolist()
            gaps += [(after - before) / 1e6 for before, after in pairwise(own)]
    assert all_values(times.gaps_ms).tolist() == pytest.approx(sorted(gaps))
    # What a request waits for its first token and between the others is its whole latency.
    for at, one in enumerate(rows):
        if one.status == "completed" and one.events and one.events == one.output_tokens:
            own = event_ns[one.events_at : one.events_at + one.events]
            assert times.e2el_ms[at] == pytest.approx(times.ttft_ms[at] + np.diff(own).sum() / 1e6)
