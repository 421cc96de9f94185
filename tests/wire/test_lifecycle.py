"""loadgen B8: servers that go away, connections that close, runs that must end; partial results are kept."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from engines.remote.client_stats import ClientStats
from engines.remote.config import RemoteConfig, resolve
from engines.remote.dispatcher import Load
from engines.remote.load_client import LoadClient
from engines.remote.load_recorder import LoadRecorder
from engines.remote.openai import interpret
from engines.remote.request_bodies import BodyWindow
from tests.wire.driving import Watching, load
from tests.wire.fake import GOOD, HEAD, Call, FakeServer, chunk, plain, text
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


async def good(call: Call) -> None:
    await call.pause(0.005)
    await call.send(GOOD)


def test_a_server_that_never_answers() -> None:
    """B8 76 and 79, guidellm #431, inference-perf #555: classed `timeout`, and the run goes on."""

    async def script(call: Call) -> None:
        if call.number == 0:
            await call.pause(30)
        await call.send(GOOD)

    ran = load(script, requests=3, concurrency=1, read_timeout_s=0.3)
    assert ran.failures == ["timeout", None, None]
    assert "0.3 s" in (ran.record.rows[0].error or "")
    assert ran.record.rows[0].end < 3e9


def test_a_stream_that_falls_silent() -> None:
    async def script(call: Call) -> None:
        await call.send(HEAD + chunk(text("a")))
        await call.pause(30)

    row = load(script, read_timeout_s=0.3).row
    assert (row.finish_reason, row.events) == ("timeout", 1)


def test_a_slow_stream_is_no_timeout() -> None:
    async def script(call: Call) -> None:
        await call.send(HEAD)
        for i in range(5):
            await call.pause(0.15)
            await call.send(chunk(text("a", "stop" if i == 4 else None)))
        call.close()

    assert load(script, read_timeout_s=0.4).failures == [None]


def test_a_kept_connection_that_closes_is_sent_on_again_once() -> None:
    """B8 82, vllm #18472: the server's keep-alive ended as we sent. Counted, and not a failure."""

    async def script(call: Call) -> None:
        if call.on_connection == 1:
            call.close()
        else:
            await call.send(GOOD)

    ran = load(script, requests=3, concurrency=1)
    assert ran.failures == [None] * 3
    assert ran.report.resends >= 1


def test_a_server_that_never_keeps_what_it_says_it_keeps() -> None:
    """B8 82: llama.cpp's closes after every stream. That is learned, and not paid for with every request."""

    async def script(call: Call) -> None:
        if call.on_connection == 1:
            call.close()
        else:
            await call.send(GOOD)

    ran = load(script, requests=30, concurrency=1)
    assert ran.failures == [None] * 30
    assert 3 <= ran.report.resends <= 6


def test_one_that_closes_now_and_then_is_kept() -> None:
    async def script(call: Call) -> None:
        if call.on_connection == 5:
            call.close()
        else:
            await call.send(GOOD)

    ran = load(script, requests=60, concurrency=1)
    assert ran.failures == [None] * 60
    assert ran.report.resends == 11, "every sixth, to the end"


def test_it_is_sent_again_only_once() -> None:
    async def script(call: Call) -> None:
        if call.number == 0:
            await call.send(GOOD)
        else:
            call.close()

    with FakeServer(script) as server:
        ran = load(server, requests=2, concurrency=1)
    assert ran.failures == [None, "truncated"]
    assert len(server.bodies) == 3
    assert ran.report.resends == 1


def test_it_is_not_sent_again_once_anything_came_back() -> None:
    async def script(call: Call) -> None:
        await call.send(GOOD if call.number == 0 else HEAD[:10])
        if call.number:
            call.close()

    with FakeServer(script) as server:
        ran = load(server, requests=2, concurrency=1)
    assert ran.failures == [None, "truncated"]
    assert len(server.bodies) == 2
    assert ran.report.resends == 0


def test_no_other_failure_is_tried_again() -> None:
    with FakeServer(lambda call: call.send(plain("503 Busy"))) as server:
        load(server, requests=5, concurrency=2)
    assert len(server.bodies) == 5


def test_a_server_that_closes_after_each_answer() -> None:
    with FakeServer(lambda call: call.send(GOOD.replace(b"Content", b"Connection: close\r\nContent", 1))) as server:
        ran = load(server, requests=12, concurrency=3)
    assert ran.failures == [None] * 12
    assert ran.report.connections >= 12
    assert ran.report.resends == 0


def test_a_server_that_closes_idle_connections() -> None:
    """B8 82: noticed while idle, so nothing is even sent on them."""

    async def script(call: Call) -> None:
        await call.send(GOOD)
        call.close()

    ran = load(script, requests=4, rate=20)
    assert ran.failures == [None] * 4


def test_a_server_that_goes_away() -> None:
    """Exit 6; what had ended is kept, and the rest of the plan is not burnt on a dead address."""

    async def script(call: Call) -> None:
        if call.number == 5:
            await server.vanish()
        else:
            await call.send(GOOD)

    with FakeServer(script) as server:
        ran = load(server, requests=500, concurrency=2, gone_after_s=0.5)
    assert ran.problem is not None
    assert ran.problem.exit_code == 6
    assert "went away" in str(ran.problem)
    assert "\n" not in str(ran.problem)
    assert sum(failure is None for failure in ran.failures) >= 4
    assert len(ran.record) < 20


def test_a_server_that_goes_away_under_the_last_request() -> None:
    async def script(call: Call) -> None:
        if call.number == 2:
            await server.vanish()
        else:
            await call.send(GOOD)

    with FakeServer(script) as server:
        ran = load(server, requests=3, concurrency=1, gone_after_s=0.3)
    assert ran.problem is not None
    assert ran.problem.exit_code == 6
    assert ran.failures[:2] == [None, None]


def test_a_connection_that_breaks_is_not_a_server_that_went() -> None:
    async def script(call: Call) -> None:
        if call.number == 1:
            call.close()
        else:
            await call.send(GOOD)

    ran = load(script, requests=4, concurrency=1)
    assert ran.problem is None


def test_stopping_keeps_what_there_is() -> None:
    """B8 81, guidellm #227: rows are handed on as they end; what runs is cancelled, not lost."""
    ran = load(good, requests=1000, concurrency=4, observer=Watching(stop_after=20))
    assert ran.record.interrupted
    statuses = [row.status for row in ran.record.rows]
    assert statuses[:20] == ["completed"] * 20
    assert len(statuses) < 1000
    assert statuses.count("cancelled") <= 4


def test_stopping_while_the_server_is_silent() -> None:
    """B8 77: Ctrl-C is not ignored while nothing happens."""
    watching = Watching()
    threading.Timer(0.3, lambda: setattr(watching, "stopping", True)).start()
    ran = load(lambda call: call.pause(30), requests=2, observer=watching)
    assert [row.status for row in ran.record.rows] == ["cancelled"] * 2
    assert ran.record.rows[0].end < 5e9


def test_stopping_while_the_server_is_still_being_tried() -> None:
    watching = Watching()
    threading.Timer(0.3, lambda: setattr(watching, "stopping", True)).start()
    ran = load(lambda call: call.pause(30), requests=2, observer=watching, warmup_requests=2)
    assert ran.record.interrupted
    assert ran.observer.rows == [] or {row.status for row in ran.observer.rows} == {"cancelled"}


def test_an_empty_plan() -> None:
    ran = load(good, requests=0)
    assert len(ran.record) == 0
    assert ran.problem is None


@pytest.mark.parametrize("stray", [b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", b"nonsense"])
def test_words_on_an_idle_connection_spoil_only_that_connection(stray: bytes) -> None:
    async def script(call: Call) -> None:
        await call.send(GOOD)
        await call.pause(0.01)
        await call.send(stray)

    ran = load(script, requests=3, rate=20)
    assert ran.failures == [None] * 3


def test_a_server_whose_queue_is_full() -> None:
    """Connections that neither open nor fail: the requests that wait for them fail as `connect`, and the server counts
    as gone."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        time.sleep(0.1)
        config = RemoteConfig(url=f"127.0.0.1:{port}", connect_timeout_s=0.3, gone_after_s=0.3)
        plan = RequestPlan.of([8] * 3, [2] * 3)
        recorder = LoadRecorder(plan, Watching(), ClientStats())
        load = Load(bytes, BodyWindow(bytes, range(3), count=3), Pacing(plan.arrivals_ugap), recorder)
        client = LoadClient(resolve(config), config, interpret, load)
        assert not client.prepare(2)
        assert client.refusal == "no connection within 0.3 s"
        assert client.run(time.monotonic_ns()) == "gone"
        client.close()
        for filler in fillers:
            filler.close()
    rows = recorder.record(interrupted=False).rows
    assert [(row.status, row.finish_reason) for row in rows] == [("failed", "connect")] * 3
