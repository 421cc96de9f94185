"""StreamedAnswer: what has come back of one request so far, and what it amounts to when it has ended."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.remote.sse import SseEvent, SseParser

FailureKind = Literal[
    "connect",  # no connection
    "timeout",  # no byte of the answer for too long
    "http_4xx",
    "http_5xx",
    "stream_error",  # the server said in the stream that it failed, or spoke gibberish
    "truncated",  # the connection or the stream ended before the answer did
    "empty",  # an answer without a token
    "client",  # we could not: out of sockets, or a bug of ours
]


class Failure(NamedTuple):
    kind: FailureKind
    message: str


BODY_HEAD_BYTES = 2048  # kept of a body that is not a stream of events

# Reads one event into the answer: (answer, event, at_ns).
Interpret = Callable[["StreamedAnswer", SseEvent, int], None]


class StreamedAnswer:
    """Times are of time.monotonic_ns(). A token event is one with text, reasoning or a tool call in it.

    An event without any may still be a token (of a special kind, or half a character): those are kept apart in
    `empty_ns`, and counted in when the number of tokens that the server reports proves that they are tokens.
    """

    def __init__(self, interpret: Interpret) -> None:
        self._interpret = interpret
        self._sse: SseParser | None = None
        self._body = b""
        self._refused: Failure | None = None  # by its head
        self.first_byte_ns: int | None = None
        self.last_byte_ns: int | None = None
        self.status = 0
        self.token_ns = array("q")
        self.empty_ns = array("q")
        self.first_answer_ns: int | None = None  # first token that is not reasoning
        self.prompt_tokens: int | None = None  # as the server counts; the last one told wins
        self.output_tokens: int | None = None
        self.finish_reason: str | None = None
        self.done = False  # the server said that the stream is over
        self.failure: Failure | None = None

    def head(self, status: int, headers: dict[bytes, bytes], at_ns: int) -> None:
        self.status = status
        self.first_byte_ns = self.last_byte_ns = at_ns
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
        if status >= 400:
            self._refused = Failure("http_5xx" if status >= 500 else "http_4xx", f"HTTP {status}")
        elif status >= 300:
            self._refused = Failure(
                "stream_error", f"HTTP {status} to {headers.get(b'location', b'?').decode('latin-1')}"
            )
        elif encoding != "identity":
            self._refused = Failure("stream_error", f"the answer is encoded ({encoding}), which we did not ask for")
        elif kind in ("application/json", "text/html"):
            self._refused = Failure("stream_error", f"the answer is no stream of events but {kind}")
        else:  # text/event-stream, or a server that does not say
            self._sse = SseParser()

    def body(self, data: bytes, at_ns: int) -> None:
        self.last_byte_ns = at_ns
        if self._sse is not None:
            for event in self._sse.feed(data):
                if not self.done:
                    self._interpret(self, event, at_ns)
        elif len(self._body) < BODY_HEAD_BYTES:
            self._body = (self._body + data)[:BODY_HEAD_BYTES]

    def token(self, at_ns: int, *, reasoning: bool = False) -> None:
        self.token_ns.append(at_ns)
        if not reasoning and self.first_answer_ns is None:
            self.first_answer_ns = at_ns

    def fail(self, message: str) -> None:
        """The server said so in the stream; the first reason stays."""
        self.failure = self.failure or Failure("stream_error", message[:BODY_HEAD_BYTES])

    def end(self, broken: Failure | None) -> Failure | None:
        """Call once when nothing more comes. broken: why the connection ended before the response did.

        Returns why the request failed, None if it did not.
        """
        self._prove_empty_events()
        if self._refused is not None:
            body = self._body.decode("utf-8", "replace").strip()
            return Failure(self._refused.kind, f"{self._refused.message}: {body}" if body else self._refused.message)
        if self.failure is not None:
            return self.failure
        if not self.done and self.finish_reason is None:
            return broken or Failure("truncated", "the stream ended without [DONE] or a finish_reason")
        if not self.token_ns:
            return Failure("empty", f"no token in the answer ({self.output_tokens or 0} by its usage)")
        return None

    def gaps_us(self) -> NDArray[np.uint32]:
        """Per token event the time since the one before, 0 for the first. The gaps add up without rounding errors."""
        if not self.token_ns:
            return np.empty(0, np.uint32)
        at_us = (np.frombuffer(self.token_ns, np.int64) - self.token_ns[0] + 500) // 1000
        return np.diff(at_us, prepend=0).astype(np.uint32)

    def coalesced(self) -> int:
        """Token events that came with another in the same read, and so have no time of their own."""
        return int((np.diff(np.frombuffer(self.token_ns, np.int64)) == 0).sum()) if self.token_ns else 0

    def _prove_empty_events(self) -> None:
        """Events without text were tokens if that makes exactly the server's number, or if nothing else can be."""
        told, seen = self.output_tokens or 0, len(self.token_ns)
        if self.empty_ns and told and (told == seen + len(self.empty_ns) or seen == 0):
            self.token_ns = array("q", sorted([*self.token_ns, *self.empty_ns]))
            if self.first_answer_ns is None and not seen:
                self.first_answer_ns = self.token_ns[0]
