"""How many connections there are, which one a request takes, and what it costs to open one."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import numpy as np
import pytest

from engines.remote.answer import Failure
from engines.remote.config import RemoteConfig, resolve
from engines.remote.connection import Connection
from engines.remote.socket_poller import SocketPoller
from tests.wire.driving import load
from tests.wire.fake import GOOD, Call, FakeServer

CERTIFICATE = str(Path(__file__).with_name("certificate.pem"))
MS = 1_000_000


def at_ms(*times_ms: int) -> dict[str, object]:
    """A load whose requests are due at these times, in an open loop."""
    return {"requests": len(times_ms), "arrivals_ugap": np.array(times_ms, np.int64) * 100_000, "rate": 100.0}


async def quick(call: Call) -> None:
    await call.send(GOOD)


async def slow_burst(call: Call) -> None:
    if call.number < 4:
        await call.pause(0.15)
    await call.send(GOOD)


def test_requests_one_after_the_other_open_one_connection() -> None:
    """32 idle ones would hold every thread of a server that serves a connection with a thread."""
    with FakeServer(quick) as server:
        ran = load(server, **at_ms(*range(0, 400, 40)))  # type: ignore[arg-type]
    assert (ran.report.connections, ran.report.connections_used, ran.report.connections_peak) == (1, 1, 1)
    assert server.connections == 1 + 1  # one for /v1/models
    assert ran.failures == [None] * 10


def test_the_longest_idle_connection_is_used_first() -> None:
    """Behind a balancer of connections every replica gets its share."""
    served: list[int] = []

    async def script(call: Call) -> None:
        served.append(call.on_connection)
        await slow_burst(call)

    with FakeServer(script) as server:
        ran = load(server, **at_ms(0, 1, 2, 3, *range(250, 490, 30)))  # type: ignore[arg-type]
    assert ran.failures == [None] * 12
    assert (ran.report.connections, ran.report.connections_peak) == (4, 4)
    assert served == [0] * 4 + [1] * 4 + [2] * 4


def test_idle_connections_are_closed() -> None:
    with FakeServer(slow_burst) as server:
        ran = load(server, **at_ms(0, 1, 2, 3, 900), idle_timeout_s=0.3)  # type: ignore[arg-type]
    assert (ran.report.connections, ran.report.connections_peak) == (5, 4)
    assert (ran.failures, ran.report.resends) == ([None] * 5, 0)


def test_as_many_are_kept_as_were_needed_lately() -> None:
    """Rotation leaves none idle for long, so that a burst would keep all of its connections open."""
    with FakeServer(slow_burst) as server:
        ran = load(server, **at_ms(0, 1, 2, 3, *range(250, 1500, 50)), idle_timeout_s=0.3)  # type: ignore[arg-type]
    assert ran.report.connections == 4
    assert ran.failures == [None] * 29


def test_a_new_connection_for_every_request() -> None:
    with FakeServer(quick) as server:
        ran = load(server, **at_ms(*range(0, 200, 40)), connections="new")  # type: ignore[arg-type]
    assert (ran.report.connections, ran.report.connections_used, ran.report.connections_peak) == (5, 5, 1)
    assert ran.failures == [None] * 5


def test_the_header_that_closes_connections_is_sent_and_means_a_new_one_for_each() -> None:
    with FakeServer(quick) as server:  # which does not close them
        ran = load(server, **at_ms(*range(0, 200, 40)), headers=(("Connection", "close"),))  # type: ignore[arg-type]
    assert (ran.report.connections, ran.report.connections_used, ran.report.connections_peak) == (5, 5, 1)
    assert ran.failures == [None] * 5
    assert all("\r\nConnection: close\r\n" in head for head in server.heads)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_number_is_opened_before_the_run_and_kept(workers: int) -> None:
    with FakeServer(quick) as server:
        ran = load(
            server,
            **at_ms(*range(0, 400, 40)),  # type: ignore[arg-type]
            connections=6,
            idle_timeout_s=0.1,
            workers=workers,
        )
    assert ran.report.connections == ran.report.connections_peak == 6
    assert ran.failures == [None] * 10


def test_a_closed_loop_opens_what_it_uses() -> None:
    with FakeServer(slow_burst) as server:
        ran = load(server, requests=12, concurrency=4)
    assert (ran.report.connections, ran.report.connections_used, ran.report.connection_waits) == (4, 4, 0)
    assert server.connections == 4 + 1


def test_a_handshake_is_timed_apart() -> None:
    """The server is busy for 300 ms while the second request needs a connection: it is due then, and sent later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    async def script(call: Call) -> None:
        await call.send(GOOD[:200])
        if call.number == 0:
            time.sleep(0.3)
            await call.pause(0.1)
        await call.send(GOOD[200:])

    with FakeServer(script, tls=context) as server:
        ran = load(server, **at_ms(0, 100), ca_file=CERTIFICATE)  # type: ignore[arg-type]
    late = next(row for row in ran.record.rows if row.i == 1)
    assert late.sent is not None
    assert late.first is not None
    assert late.sent - late.scheduled > 150 * MS
    assert late.first - late.sent < 100 * MS
    assert ran.report.connection_waits == 1
    assert (ran.report.connection_wait_p99_ms or 0) > 150
    assert (ran.report.handshake_p99_ms or 0) > 150
    assert (ran.report.send_lag_p99_ms or 0) < 50, "it is no delay of the client's"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_what_is_never_acknowledged_ends_soon() -> None:
    """Where a NAT has forgotten the connection, and not after the read timeout of minutes."""
    with FakeServer(quick) as server:
        poller = SocketPoller()
        connection = Connection(resolve(RemoteConfig(url=server.url)), poller, Nothing())
        while not connection.open:
            for on_ready, events in poller.ready(time.monotonic_ns() + 1_000 * MS):
                on_ready(events)
        set_ms = connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert 1_000 <= set_ms <= 10_000
        connection.close()
        poller.close()


class Nothing:
    """An owner that is not interested."""

    def opened(self, connection: Connection) -> None: ...

    def read(self, connection: Connection, read_ns: int, arrived_ns: int | None) -> None: ...

    def lost(self, connection: Connection, failure: Failure) -> None: ...


def test_tcp_keepalive_is_on() -> None:
    with FakeServer(quick) as server:
        poller = SocketPoller()
        connection = Connection(resolve(RemoteConfig(url=server.url)), poller, Nothing())
        assert connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        connection.close()
        poller.close()
