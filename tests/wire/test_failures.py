"""loadgen B5: every failure has a class and the server's message, and is never a fast success."""

from __future__ import annotations

import pytest

from tests.wire.driving import load
from tests.wire.fake import DONE, END, GOOD, HEAD, Call, chunk, delta, event, plain, response, text, usage

SAID = {"message": "the model fell over", "type": "server_error", "code": 500}


@pytest.mark.parametrize(
    "broken",
    [
        event({"error": SAID}),
        b"event: error\n" + event(SAID),
        event({"object": "error"} | SAID),
        event({"error": "the model fell over", "error_type": "generation"}),
    ],
    ids=["object", "event type", "old vllm", "string"],
)
def test_an_error_in_the_stream(broken: bytes) -> None:
    """B5 46, vllm #11167 #57519, guidellm #743, aiperf #1076: after two tokens, and then a peaceful [DONE]."""
    row = load(lambda call: call.send(response(text("a"), text("b"), broken, DONE))).row
    assert (row.status, row.finish_reason) == ("failed", "stream_error")
    assert "the model fell over" in (row.error or "")
    assert row.output_tokens == 2, "tokens that came to nothing still count as made"


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_server_that_gave_up(reason: str) -> None:
    row = load(lambda call: call.send(response(text("a"), text("b", reason), usage(2), DONE))).row
    assert (row.status, row.finish_reason) == ("failed", "stream_error")


def test_an_event_that_is_no_chunk() -> None:
    """B5 55: one corrupt record is one failed request, and the run goes on."""
    ran = load(
        lambda call: call.send(GOOD if call.number else response(text("a"), b"data: {oops\n\n", DONE)),
        requests=2,
        concurrency=1,
    )
    assert ran.failures == ["stream_error", None]
    assert "{oops" in (ran.record.rows[0].error or "")


@pytest.mark.parametrize("how", ["closed", "reset", "inside a chunk", "inside an event", "ended politely"])
def test_a_stream_that_stops_early(how: str) -> None:
    """B5 47, vllm #13082: three of a hundred tokens, no finish_reason, no [DONE]."""

    async def script(call: Call) -> None:
        await call.send(HEAD + b"".join(chunk(text(str(i))) for i in range(3)))
        await call.pause(0.02)  # a reset throws away what was not read yet
        if how == "inside a chunk":
            await call.send(chunk(text("4"))[:20])
        elif how == "inside an event":
            await call.send(chunk(b"data: "))
        elif how == "ended politely":
            await call.send(END)
            return
        call.close(reset=how == "reset")

    row = load(script, output_tokens=100).row
    assert (row.status, row.finish_reason) == ("failed", "truncated")
    assert (row.events, row.output_tokens, row.token_source) == (3, 3, "counted")


def test_a_finish_reason_is_an_end_even_without_done() -> None:
    async def script(call: Call) -> None:
        await call.send(HEAD + chunk(text("a")) + chunk(text("b", "stop")))
        call.close()

    assert load(script).failures == [None]


@pytest.mark.parametrize(
    ("status", "kind"),
    [("400 Bad Request", "http_4xx"), ("429 Too Many Requests", "http_4xx"), ("503 Service Unavailable", "http_5xx")],
)
def test_a_refusal_keeps_its_body(status: str, kind: str) -> None:
    """B5 50 and 51, InferenceX #357, genai-bench #156: classed, and the server's reason is not lost."""
    row = load(lambda call: call.send(plain(status, b'{"error":{"message":"queue is full"}}'))).row
    assert (row.status, row.finish_reason) == ("failed", kind)
    assert row.error == f'HTTP {status[:3]}: {{"error":{{"message":"queue is full"}}}}'
    assert row.first is None
    assert row.first_byte is not None


def test_only_the_head_of_a_long_body_is_kept() -> None:
    row = load(lambda call: call.send(plain("500 Oh", b"x" * 100_000))).row
    assert 2048 <= len(row.error or "") < 2100


def test_html_from_a_proxy() -> None:
    """B5 53, inference-perf #247 #530: no crash, and the connection serves again."""
    page = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
    ran = load(
        lambda call: call.send(GOOD if call.number else plain("502 Bad Gateway", page, "text/html")),
        requests=2,
        concurrency=1,
    )
    assert ran.failures == ["http_5xx", None]
    assert ran.report.connections == 1


def test_a_body_that_breaks_off() -> None:
    """B5 53: the status is known, so it is the status that counts."""

    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 1000\r\n\r\nhalf")
        call.close()

    row = load(script).row
    assert (row.finish_reason, row.error) == ("http_5xx", "HTTP 502: half")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (plain("200 OK", b'{"choices":[{"text":"a"}]}'), "the response is application/json, not a stream of events"),
        (plain("307 Temporary Redirect"), "HTTP 307"),
        (response(DONE).replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type"), "gzip"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "malformed HTTP response"),
        (response(DONE).replace(b"Transfer", b"x: y\nTransfer: \x00"), "malformed HTTP response"),
    ],
    ids=["not a stream", "redirect", "compressed", "ssh", "bad header"],
)
def test_an_answer_of_another_kind(answer: bytes, words: str) -> None:
    row = load(lambda call: call.send(answer)).row
    assert (row.status, row.finish_reason) == ("failed", "stream_error")
    assert words in (row.error or "")


def test_when_everything_fails_every_row_says_so() -> None:
    """B5 48 and 49, pytorch #172616: nothing is dropped, so a report cannot show zeros as if they were fast."""
    ran = load(lambda call: call.send(plain("500 Oh")), requests=20, concurrency=4)
    assert len(ran.record) == 20
    assert set(ran.failures) == {"http_5xx"}
    assert (ran.record.column_ns("first") == -1).all()


def test_nulls_from_a_router() -> None:
    """B5 54, production-stack #767."""
    odd = event({"id": None, "choices": None, "usage": None, "ttft": None})
    odd_usage = event({"choices": [], "usage": {"prompt_tokens": None, "completion_tokens": None}})
    row = load(lambda call: call.send(response(odd, text("a", "stop"), odd_usage, DONE))).row
    assert (row.status, row.token_source, row.output_tokens) == ("completed", "counted", 1)


def test_silence_after_done_does_not_hold_up_the_next_request() -> None:
    """A server that never ends its response after [DONE]: the answer is whole, and its connection is not used again."""

    async def script(call: Call) -> None:
        await call.send(HEAD + chunk(delta(content="a")) + chunk(delta("stop")) + chunk(DONE))
        await call.pause(5)

    ran = load(script, requests=2, concurrency=1, api="chat", read_timeout_s=1)
    assert ran.failures == [None, None]
    assert max(row.end for row in ran.record.rows) < 1e9
