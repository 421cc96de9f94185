"""The headers that were asked for are on the wire, byte for byte, wherever they belong and nowhere else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engines.remote.answer import BODY_HEAD_BYTES
from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from tests.wire.driving import Watching, load
from tests.wire.fake import GOOD, FakeServer, plain
from workloads.errors import CbbenchError
from workloads.pacing import Pacing
from workloads.plan import RequestPlan

MODELS = plain("200 OK", b'{"data":[{"id":"m"}]}', close=True)
HEADERS = (("X-Tenant", "a: b"), ("X-Accent", "é"), ("Authorization", "Basic dXNlcg=="))


@contextmanager
def listening(heard: list[bytes]) -> Iterator[int]:
    """A port that notes the bytes of each request: the list of models first, then a generation."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(10)

    def serve() -> None:
        for answer in (MODELS, GOOD):
            sock, _ = server.accept()
            with sock:
                sock.settimeout(10)
                said = b""
                while b"\r\n\r\n" not in said:
                    said += sock.recv(65536)
                heard.append(said)
                sock.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        thread.join(10)
        server.close()


def test_raw_bytes_of_a_request_and_of_the_list_of_models() -> None:
    heard: list[bytes] = []
    with listening(heard) as port:
        config = RemoteConfig(url=f"http://127.0.0.1:{port}", warmup_requests=0, api_key="unused", headers=HEADERS)
        plan = RequestPlan.of([4], [2])
        record = RemoteEngine(config).run(plan, Pacing(plan.arrivals_ugap), Watching())
    assert [row.status for row in record.rows] == ["completed"]
    models, request = heard
    assert models.startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert request.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    for said in (models, request):
        lines = said.partition(b"\r\n\r\n")[0].split(b"\r\n")
        for line in (b"X-Tenant: a: b", b"X-Accent: \xe9", b"Authorization: Basic dXNlcg=="):
            assert lines.count(line) == 1
        assert b"unused" not in said
    assert request.count(b"Host: ") == 1


def test_warm_up_metrics_and_every_worker_carry_them() -> None:
    async def metrics(path: str) -> bytes:
        return plain("200 OK", b"vllm:num_requests_running 0\n", "text/plain")

    with FakeServer(metrics=metrics) as server:
        load(server, 6, warmup_requests=2, concurrency=2, workers=2, scrape=True, headers=(("X-Tenant", "a"),))
    assert len(server.heads) == 6 + 2 + 2
    assert any("/metrics" in head for head in server.get_heads)
    assert all("\r\nX-Tenant: a\r\n" in head for head in server.heads + server.get_heads)


def test_every_request_has_an_id_that_its_row_has_too() -> None:
    with FakeServer() as server:
        ran = load(server, 5, warmup_requests=1, concurrency=2, workers=2)
    named = [line[14:] for head in server.heads for line in head.split("\r\n") if line.startswith("X-Request-Id: ")]
    assert sorted(named) == sorted(row.request_id or "" for row in ran.record.rows)
    assert {row.request_id for row in ran.record.rows} == {f"{named[0].rpartition('-')[0]}-{i}" for i in range(5)}


def test_an_id_of_the_users_own_stays() -> None:
    with FakeServer() as server:
        ran = load(server, headers=(("x-request-id", "mine"),))
    assert [head.lower().count("x-request-id: ") for head in server.heads] == [1]
    assert ran.row.request_id is None


def test_not_at_another_metrics_url() -> None:
    async def metrics(path: str) -> bytes:
        return plain("200 OK", b"vllm:num_requests_running 0\n", "text/plain")

    with FakeServer(metrics=metrics) as other, FakeServer() as server:
        load(server, scrape=True, metrics_url=f"{other.url}/metrics", headers=(("X-Tenant", "a"),))
    assert other.get_heads
    assert not any("X-Tenant" in head for head in other.get_heads)


def test_a_gateway_that_repeats_what_it_refuses() -> None:
    secret = "s3cr3t-of-the-gateway"

    def echo(status: str) -> FakeServer:
        return FakeServer(lambda call: call.send(plain(status, b"no such key: " + secret.encode(), "text/plain")))

    with echo("500 Internal Server Error") as server:
        row = load(server, headers=(("X-Api-Key", secret),)).row
    assert row.error == "HTTP 500: no such key: ***"
    with echo("401 Unauthorized") as server, pytest.raises(CbbenchError) as caught:
        load(server, warmup_requests=1, headers=(("Authorization", f"Bearer {secret}"),))
    assert "the API key is wrong" in str(caught.value)
    assert secret not in str(caught.value)


def test_a_long_answer_that_is_cut_within_it() -> None:
    secret = "s3cr3t-" * 20
    said = b"x" * (BODY_HEAD_BYTES - 70) + secret.encode()
    with FakeServer(lambda call: call.send(plain("500 Internal Server Error", said))) as server:
        row = load(server, headers=(("X-Api-Key", secret),)).row
    assert row.error is not None
    assert row.error.endswith("x***")
    assert "s3cr3t" not in row.error


def test_a_gateway_that_repeats_it_in_json() -> None:
    """Quotes and accents have another spelling there."""
    secret = 'who="naïve"; pass=s3cr3t'
    said = json.dumps({"error": {"message": f"refused: {secret}"}}).encode()
    with FakeServer(lambda call: call.send(plain("500 Internal Server Error", said))) as server:
        row = load(server, headers=(("Cookie", secret),)).row
    assert row.error == 'HTTP 500: {"error": {"message": "refused: ***"}}'
