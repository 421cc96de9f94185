"""Server-sent events, parsed by the rules of the WHATWG (HTML standard, "Event stream interpretation").

It parses bytes, so that a character split between two reads needs no special case: only bytes below 0x80 have a
meaning in the format, and they do not occur in longer UTF-8 sequences.
"""

from __future__ import annotations

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"


MOST_UNFINISHED_BYTES = 16 * 1024 * 1024  # since the last event: more than any model or tool call needs


class UnendingEventError(Exception):
    """MOST_UNFINISHED_BYTES came and no event ended."""


class SseEvent(NamedTuple):
    data: bytes
    type: bytes = b"message"
    last_id: bytes = b""


class SseParser:
    """feed() takes the stream in pieces of any size and returns the events that each piece completes.

    An unfinished event at the end of the stream is dropped, as in the standard. feed() raises UnendingEventError where
    one does not end.
    """

    def __init__(self) -> None:
        self.retry_ms: int | None = None  # the reconnection time that the server set; cbbench never reconnects
        self._last_id = b""
        self._data: list[bytes] = []
        self._type = b""
        self._partial: list[bytes] = []  # pieces of a line that has not ended; joined once, so long lines stay linear
        self._unfinished_bytes = 0  # since the last event
        self._after_cr = False  # the last piece ended in CR: a LF at the start of the next one belongs to it
        self._head: bytes | None = b""  # the first bytes, until it is known whether they are a byte order mark

    def feed(self, piece: bytes) -> list[SseEvent]:
        if self._is_plain(piece):
            self._head = None
            return [SseEvent(piece[6:-2])]
        if self._head is not None:
            piece = self._without_bom(piece)
        if self._after_cr and piece:
            self._after_cr = False
            if piece[0] == 0x0A:
                piece = piece[1:]
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

        lines = piece.split(b"\n")
        unfinished = lines.pop()
        if lines and self._partial:
            lines[0] = b"".join(self._partial) + lines[0]
            self._partial.clear()
        if unfinished:
            self._partial.append(unfinished)

        events: list[SseEvent] = []
        for line in lines:
            if line.startswith(b"data: "):  # a fast path for most lines of a token stream; _field does the same
                self._data.append(line[6:])
            elif line:
                self._field(line)
            else:
                self._dispatch(events)
        self._unfinished_bytes = 0 if events else self._unfinished_bytes + len(piece)
        if self._unfinished_bytes > MOST_UNFINISHED_BYTES:
            raise UnendingEventError
        return events

    def _is_plain(self, piece: bytes) -> bool:
        """Whether the piece is one whole event of one data line, as most pieces of a stream are."""
        return (
            piece.endswith(b"\n\n")
            and piece.startswith(b"data: ")
            and piece.count(b"\n") == 2
            and b"\r" not in piece
            and not (self._partial or self._data or self._type or self._last_id or self._head or self._after_cr)
        )

    def _without_bom(self, piece: bytes) -> bytes:
        assert self._head is not None
        head = self._head + piece
        if len(head) < len(BOM) and BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(BOM)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")  # a comment has an empty name
        value = value.removeprefix(b" ")  # one space, not more
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._type = value
        elif name == b"id" and b"\0" not in value:
            self._last_id = value
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value)

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(SseEvent(data, self._type or b"message", self._last_id))
            self._data.clear()
        self._type = b""
