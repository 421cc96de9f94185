"""Detokenizer: tokens to text, one token at a time; never half a character, never a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class Detokenizer:
    """The text of one response as it grows."""

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        """min_tokens: the text of earlier tokens is not searched for stop strings."""
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
        if not self._stops or self.output_tokens < self._min_tokens:
            return fresh
        return self._search(self._held + fresh)

    def end(self) -> str:
        """No more tokens come: the text held back. An incomplete character becomes U+FFFD."""
        rest, self._held = self._held + self._decode(b"", True), ""
        return rest

    def _search(self, text: str) -> str:
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            self._decode(b"", True)
            return text[: min(found)]
        shown = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[shown:]
        return text[:shown]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
