"""How long a request may take in all, and when a server says to come back."""

from __future__ import annotations

import time
from contextlib import suppress
from email.utils import formatdate

import pytest

from engines.remote.answer import StreamedAnswer
from engines.remote.failure_limit import MostFailures
from engines.remote.headers import retry_after_s
from engines.remote.load_recorder import Exchange
from engines.remote.retries import Retries
from tests.wire.driving import load
from tests.wire.fake import GOOD, HEAD, Call, FakeServer, chunk, plain, text


@pytest.mark.parametrize("drip", [b": keep-alive\n\n", text("a")], ids=["comments", "tokens"])
def test_a_drip_ends_at_the_deadline(drip: bytes) -> None:
    """Every byte restarts the read timeout."""

    async def script(call: Call) -> None:
        if call.number:
            await call.send(GOOD)
            return
        await call.send(HEAD)
        for _ in range(100):
            await call.pause(0.05)
            await call.send(chunk(drip))

    ran = load(script, requests=2, concurrency=1, read_timeout_s=0.3, request_timeout_s=0.6)
    assert ran.failures == ["timeout", None]
    late = ran.record.rows[0]
    assert "0.6 s after sending" in (late.error or "")
    assert late.sent is not None
    assert 0.55e9 < late.end - late.sent < 1.2e9


def test_an_answer_within_the_deadline_is_an_answer() -> None:
    async def script(call: Call) -> None:
        await call.pause(0.2)
        await call.send(GOOD)

    assert load(script, requests=4, concurrency=2, request_timeout_s=1.0).failures == [None] * 4


@pytest.mark.parametrize("workers", [1, 2])
def test_retry_after_is_recorded(workers: int) -> None:
    async def script(call: Call) -> None:
        refusal = plain("429 Too Many Requests", b"{}")
        wait = b"\r\nRetry-After: %d\r\n" % (call.number + 1)
        await call.send(refusal.replace(b"\r\n", wait, 1) if call.number < 3 else GOOD)

    with FakeServer(script) as server:
        ran = load(server, requests=6, concurrency=2, workers=workers)
    assert (ran.report.retry_afters, ran.report.retry_after_s) == (3, (1.0, 3.0))
    assert ran.failures.count("http_4xx") == 3
    assert len(server.bodies) == 6, "it is not obeyed"


def test_forms_of_retry_after() -> None:
    assert retry_after_s("120") == 120
    assert retry_after_s(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=2)
    assert retry_after_s(formatdate(time.time() - 60, usegmt=True)) == 0
    for wrong in ("", "soon", "-5", "1.5", "9" * 30, "Fri, 99 Foo 2026"):
        assert retry_after_s(wrong) is None


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("most", "least_ended"), [(MostFailures(count=2), 3), (MostFailures(share=0.1), 3)], ids=["number", "share"]
)
def test_too_many_failures_stop_the_run(workers: int, most: MostFailures, least_ended: int) -> None:
    async def script(call: Call) -> None:
        await call.pause(0.01)
        await call.send(plain("500 Internal Server Error", b"CUDA out of memory"))

    with FakeServer(script) as server:
        ran = load(server, requests=400, concurrency=2, max_failures=most, workers=workers)
    assert ran.problem is not None
    assert ran.problem.exit_code == 7
    assert "requests failed" in str(ran.problem)
    assert "CUDA out of memory" in str(ran.problem)
    assert least_ended <= len(ran.record) < 200


def test_few_failures_do_not_stop_it() -> None:
    async def script(call: Call) -> None:
        await call.send(plain("500 Internal Server Error", b"no") if call.number % 20 == 0 else GOOD)

    ran = load(script, requests=60, concurrency=1, max_failures=MostFailures(share=0.1))
    assert (ran.problem, len(ran.record)) == (None, 60)
    ran = load(script, requests=60, concurrency=1, max_failures=MostFailures(count=3))
    assert (ran.problem, len(ran.record)) == (None, 60)


@pytest.mark.parametrize("end", [b"", b"\n"], ids=["a line", "an event"])
def test_an_event_that_does_not_end_is_bounded(end: bytes) -> None:
    async def script(call: Call) -> None:
        if call.number:
            await call.send(GOOD)
            return
        await call.send(HEAD)
        piece = chunk(b"data: " + b"x" * 2**20 + end)
        with suppress(ConnectionError):
            for _ in range(64):
                await call.send(piece)
        call.close()

    ran = load(script, requests=2, concurrency=1)
    assert ran.failures == ["stream_error", None]
    assert "does not end" in (ran.record.rows[0].error or "")


def request_id(call: Call) -> str:
    [line] = [one for one in call.head.splitlines() if one.lower().startswith("x-request-id:")]
    return line


@pytest.mark.parametrize("workers", [1, 2])
def test_a_refusal_is_sent_again_when_the_server_said(workers: int) -> None:
    """Each request is refused once."""
    refused: dict[str, float] = {}

    async def script(call: Call) -> None:
        name = request_id(call)
        if name in refused:
            assert time.monotonic() - refused[name] >= 1.0
            await call.send(GOOD)
            return
        refused[name] = time.monotonic()
        refusal = plain("429 Too Many Requests", b"{}")
        await call.send(refusal.replace(b"\r\n", b"\r\nRetry-After: 1\r\n", 1))

    with FakeServer(script) as server:
        ran = load(server, requests=2, concurrency=2, workers=workers, retry_429=1)
    assert ran.failures == [None] * 2
    assert (ran.report.retries, ran.report.retried_requests, ran.report.retry_afters) == (2, 2, 0)
    assert ran.report.retry_wait_mean_s == 1.0
    for row in ran.record.rows:
        assert row.sent is not None
        assert row.sent - row.scheduled >= 1e9, "the wait is in the latencies from the schedule"
        assert row.first is not None
        assert row.first - row.sent < 0.9e9, "and not in those from sending"


def test_a_request_that_is_refused_too_often_fails() -> None:
    """The first is refused three times, and the second twice."""

    async def script(call: Call) -> None:
        refusal = plain("429 Too Many Requests", b"{}")
        await call.send(refusal.replace(b"\r\n", b"\r\nRetry-After: 0\r\n", 1) if call.number < 5 else GOOD)

    with FakeServer(script) as server:
        ran = load(server, requests=2, concurrency=1, retry_429=2)
    assert ran.failures == ["http_4xx", None]
    assert len(server.bodies) == 6
    assert (ran.report.retries, ran.report.retried_requests, ran.report.retry_afters) == (4, 2, 1)


def test_without_a_header_the_waits_grow() -> None:
    exchange = Exchange(0, 0, 0, 0, StreamedAnswer(lambda answer, event, at_ns: None))
    exchange.answer.head(429, {}, 1)
    retries = Retries(8)
    waits_s = []
    while retries.accepts(exchange):
        waits_s.append(retries.add(exchange, 0) / 1e9)
        assert retries.due(retries.next_due_ns - 1) == []
        [(_, again)] = retries.due(retries.next_due_ns)
        assert again is exchange
    assert waits_s == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_stopped_run_cancels_what_waits_for_its_retry() -> None:
    async def script(call: Call) -> None:
        refusal = plain("429 Too Many Requests", b"{}")
        await call.send(refusal.replace(b"\r\n", b"\r\nRetry-After: 60\r\n", 1))

    ran = load(script, requests=2, concurrency=2, retry_429=1, duration=0.3, drain=0.1)
    assert [row.status for row in ran.record.rows] == ["cancelled", "cancelled"]
