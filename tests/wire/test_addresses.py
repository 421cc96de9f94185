"""Servers with several addresses, of either family, by names; and proxies of the environment."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from engines.remote.config import RemoteConfig, resolve
from tests.wire.driving import load
from tests.wire.fake import GOOD, Call, FakeServer
from workloads.errors import CbbenchError

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names as /etc/hosts has them, for this process alone: the addresses of each."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def lookup(host: str, port: int, **more: Any) -> list[Any]:
        return [found for address in known.get(host, [host]) for found in real(address, port, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return known


async def quick(call: Call) -> None:
    await call.send(GOOD)


async def slow(call: Call) -> None:
    await call.pause(0.02)
    await call.send(GOOD)


def everywhere(script: Any = quick) -> FakeServer:
    return FakeServer(script, host="0.0.0.0")


def at_ms(*times_ms: int) -> dict[str, Any]:
    return {"requests": len(times_ms), "arrivals_ugap": np.array(times_ms, np.int64) * 100_000, "rate": 100.0}


@pytest.mark.parametrize(
    "kind",
    [at_ms(*range(0, 400, 20)), {"requests": 20, "concurrency": 1}, {"requests": 20, "concurrency": 4}],
    ids=["open loop", "one at a time", "four at once"],
)
def test_requests_rotate_over_all_addresses(names: dict[str, list[str]], kind: dict[str, Any]) -> None:
    names["many.test"] = ["127.0.0.1", "127.0.0.2"]
    with everywhere(slow) as server:
        ran = load(server, url=f"http://many.test:{server.port}", **kind)
    assert ran.failures == [None] * 20
    first, second = (ran.report.requests_by_address[f"127.0.0.{one}:{server.port}"] for one in (1, 2))
    assert first + second == 20
    assert abs(first - second) <= 4
    assert ran.report.dead_addresses == {}


def test_a_dead_address_is_left_out_and_named(names: dict[str, list[str]]) -> None:
    names["many.test"] = ["127.0.0.2", "127.0.0.1"]
    with FakeServer(quick) as server:  # it listens on 127.0.0.1 alone
        ran = load(server, url=f"http://many.test:{server.port}", requests=8, concurrency=2)
    assert ran.failures == [None] * 8
    assert ran.report.requests_by_address == {f"127.0.0.1:{server.port}": 8}
    assert ran.report.dead_addresses == {f"127.0.0.2:{server.port}": "connection refused"}


def test_an_address_that_dies_during_the_run_is_left_out(names: dict[str, list[str]]) -> None:
    names["many.test"] = ["127.0.0.1", "127.0.0.2"]
    doomed = socket.create_server(("127.0.0.2", 0), backlog=16)  # accepts, until it is closed
    port = doomed.getsockname()[1]
    target = resolve(RemoteConfig(url=f"http://many.test:{port}"), "url")
    assert [address.name for address in target.addresses] == [f"127.0.0.2:{port}"]
    assert target.left_out == {f"127.0.0.1:{port}": "connection refused"}
    doomed.close()

    async def closing_one(call: Call) -> None:
        if call.number == 0:
            server.close_host("127.0.0.2")
        await call.send(GOOD)

    with FakeServer(closing_one, host=("127.0.0.1", "127.0.0.2")) as server:
        ran = load(server, url=f"http://many.test:{server.port}", **at_ms(*range(0, 600, 30)), connections="new")
    assert list(ran.report.dead_addresses) == [f"127.0.0.2:{server.port}"]
    assert ran.failures.count(None) >= 18
    assert ran.report.requests_by_address[f"127.0.0.1:{server.port}"] >= 17


def test_when_no_address_answers_the_server_is_not_there(names: dict[str, list[str]]) -> None:
    names["many.test"] = ["127.0.0.1", "127.0.0.2"]
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(CbbenchError, match="no server answers") as caught, FakeServer(quick) as server:
        load(server, url=f"http://many.test:{port}")
    assert caught.value.exit_code == 6


def test_ipv6() -> None:
    try:
        with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)):
            pass
    except OSError:
        pytest.skip("no IPv6 here")
    with FakeServer(quick, host="::1") as server:
        ran = load(server, url=f"http://[::1]:{server.port}", requests=4, concurrency=2)
    assert ran.failures == [None] * 4
    assert ran.report.requests_by_address == {f"[::1]:{server.port}": 4}
    assert f"Host: [::1]:{server.port}" in server.heads[0]


def test_localhost_is_one_server() -> None:
    """It is both ::1 and 127.0.0.1 on most machines, and the name is in /etc/hosts."""
    with FakeServer(quick) as server:
        ran = load(server, url=f"http://localhost:{server.port}", requests=4, concurrency=1)
    assert ran.report.requests_by_address == {f"127.0.0.1:{server.port}": 4}
    assert ran.report.dead_addresses == {}


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_is_refused(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]], variable: str) -> None:
    names["inference.test"] = ["127.0.0.1"]
    monkeypatch.setenv(variable, "http://user:hidden@proxy.test:3128")
    with pytest.raises(CbbenchError, match=r"add inference\.test to NO_PROXY") as caught:
        resolve(RemoteConfig(url="http://inference.test:8000"))
    assert caught.value.field == "url"
    assert "hidden" not in caught.value.message
    assert resolve(RemoteConfig(url="http://127.0.0.1:8000")), "this machine needs no proxy"


@pytest.mark.parametrize("excepted", ["inference.test", ".test", "*", "other.org, inference.test"])
def test_no_proxy_excepts_a_host(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]], excepted: str) -> None:
    names["inference.test"] = ["127.0.0.1"]
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert resolve(RemoteConfig(url="http://inference.test:8000")).host == "inference.test"


def test_no_proxy_excepts_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monkeypatch.setenv("no_proxy", "10.0.0.0/8,192.0.2.0/24")
    assert resolve(RemoteConfig(url="http://10.1.2.3:8000")).host == "10.1.2.3"
    with pytest.raises(CbbenchError, match="NO_PROXY"):
        resolve(RemoteConfig(url="http://11.1.2.3:8000"))
    assert resolve(RemoteConfig(url="https://11.1.2.3:8000")), "a proxy for http:// alone"
