"""loadgen B4: the same bytes, however they are cut, glued or dressed."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from tests.wire.driving import load
from tests.wire.fake import DONE, END, HEAD, Call, chunk, response, text, usage

PIECES = (text("你好"), b": ping\n\n", text(" wörld "), text("🙂", "length"), usage(3), DONE)


def test_an_answer_cut_in_two_at_every_byte() -> None:
    """B4 34, vllm #38717: inside a character, a line end, a chunk's size, a header; request i is cut at byte i."""
    whole = response(*PIECES)

    async def script(call: Call) -> None:
        at = call.number + 1
        await call.send(whole[:at], whole[at:])

    ran = load(script, requests=len(whole) - 1, concurrency=16)
    assert {(row.status, row.events, row.output_tokens) for row in ran.record.rows} == {("completed", 3, 3)}


def test_an_answer_byte_by_byte() -> None:
    async def script(call: Call) -> None:
        await call.send(*(bytes([byte]) for byte in response(*PIECES)), gap_s=0.0003)

    row = load(script).row
    assert (row.status, row.events, row.output_tokens) == ("completed", 3, 3)


def test_an_answer_in_one_read() -> None:
    """B4 38, aiperf #368: five events in one read are five events with one time, and the report says so."""
    ran = load(lambda call: call.send(response(*[text(str(i)) for i in range(4)], text("4", "stop"), DONE)))
    assert ran.row.events == 5
    assert len(set(ran.event_ms())) == 1
    assert ran.report.coalesced_event_share == pytest.approx(4 / 5)


def test_events_in_reads_of_their_own_are_not_coalesced() -> None:
    async def script(call: Call) -> None:
        await call.send(HEAD, *(chunk(text(str(i))) for i in range(4)), chunk(DONE) + END, gap_s=0.01)

    ran = load(script)
    assert ran.failures == [None]
    assert len(set(ran.event_ms())) == 4
    assert ran.report.coalesced_event_share == 0


def test_one_http_chunk_may_hold_part_of_an_event_or_many() -> None:
    body = b"".join(PIECES)
    cuts = [0, 1, 7, 50, 51, 120, len(body)]
    chunks = [chunk(body[a:b]) for a, b in pairwise(cuts)]
    row = load(lambda call: call.send(HEAD, *chunks, END)).row
    assert (row.status, row.events) == ("completed", 3)


@pytest.mark.parametrize("glued", [True, False], ids=["glued", "in reads of their own"])
def test_comments_are_ignored(glued: bool) -> None:
    """B4 35, vllm #19535: after a ping in a read of its own, vLLM's client loses every later event."""
    parts = (b": ping\n\n", text("a"), b":\n\n", b": ping\n\n", text("b", "stop"), b": ping\n\n", DONE)
    body = [b"".join(parts)] if glued else list(parts)
    row = load(lambda call: call.send(HEAD, *map(chunk, body), END)).row
    assert (row.status, row.events) == ("completed", 2)


@pytest.mark.parametrize("space", [b"", b" ", b"  "], ids=["none", "one", "two"])
def test_the_space_after_data_is_optional(space: bytes) -> None:
    """B4 36, genai-bench #163, perf_analyzer #395."""
    parts = [part.replace(b"data: ", b"data:" + space, 1) for part in (text("a"), text("b", "stop"), DONE)]
    row = load(lambda call: call.send(response(*parts))).row
    assert (row.status, row.events) == ("completed", 2)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_every_field_and_line_end_of_the_standard(line_end: bytes) -> None:
    """B4 41: byte order mark, event, id and retry lines, data over several lines."""
    spread = json.dumps({"choices": [{"text": "b", "finish_reason": "stop"}]}, indent=1).replace("\n", "\ndata: ")
    stream = (
        b"\xef\xbb\xbf"
        + b"retry: 3000\nid: 1\nevent: message\n"
        + text("a")
        + b"data: "
        + spread.encode()
        + b"\n\n"
        + DONE
    )
    row = load(lambda call: call.send(response(stream.replace(b"\n", line_end)))).row
    assert (row.status, row.events) == ("completed", 2)


def test_text_that_looks_like_a_stream_is_text() -> None:
    """B4 39: nothing is stripped or split inside a JSON string."""
    tricky = ("data: [DONE]\n\n", " ", "\r\n\r\n0\r\n\r\n", "data: {}")
    row = load(lambda call: call.send(response(*map(text, tricky), text("", "stop"), usage(4), DONE))).row
    assert (row.status, row.events) == ("completed", 4)


def test_a_body_without_chunks_or_length_ends_with_the_connection() -> None:
    async def script(call: Call) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        await call.send(head, text("a"), text("b", "stop") + DONE)
        call.close()

    row = load(script).row
    assert (row.status, row.events) == ("completed", 2)


def test_the_last_event_needs_its_blank_line() -> None:
    """The standard drops what is unfinished at the end: without it, this answer has no finish."""

    async def script(call: Call) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        await call.send(head + text("a") + text("b", "stop").rstrip(b"\n"))
        call.close()

    assert load(script).failures == ["truncated"]


def test_continue_comes_before_the_answer() -> None:
    whole = b"HTTP/1.1 100 Continue\r\n\r\n" + response(text("a", "stop"), DONE)
    ran = load(lambda call: call.send(whole), requests=2, concurrency=1)
    assert ran.failures == [None, None]
    assert ran.report.connections == 1
