"""StreamedAnswer: the response to one request as it comes, and whether the request failed once it has ended."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.base import WHOLE_REASONS
from engines.remote.headers import retry_after_s
from engines.remote.sse import MOST_UNFINISHED_BYTES, SseEvent, SseParser, UnendingEventError
from engines.remote.usage import OutputCount, output_count

FailureKind = Literal[
    "connect",  # no connection
    "timeout",  # no byte of the response for too long
    "http_4xx",
    "http_5xx",
    "stream_error",  # the server reported an error in the stream, or sent a malformed stream
    "truncated",  # the connection or the stream ended too early
    "empty",  # a complete stream without a token
    "client",  # cbbench could not send or read: out of sockets, or a bug
]


class Failure(NamedTuple):
    """Why a request failed. It then misses every SLA; it is never a fast success."""

    kind: FailureKind
    message: str


MOST_WHOLE_BYTES = 64 * 1024 * 1024  # of an answer without a stream: more than any model writes
BODY_HEAD_BYTES = 2048  # kept of a body that is not a stream of events

# Adds one event to the answer: (answer, event, at_ns).
Interpret = Callable[["StreamedAnswer", SseEvent, int], None]


class StreamedAnswer:
    """Times are of time.monotonic_ns(). A token event has text, reasoning or a tool call in it.

    An event without any of them may still be a token (a special token, or half a character). These are kept apart in
    `empty_ns` and `closing_ns`, and become token events if the server's token count shows that they are tokens.
    """

    def __init__(self, interpret: Interpret, planned_tokens: int = 0, *, whole: bool = False) -> None:
        """whole: no stream was asked for; the JSON of the answer is interpreted when all of it has come."""
        self.whole = whole
        self._interpret = interpret
        self._planned_tokens = planned_tokens  # of the output; 0: not known
        self._sse: SseParser | None = None
        self._json: bytearray | None = None  # of a whole answer
        self._body = b""
        self._refusal: Failure | None = None  # for its status or headers
        self.first_byte_ns: int | None = None
        self.last_byte_ns: int | None = None
        self.status = 0
        self.retry_after_s: float | None = None  # of a refusal
        self.token_ns = array("q")
        self.empty_ns = array("q")
        self.closing_ns: int | None = None  # of the event with the finish reason, where it has no text
        self.first_answer_ns: int | None = None  # first token that is not reasoning
        self.prompt_tokens: int | None = None  # counted by the server; the last count reported
        self.cached_tokens: int | None = None  # of the prompt, from the server's prefix cache
        self.output_tokens: int | None = None
        self.reasoning_tokens = 0  # reported apart; mostly a part of output_tokens
        self.reasoning_events = 0  # of token_ns
        self.finish_reason: str | None = None
        self.done = False  # the server has ended the stream, as by [DONE]
        self.failure: Failure | None = None

    def head(self, status: int, headers: dict[bytes, bytes], at_ns: int) -> None:
        self.status = status
        self.first_byte_ns = self.last_byte_ns = at_ns
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
        if status >= 400:
            self.retry_after_s = retry_after_s(headers.get(b"retry-after", b"").decode("latin-1"))
            self._refusal = Failure("http_5xx" if status >= 500 else "http_4xx", f"HTTP {status}")
        elif status >= 300:
            self._refusal = Failure(
                "stream_error", f"HTTP {status} to {headers.get(b'location', b'?').decode('latin-1')}"
            )
        elif encoding != "identity":
            self._refusal = Failure(
                "stream_error", f"the response is encoded ({encoding}), though identity was requested"
            )
        elif self.whole and kind == "application/json":
            self._json = bytearray()
        elif self.whole:
            self._refusal = Failure("stream_error", f"the response is {kind or 'of no type'}, not application/json")
        elif kind in ("application/json", "text/html"):
            self._refusal = Failure("stream_error", f"the response is {kind}, not a stream of events")
        else:  # text/event-stream, or no content type
            self._sse = SseParser()

    def body(self, data: bytes, at_ns: int) -> None:
        self.last_byte_ns = at_ns
        if self._sse is not None:
            try:
                events = self._sse.feed(data)
            except UnendingEventError:
                self.fail(f"an event that does not end: {MOST_UNFINISHED_BYTES:,} bytes of it came")
                self._sse, self.done = None, True  # nothing of it is kept, and the connection is closed
                return
            for event in events:
                if not self.done:
                    self._interpret(self, event, at_ns)
        elif self._json is not None:
            self._json += data
            if len(self._json) > MOST_WHOLE_BYTES:
                self._json = None
                self.fail(f"the answer has more than {MOST_WHOLE_BYTES:,} bytes")
        elif len(self._body) < BODY_HEAD_BYTES:
            self._body = (self._body + data)[:BODY_HEAD_BYTES]

    def token(self, at_ns: int, *, reasoning: bool = False) -> None:
        self.token_ns.append(at_ns)
        if reasoning:
            self.reasoning_events += 1
        elif self.first_answer_ns is None:
            self.first_answer_ns = at_ns

    def fail(self, message: str) -> None:
        """The stream reports an error, or is malformed; the first reason is kept."""
        self.failure = self.failure or Failure("stream_error", message[:BODY_HEAD_BYTES])

    def end(self, broken: Failure | None) -> Failure | None:
        """Call once, when no more bytes will come. broken: why the connection ended before the response, if it did.

        Returns why the request failed, or None.
        """
        if self._json is not None and broken is None and self.last_byte_ns is not None:
            self._interpret(self, SseEvent(bytes(self._json)), self.last_byte_ns)
            self.done = True
        self._count_empty_events()
        if self._refusal is not None:
            body = self._body.decode("utf-8", "replace").strip()
            return Failure(self._refusal.kind, f"{self._refusal.message}: {body}" if body else self._refusal.message)
        if self.failure is not None:
            return self.failure
        if not self.done and self.finish_reason is None:
            return broken or Failure("truncated", "the stream ended without [DONE] or a finish_reason")
        if not self.token_ns:
            return Failure("empty", f"no token in the answer ({self.output_tokens or 0} by its usage)")
        reason = self.finish_reason
        if reason is not None and reason.lower() not in WHOLE_REASONS and self._short:
            return Failure("stream_error", f"finish_reason: {reason}, before the planned number of tokens")
        return None

    @property
    def _short(self) -> bool:
        return self.output_count().tokens < self._planned_tokens

    def output_count(self) -> OutputCount:
        """The output tokens so far, by the server's count where the events agree with it."""
        return output_count(
            self.output_tokens,
            self.reasoning_tokens,
            events=len(self.token_ns),
            reasoning_events=self.reasoning_events,
            planned=self._planned_tokens,
            whole=self.whole,
        )

    def gaps_us(self) -> NDArray[np.uint32]:
        """Time from the token event before, 0 for the first, [token events]. Rounding errors do not add up."""
        if not self.token_ns or self.whole:
            return np.empty(0, np.uint32)
        at_us = (np.frombuffer(self.token_ns, np.int64) - self.token_ns[0] + 500) // 1000
        return np.diff(at_us, prepend=0).astype(np.uint32)

    def coalesced(self) -> int:
        """Number of token events that share a read, and so its time, with the one before."""
        return int((np.diff(np.frombuffer(self.token_ns, np.int64)) == 0).sum()) if self.token_ns else 0

    def _count_empty_events(self) -> None:
        """Events without text were tokens if the server's count then matches exactly, or if there are no others. The
        closing one may be the end token, or have the finish reason alone."""
        reported, seen = self.output_tokens or 0, len(self.token_ns)
        closing = [] if self.closing_ns is None else [self.closing_ns]
        for empty in ([*self.empty_ns, *closing], list(self.empty_ns)):
            if empty and reported and (reported == seen + len(empty) or seen == 0):
                self.token_ns = array("q", sorted([*self.token_ns, *empty]))
                if self.first_answer_ns is None and not seen:
                    self.first_answer_ns = self.token_ns[0]
                return
