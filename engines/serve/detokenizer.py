"""Detokenizer: tokens to text, one token at a time; never half a character, never a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class Detokenizer:
    """The text of one response as it grows."""

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        """min_tokens: a stop string that ends with an earlier token is text like any other."""
        self._token_bytes = token_bytes
        self._stops = stops
        self._min_tokens = min_tokens
        # Holds back at most three bytes that may begin a character; invalid bytes become U+FFFD at once.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""  # may be the beginning of a stop string
        self.output_tokens = 0
        self.stopped = False  # a stop string was found: the text ends before it

    def push(self, token: int) -> str:
        """The text that can be sent now; it may be empty."""
        self.output_tokens += 1
        fresh = self._decode(self._token_bytes(token))
        if not self._stops:
            return fresh
        text = self._held + fresh
        if self.output_tokens >= self._min_tokens and (at := self._stop_in(text, len(self._held))) is not None:
            self.stopped = True
            self._held = ""
            self._decode(b"", True)
            return text[:at]
        shown = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[shown:]
        return text[:shown]

    def end(self) -> str:
        """No more tokens come: the text held back. An incomplete character becomes U+FFFD."""
        rest, self._held = self._held + self._decode(b"", True), ""
        return rest

    def _stop_in(self, text: str, searched: int) -> int | None:
        """Where the first stop string begins that ends beyond the first `searched` characters."""
        found = [at for stop in self._stops if (at := text.find(stop, max(0, searched - len(stop) + 1))) >= 0]
        return min(found, default=None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
