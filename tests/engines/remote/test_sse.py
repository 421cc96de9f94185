"""The event-stream parser against the standard, and against itself: cut anywhere, a stream has the same events."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.remote.sse import SseEvent, SseParser


def events_of(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def data_of(*pieces: bytes) -> list[bytes]:
    return [event.data for event in events_of(*pieces)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a \n\n", [b"a "]),
        (b"data\n\n", [b""]),
        (b"data:\n\n", [b""]),
        (b"data\ndata\n\n", [b"\n"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a: b\n\n", [b"a: b"]),
        (b"\n\n\n", []),
        (b": comment\n\n", []),
        (b":\n\ndata: a\n\n", [b"a"]),
        (b"event: x\n\ndata: a\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"data: a", []),
        (b"Data: a\n\n", []),
        (b" data: a\n\n", []),
        (b"unknown: a\ndata: b\n\n", [b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\n\r\ndata: b\r\n\r", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"data: \xe4\xbd\xa0\n\n", ["你".encode()]),
    ],
)
def test_the_standard(stream: bytes, expected: list[bytes]) -> None:
    assert data_of(stream) == expected
    assert data_of(*(stream[i : i + 1] for i in range(len(stream)))) == expected


def test_the_examples_in_the_standard() -> None:
    assert data_of(b"data: YHOO\ndata: +2\ndata: 10\n\n") == [b"YHOO\n+2\n10"]
    stream = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
    assert events_of(stream) == [
        SseEvent(b"first event", b"message", b"1"),
        SseEvent(b"second event", b"message", b""),
        SseEvent(b" third event", b"message", b""),
    ]
    assert data_of(b"data\n\ndata\ndata\n\ndata:") == [b"", b"\n"]


def test_a_type_is_for_one_event_and_an_id_for_all_that_follow() -> None:
    assert events_of(b"event: e\nid: 7\ndata: a\n\ndata: b\n\n") == [
        SseEvent(b"a", b"e", b"7"),
        SseEvent(b"b", b"message", b"7"),
    ]


def test_an_id_with_a_null_and_a_retry_that_is_no_number_are_ignored() -> None:
    parser = SseParser()
    assert parser.feed(b"id: 1\nid: 2\0\nretry: 5\nretry: x\nretry:\ndata: a\n\n") == [SseEvent(b"a", b"message", b"1")]
    assert parser.retry_ms == 5


def test_a_crlf_cut_between_reads_is_one_line_end() -> None:
    assert data_of(b"data: a\r", b"\n\r", b"\ndata: b\r\n", b"\r", b"\n") == [b"a", b"b"]
    # A CR ends its line at once: the event does not wait for what follows.
    assert data_of(b"data: a\r\r") == [b"a"]


def test_a_byte_order_mark_counts_only_at_the_start() -> None:
    assert data_of(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == [b"a"]
    assert data_of(b"data: a\n\n", b"\xef\xbb\xbfdata: b\n\n") == [b"a"]
    assert data_of(b"\xef", b"data: a\n\n") == []


def test_a_long_line_in_small_pieces_costs_its_length_only() -> None:
    """vllm #39963: 16 times the bytes must not cost 256 times the time."""

    def cost_s(size: int) -> float:
        parser = SseParser()
        pieces = [b"data: ", *[b"x" * 64] * (size // 64), b"\n\n"]
        began = time.process_time()
        assert len([event for piece in pieces for event in parser.feed(piece)]) == 1
        return time.process_time() - began

    small = max(min(cost_s(2**17) for _ in range(3)), 1e-4)
    assert min(cost_s(2**21) for _ in range(2)) < 64 * small


# Streams made of what can go wrong in them.
_value = st.binary(max_size=6).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))
_field = st.sampled_from([b"data", b"data", b"data", b"event", b"id", b"retry", b"other", b""])
_line = st.builds(lambda name, colon, value: name + colon + value, _field, st.sampled_from([b":", b": ", b""]), _value)
_end = st.sampled_from([b"\n", b"\r\n", b"\r"])
_stream = st.builds(
    lambda bom, lines, tail: bom + b"".join(line + end * blank for line, end, blank in lines) + tail,
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\xef\xbb"]),
    st.lists(st.tuples(_line, _end, st.sampled_from([1, 1, 2]))),
    st.sampled_from([b"", b"data: unfinished", b"\r"]),
)


@given(_stream, st.data())
@settings(max_examples=400, deadline=None)
def test_cuts_change_nothing(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert events_of(*pieces) == events_of(stream)


@given(st.lists(st.tuples(st.text(max_size=20), st.sampled_from(["", "error", "x"]))), _end)
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_read(events: list[tuple[str, str]], end: bytes) -> None:
    """Any text, if written as the standard says: a `data` line for each of its lines."""
    stream, expected = b"", []
    for text, kind in events:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        fields = [f"event: {kind}"] * bool(kind) + [f"data: {line}" for line in lines]
        stream += b"".join(field.encode() + end for field in fields) + end
        expected.append(SseEvent("\n".join(lines).encode(), kind.encode() or b"message"))
    assert events_of(stream) == expected
