"""The live view on stderr: a thread that looks at one immutable snapshot four times a second.

Where stderr is no terminal (a log, CI) it is a plain line every ten seconds, so that a long run is seen to go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from engines.base import Signal

REFRESH_PER_S = 4
LINE_EVERY_S = 10.0
SILENT_S = 10.0  # without a token: shown from then on
WAITING = Text("waiting for the first step …", style="dim")


class LiveView:
    """The engine's thread replaces `signal`; Rich's thread draws whatever it finds there. `clock`: seconds."""

    def __init__(self, title: str, planned: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.signal: Signal | None = None
        self.kv_peak: float | None = None
        self.silent_s = 0.0  # since the last token or end of a request, while requests were in flight
        self._moved: tuple[int, int] | None = None
        self._moved_ns = 0
        self._title = title
        self._planned = planned
        self._clock = clock
        self._line_at_s = clock() + LINE_EVERY_S
        console = Console(stderr=True)
        self._live = (
            Live(console=console, get_renderable=self._draw, refresh_per_second=REFRESH_PER_S, transient=True)
            if console.is_terminal
            else None
        )

    def show(self, signal: Signal) -> None:
        if signal.kv_usage is not None:
            self.kv_peak = max(self.kv_peak or 0.0, signal.kv_usage)
        moved = (signal.completed, signal.output_tokens)
        if moved != self._moved or not signal.running + signal.waiting:
            self._moved, self._moved_ns = moved, signal.t
        self.silent_s = (signal.t - self._moved_ns) / 1e9
        self.signal = signal
        if self._live is None and self._clock() >= self._line_at_s:
            self._line_at_s = self._clock() + LINE_EVERY_S
            print(line(self._title, self._planned, signal) + _silence(self.silent_s), file=sys.stderr, flush=True)

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _draw(self) -> RenderableType:
        signal = self.signal
        if signal is None:
            return WAITING
        return panel(self._title + _silence(self.silent_s), self._planned, signal, self.kv_peak)


def line(title: str, planned: int, signal: Signal) -> str:
    """One snapshot for a log."""
    seconds = signal.t / 1e9
    speed = f"{signal.output_tokens / seconds:,.0f} tok/s so far" if seconds else "no token yet"
    return f"{title}: {signal.completed}/{planned} requests, {speed}, {seconds:.0f} s"


def _silence(silent_s: float) -> str:
    return f", no answer for {silent_s:.0f} s" if silent_s >= SILENT_S else ""


def panel(title: str, planned: int, signal: Signal, kv_peak: float | None) -> RenderableType:
    """One snapshot as a few lines."""
    seconds = signal.t / 1e9
    table = Table.grid(padding=(0, 2))
    table.add_row(
        Text(title, style="bold"),
        ProgressBar(total=planned, completed=signal.completed, width=30),
        f"{signal.completed}/{planned} requests",
        f"{seconds:.0f} s",
    )
    table.add_row(
        f"running {signal.running}",
        f"waiting {signal.waiting}",
        _kv(signal, kv_peak),
        "preemptions not exposed" if signal.preemptions is None else f"preempted {signal.preemptions}",
    )
    table.add_row(
        f"{signal.output_token_per_s:,.0f} tok/s",
        f"{signal.output_tokens / seconds:,.0f} tok/s so far" if seconds else "",
        f"TTFT {_ms(signal.ttft_ms)}",
        f"TPOT {_ms(signal.tpot_ms)}",
    )
    return table


def _kv(signal: Signal, kv_peak: float | None) -> str:
    if signal.kv_usage is None:
        return "KV not exposed"
    used = f"KV used {signal.kv_usage:.0%} (peak {kv_peak or 0:.0%})"
    if signal.kv_evictable is None or signal.kv_free is None:
        return used
    return f"{used}, evictable {signal.kv_evictable:.0%}, free {signal.kv_free:.0%}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"
