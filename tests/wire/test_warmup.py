"""What the warm-up requests find out before anything is measured."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from tests.wire.driving import load
from tests.wire.fake import GOOD, Call, FakeServer, plain
from workloads.errors import CbbenchError, ExitCode


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        ("500 Internal Server Error", b"CUDA error: out of memory", "HTTP 500: CUDA error: out of memory"),
        ("503 Service Unavailable", b"no healthy upstream", "HTTP 503: no healthy upstream"),
        ("307 Temporary Redirect", b"", "HTTP 307"),
        ("200 OK", b'{"choices": [{"text": "a b"}]}', "application/json, not a stream of events"),
    ],
)
def test_a_server_that_answers_no_warm_up_request_stops_the_run_in_its_words(
    status: str, body: bytes, said: str
) -> None:
    with FakeServer(lambda call: call.send(plain(status, body))) as server, pytest.raises(CbbenchError) as caught:
        load(server, 8, warmup_requests=2)
    assert said in str(caught.value)
    assert "answered none of the 4 warm-up requests" in str(caught.value)
    assert caught.value.exit_code == ExitCode.SERVER
    assert len(server.bodies) == 4, "nothing was measured"


def test_one_answer_is_enough_to_measure_the_others() -> None:
    def mostly_failing(call: Call) -> Awaitable[None]:
        return call.send(GOOD if call.number == 1 else plain("503 Service Unavailable", b"busy"))

    with FakeServer(mostly_failing) as server:
        ran = load(server, 3, warmup_requests=2)
    assert ran.failures == ["http_5xx"] * 3


def test_without_warm_up_a_failing_server_is_measured() -> None:
    with FakeServer(lambda call: call.send(plain("503 Service Unavailable", b"busy"))) as server:
        assert load(server, 2, warmup_requests=0).failures == ["http_5xx"] * 2
