"""Stream: one request between the two threads. The engine's news of it, as the HTTP side reads them."""

from __future__ import annotations

import asyncio

from engines.scheduling.request import Request


class Stream:
    """Made and read on the event loop's thread; of it, the engine's thread only touches `request`, until it ends."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.last_ns: int | None = None  # when the newest token came
        self.ended = False
        self.refused = False  # at the door: what it asks for can never run here
        self._tokens: list[int] = []
        self._changed = asyncio.Event()

    def push(self, token: int) -> None:
        self._tokens.append(token)
        self._changed.set()

    def end(self) -> None:
        self.ended = True
        self._changed.set()

    async def news(self) -> list[int]:
        """Waits for something to happen. The tokens that came since the last time; see `ended` for whether more will.

        Several tokens at once mean that the reader was slower than the engine, which waits for nobody.
        """
        await self._changed.wait()
        self._changed.clear()
        tokens, self._tokens = self._tokens, []
        return tokens
