"""How a server ends: streams that end in time, streams that do not, and an engine that dies."""

from __future__ import annotations

import gc
import http.client
import json
import threading
import time

import pytest

from engines.serve.server import bind
from tests.engines.serve.serving import Running, echoing, eventually, stream_data
from workloads.errors import CbbenchError

COMPLETIONS = "/v1/completions"


def test_streams_end_in_peace_and_nothing_new_is_taken() -> None:
    with echoing(step_s=0.01) as (server, _):
        with server.opened(COMPLETIONS, {"prompt": "abcde", "max_tokens": 50}) as response:
            events = stream_data(response)
            first = next(events)
            server.stop()
            assert eventually(lambda: _refused(server))
            assert server.thread.is_alive()
            texts = [json.loads(data)["choices"][0]["text"] for data in [first, *events] if data != "[DONE]"]
        assert "".join(texts) == "abcde" * 10
        assert server.ended()
        assert not server.error


def test_a_kept_connection_gets_503_while_the_rest_ends() -> None:
    with echoing(step_s=0.01) as (server, _):
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        kept.request("GET", "/health")
        assert kept.getresponse().read() == b""
        with server.opened(COMPLETIONS, {"prompt": "abc", "max_tokens": 100}) as response:
            assert next(stream_data(response))
            server.stop()
            assert eventually(lambda: _refused(server))
            kept.request("POST", COMPLETIONS, b'{"prompt": "x"}')
            answer = kept.getresponse()
            assert (answer.status, json.loads(answer.read())["error"]["type"]) == (503, "server_error")
            kept.request("GET", "/health")
            assert kept.getresponse().status == 503
            kept.close()


def test_what_does_not_end_in_time_is_broken_off_and_told_so() -> None:
    with echoing(step_s=0.01, drain_s=0.1) as (server, _):
        waiting: list[tuple[int, dict[str, object]]] = []
        body = {"prompt": "abc", "max_tokens": 450}
        whole = threading.Thread(target=lambda: waiting.append(server.post(COMPLETIONS, body)))
        with server.opened(COMPLETIONS, body) as response:
            events = stream_data(response)
            assert next(events)
            whole.start()
            assert eventually(lambda: server.metric("vllm:num_requests_running") == 2)
            server.stop()
            *_, last = events
        assert "shutting down" in json.loads(last)["error"]["message"]
        assert server.ended()
        whole.join()
        assert waiting[0][0] == 503
        assert not server.error


def test_told_twice_it_does_not_wait() -> None:
    with echoing(step_s=0.01, drain_s=60) as (server, _):
        with server.opened(COMPLETIONS, {"prompt": "abc", "max_tokens": 500}) as response:
            assert next(stream_data(response))
            began = time.monotonic()
            server.stop()
            server.stop()
            assert "error" in list(stream_data(response))[-1]
            assert server.ended()
        assert time.monotonic() - began < 4.0, "500 steps of 10 ms were not waited for"


def test_an_idle_server_ends_at_once() -> None:
    with echoing(drain_s=60) as (server, _):
        server.complete("abc", max_tokens=3)
        server.stop()
        assert server.ended()


def test_a_dead_engine_ends_its_streams_and_the_server() -> None:
    with echoing() as (server, executor):
        executor.fail_at = 20
        *_, last = server.events(COMPLETIONS, {"prompt": "abc", "max_tokens": 100})
        assert last["error"] == {"message": "the engine has ended", "type": "server_error", "param": None, "code": None}
        assert server.ended()
        (error,) = server.error
        assert isinstance(error, CbbenchError)
        assert error.exit_code == 1
        assert "the device is lost" in str(error)


def test_a_taken_port_is_one_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CbbenchError, match=f"^port: {port}: cannot listen at 127.0.0.1"):
            bind("127.0.0.1", port)
    with pytest.raises(CbbenchError, match=r"^host: nowhere\.invalid, `port` 80"):
        bind("nowhere.invalid", 80)


def _refused(server: Running) -> bool:
    try:
        server.get("/health")
    except OSError:
        return True
    return False


@pytest.mark.usefixtures("real_collections")
def test_what_was_loaded_before_is_not_looked_at_by_the_garbage_collector_while_it_serves() -> None:
    """With torch that would be a pause of a tenth of a second for every stream."""
    with echoing() as (server, _):
        assert gc.get_freeze_count() > 10_000
        assert server.get("/health")[0] == 200
    assert gc.get_freeze_count() == 0
