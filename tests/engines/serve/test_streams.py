"""Many streams at once, clients that go away, load that is refused, and the metrics while it happens."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, web
from aiohttp.test_utils import TestServer

from engines.scheduling.resource_gate import Quota
from engines.serve.middlewares import errors_as_json
from tests.engines.serve.serving import Running, echoing, eventually, ids, stream_data

COMPLETIONS = "/v1/completions"


def test_a_client_that_goes_frees_its_slot_and_its_blocks_within_one_step() -> None:
    with echoing(step_s=0.02, max_num_seqs=1) as (server, executor):
        with server.opened(COMPLETIONS, {"prompt": "abc", "max_tokens": 400}) as response:
            assert next(stream_data(response))
            assert server.metric("vllm:num_requests_running") == 1
            assert server.metric("vllm:kv_cache_usage_perc") > 0
            inbox = server.server.engine._inbox
            steps_at_abort: list[int] = []
            abort = inbox.abort

            def watched(index: int) -> None:
                steps_at_abort.append(len(executor.launched))
                abort(index)

            inbox.abort = watched  # type: ignore[method-assign]
            _reset(response)
        assert eventually(lambda: server.metric("vllm:num_requests_running") == 0)
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert eventually(lambda: server.metric("vllm:request_success_total", 'finished_reason="abort"') == 1)
        # The step that runs when the client goes is the last one, or one more that was being planned.
        assert len(executor.launched) <= steps_at_abort[0] + 1
        assert server.complete("de", max_tokens=2)["text"] == "de", "the only slot is free"


def test_a_client_that_goes_while_it_is_written_to_is_no_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def written(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        await response.write(b"x")  # raises, as in a stream whose client has just disconnected
        return response

    async def ask() -> None:
        app = web.Application(middlewares=[errors_as_json])
        app.router.add_get("/", written)
        async with TestServer(app) as server, ClientSession() as session:
            with pytest.raises(ClientError):
                async with session.get(server.make_url("/")) as response:
                    await response.read()

    asyncio.run(ask())
    assert not caplog.records


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_while_it_waits_is_never_computed(stream: bool) -> None:
    with echoing(step_s=0.01, max_num_seqs=1) as (server, executor):
        with server.opened(COMPLETIONS, {"prompt": "abc", "max_tokens": 60}) as first:
            assert next(stream_data(first))
            second = socket.create_connection(("127.0.0.1", server.port))
            body = b'{"prompt": "x", "max_tokens": 9, "stream": %s}' % str(stream).lower().encode()
            second.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert eventually(lambda: server.metric("vllm:num_requests_waiting") == 1)
            second.close()
            assert eventually(lambda: server.metric("vllm:num_requests_waiting") == 0)
            assert sum(1 for _ in stream_data(first)) >= 2
        assert {index for step in executor.launched for index in step} == {0}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"depth": 1},
        {"depth": 1, "prefix_caching": True},
        {"on_kv_pressure": "swap", "swap_blocks": 12},
        {"order": "fair", "quotas": {"u0": Quota(max_num_seqs=1)}},
        {"mode": "static", "static": "compact-held", "static_patience_s": 0.05},
        {"mode": "static"},
    ],
    ids=str,
)
def test_sixteen_streams_at_once_each_get_their_own(settings: dict[str, Any]) -> None:
    prompts = [f"stream {i}: {chr(97 + i) * i} " for i in range(16)]

    def ask(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": len(prompt), "stream_options": {"include_usage": True}}
        body["user"] = f"u{len(prompt) % 3}"
        *chunks, usage, done = server.events(COMPLETIONS, body)
        assert (usage["usage"]["completion_tokens"], done) == (len(prompt), "[DONE]")
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    with echoing(kv_blocks=12, **settings) as (server, executor):  # too few blocks for all
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(ask, prompts)) == prompts
        assert max(map(len, executor.launched)) > 1
        assert server.metric("vllm:generation_tokens_total") == sum(map(len, prompts))
        assert server.metric("vllm:kv_cache_usage_perc") == 0


def test_a_token_quota_pays_what_was_used_where_a_stop_string_or_the_client_ends_it() -> None:
    """3 + 400 tokens asked of 20 a second: settled as asked, each would wait 18 s and more for the one before."""
    asked = {"prompt": "abc", "max_tokens": 400, "user": "u"}
    with echoing(step_s=0.01, quotas={"u": Quota(tokens_per_s=20.0)}) as (server, _):
        for _ in range(2):
            assert server.complete(**asked, stop="c")["text"] == "ab"
        assert eventually(lambda: server.metric("vllm:num_requests_running") == 0)
        account = server.server.engine._instance.scheduler.gate._quotas._accounts["u"]
        assert account.charged == {}
        assert account.tokens > -100, "a stop string is seen when the engine is some tokens further"


def test_a_slow_reader_holds_no_request_up() -> None:
    """It does not read at all; its tokens wait in memory, and the engine and the others go on."""
    with echoing(max_model_len=4096, kv_blocks=512) as (server, _):
        with _unread(server, {"prompt": "abc", "max_tokens": 2000, "stream": True}):
            assert server.complete("others", max_tokens=6)["text"] == "others"
            assert eventually(lambda: server.metric("vllm:generation_tokens_total") == 2006)
            assert eventually(lambda: server.metric("vllm:num_requests_running") == 0)
        assert server.complete("again", max_tokens=5)["text"] == "again"


def test_what_is_rejected_under_load_is_429_and_in_a_stream_an_error_event() -> None:
    """Two requests that each fit alone do not fit together: the newer one is preempted."""
    with echoing(step_s=0.005, kv_blocks=8, on_kv_pressure="reject", watermark=0.0) as (server, _):
        whole = {"prompt": ids("a" * 40), "max_tokens": 80}
        with server.opened(COMPLETIONS, whole) as first:
            assert next(stream_data(first))
            status, answer = server.post(COMPLETIONS, whole)
            assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
            assert "kv_exhausted" in answer["error"]["message"]
            assert "[DONE]" in list(stream_data(first))[-1]
        with server.opened(COMPLETIONS, whole) as first, server.opened(COMPLETIONS, whole) as second:
            firsts, seconds = list(stream_data(first)), list(stream_data(second))
        rejected = [events for events in (firsts, seconds) if "rate_limit_error" in events[-1]]
        assert len(rejected) == 1
        assert "[DONE]" not in "".join(rejected[0])


def test_priorities_and_users_reach_the_scheduler() -> None:
    with echoing(step_s=0.01, max_num_seqs=1) as (server, _):
        seen: list[Any] = []
        opened = server.server.engine.open

        def watched(request: Any) -> Any:
            seen.append((request.priority, request.tenant, request.sampling))
            return opened(request)

        server.server.engine.open = watched  # type: ignore[method-assign]
        server.complete("a", max_tokens=1, priority=-2, user="me", top_k=5, top_p=0.5, seed=7, temperature=0.25)
        ((priority, tenant, sampling),) = seen
        assert (priority, tenant) == (-2, "me")
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.25, 5, 0.5, 7)


def _reset(response: Any) -> None:
    """Close the connection the hard way, as a killed client's kernel does."""
    sock = response.fp.raw._sock
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    response.close()
    sock.close()


@contextmanager
def _unread(server: Running, body: dict[str, Any]) -> Any:
    """A request on a connection with a small buffer that is not read."""
    raw = json.dumps(body).encode()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
        yield
