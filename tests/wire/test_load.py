"""loadgen B6: the load that was asked for is the load that was made, and the client says where it was not."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from tests.wire.driving import Watching, load
from tests.wire.fake import DONE, END, GOOD, HEAD, Call, FakeServer, chunk, response, text, usage
from workloads.arrivals import unit_arrivals
from workloads.pacing import Pacing
from workloads.plan import UGAP

SLOW_S = 0.05


async def slow(call: Call) -> None:
    await call.pause(SLOW_S)
    await call.send(GOOD)


def test_connections_are_open_before_the_first_request() -> None:
    """B1 11, guidellm #526: the first request of a run does not carry the set-up of a connection."""
    with FakeServer(slow) as server:
        ran = load(server, requests=8, concurrency=4)
    # One more is the look at /v1/models.
    assert server.connections_at_first_call == 4 + 1
    assert ran.report.connections == 4
    assert server.connections == 4 + 1, "and they serve until the end"


@pytest.mark.parametrize("number", [1, 7])
def test_a_closed_loop_keeps_its_concurrency(number: int) -> None:
    with FakeServer(slow) as server:
        ran = load(server, requests=4 * number, concurrency=number)
    assert ran.failures == [None] * 4 * number
    assert server.most_open_calls == number


def test_three_hundred_in_flight() -> None:
    """B6 60, vllm #7241, guidellm #487: no limit of connections below the load."""

    async def script(call: Call) -> None:
        while server.open_now < 300 and server.most_open_calls < 300:
            await call.pause(0.01)
        await call.send(GOOD)

    with FakeServer(script) as server:
        ran = load(server, requests=300, output_tokens=2)
    assert server.most_open_calls == 300
    assert ran.failures == [None] * 300


def test_an_open_loop_keeps_its_rate() -> None:
    """B6 58, vllm #21104 #21108: an absolute schedule does not drift, whatever a single send costs."""
    ran = load(slow, requests=300, rate=300, arrivals_ugap=unit_arrivals("poisson", 300, seed=1))
    sent, scheduled = ran.record.column_ns("sent"), ran.record.column_ns("scheduled")
    assert ran.failures == [None] * 300
    assert (sent >= scheduled).all(), "never early"
    assert ran.report.achieved_over_asked_rate == pytest.approx(1, abs=0.05)
    assert np.array_equal(np.sort(scheduled), np.rint(unit_arrivals("poisson", 300, seed=1) * (1e9 / UGAP / 300)))


def test_rates_below_one_a_second_are_rates() -> None:
    """B6 64, vllm #47651 #47657: one request every four seconds, not none."""
    pacing = Pacing(np.arange(3) * UGAP, rate_per_s=0.25)
    assert [due.scheduled_ns for due in pacing.due(10**11)] == [0, 4 * 10**9, 8 * 10**9]


def test_waiting_behind_a_cap_is_in_the_scheduled_latency_only() -> None:
    """B6 59, vllm #54101, guidellm #1048 (507 ms reported, 3,330 felt): twice what two in flight can carry."""
    ran = load(slow, requests=40, rate=2 * 2 / SLOW_S, concurrency=2)
    first, sent, scheduled = (ran.record.column_ns(name) / 1e9 for name in ("first", "sent", "scheduled"))
    assert np.median(first - sent) < 3 * SLOW_S
    assert np.max(first - scheduled) > 5 * SLOW_S
    # The wait for the cap on requests in flight is not a delay of the client's.
    assert ran.report.send_lag_p99_ms is not None
    assert ran.report.send_lag_p99_ms < 0.5 * np.max(sent - scheduled) * 1000


def test_a_stall_is_in_the_latency_of_requests_due_meanwhile() -> None:
    """B6 59: with a cap, nothing is sent during a stall; from the schedule the stall is there all the same."""

    async def script(call: Call) -> None:
        if call.number == 10:
            await call.pause(0.5)
        await call.send(GOOD)

    ran = load(script, requests=100, rate=100, concurrency=1)
    wait_s = (ran.record.column_ns("first") - ran.record.column_ns("scheduled")) / 1e9
    assert (wait_s > 0.1).sum() >= 20
    assert ((ran.record.column_ns("first") - ran.record.column_ns("sent")) / 1e9 > 0.1).sum() <= 5


def test_every_planned_request_is_accounted_for() -> None:
    """B6 70, inference-perf #245, B8 86: ended + unsent == planned, each index once."""

    async def script(call: Call) -> None:
        if call.number % 3 == 0:
            call.close()
        else:
            await call.send(GOOD if call.number % 3 == 1 else GOOD[:-40])
            if call.number % 3 == 2:
                call.close()

    ran = load(script, requests=60, concurrency=8)
    assert sorted(row.i for row in ran.record.rows) == list(range(60))
    assert ran.record.planned == 60


def test_a_run_of_a_duration_cancels_what_is_left_and_keeps_its_tokens() -> None:
    """B6 67, guidellm #77 #444: tokens of cancelled requests stay, for a window to credit. B8 76: a hard end."""

    async def script(call: Call) -> None:
        await call.send(HEAD)
        for _ in range(1000):
            await call.send(chunk(text("a")))
            await call.pause(0.02)

    ran = load(script, requests=3, concurrency=2, duration=0.3, drain=0.2)
    assert [row.status for row in ran.record.rows] == ["cancelled"] * 2
    assert all(row.events > 5 and row.finish_reason == "aborted" for row in ran.record.rows)
    assert all(0.45e9 < row.end < 3e9 for row in ran.record.rows)
    assert not ran.record.interrupted


def test_the_client_measures_itself() -> None:
    """B6 61, guidellm #470."""
    report = load(slow, requests=50, rate=500).report
    assert report.stamps in ("kernel", "read", "mixed")
    for value in (report.loop_lag_p99_ms, report.send_lag_p99_ms, report.cpu_share, report.achieved_over_asked_rate):
        assert value is not None
        assert value > 0
    assert report.coalesced_event_share is not None
    assert report.token_events == 100
    assert report.connections >= 1


def test_a_slow_client_shows_in_its_own_figures() -> None:
    """B6 61: an observer that takes 30 ms per request blocks the loop."""

    class Slow(Watching):
        def request_ended(self, *args: object) -> None:
            super().request_ended(*args)  # type: ignore[arg-type]
            time.sleep(0.03)

    async def script(call: Call) -> None:
        await call.send(HEAD)
        for i in range(5):
            await call.send(chunk(text("a", "length" if i == 4 else None)))
            await call.pause(0.1)
        await call.send(chunk(usage(5)) + chunk(DONE) + END)

    ran = load(script, requests=40, concurrency=20, output_tokens=5, observer=Slow())
    assert ran.report.read_lag_p99_ms is None or ran.report.read_lag_p99_ms > 10
    assert ran.report.loop_lag_p99_ms is not None
    assert ran.report.loop_lag_p99_ms > 10


def test_signals_come_at_most_four_times_a_second() -> None:
    ran = load(slow, requests=60, concurrency=3)
    times_s = [signal.t / 1e9 for signal in ran.observer.signals]
    assert len(times_s) >= 2
    assert all(later - earlier >= 0.25 for earlier, later in pairwise(times_s))
    last = ran.observer.signals[-1]
    assert 0 < last.completed <= 60
    assert last.running + last.waiting <= 3
    assert last.output_token_per_s > 0
    assert list(ran.record.signals) == ran.observer.signals


def test_prompts_come_from_the_index_alone() -> None:
    """B3 32, inference-perf #509: which request gets which prompt does not depend on the order of sending."""
    with FakeServer(slow) as server:
        load(server, requests=10, concurrency=1)
        load(server, requests=10)
    assert {tuple(body["prompt"]) for body in server.bodies[:10]} == {
        tuple(body["prompt"]) for body in server.bodies[10:]
    }


def test_response_cost_does_not_grow_with_its_length() -> None:
    """B8 85, llmeter #99: per-token work is constant. One answer of 20,000 events against 20 of 1,000."""

    def cpu_s(answers: int, events: int) -> float:
        body = response(*[text("a")] * (events - 1), text("a", "length"), usage(events), DONE)
        return load(lambda call: call.send(body), requests=answers, concurrency=1, output_tokens=events).report.cpu_s

    cpu_s(2, 100)
    assert cpu_s(1, 20_000) < 4 * cpu_s(20, 1_000)
