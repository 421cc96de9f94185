"""Ctrl-C and SIGTERM: the first asks the run to stop and keeps its results, the second one breaks it off."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """`requested` turns True at the first signal; the second one raises KeyboardInterrupt where the program is."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = {one: signal.signal(one, self._handle) for one in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("stopping; results so far are kept (once more to break off)", file=sys.stderr)
