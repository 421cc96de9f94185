"""The ways in which a request can fail. Each is a miss for every SLA, never a fast success."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
