"""The live view: what a snapshot shows, and the lines for a log without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cbbench.experiment.live_view import LiveView, panel
from engines.base import Signal

SNAPSHOT = Signal(
    t=4_000_000_000, running=3, waiting=7, kv_usage=0.5, device_busy=0.9, output_token_per_s=1234.0, preemptions=2,
    completed=5, output_tokens=2000, ttft_ms=None, tpot_ms=7.25, kv_evictable=0.3, kv_free=0.2,
)  # fmt: skip


def test_a_snapshot_shows_progress_queue_memory_and_latency() -> None:
    stream = io.StringIO()
    Console(file=stream, width=120).print(panel("continuous", 20, SNAPSHOT, kv_peak=0.8))
    shown = stream.getvalue()
    for text in ("5/20 requests", "4 s", "running 3", "waiting 7", "KV used 50% (peak 80%), evictable 30%, free 20%",
                 "preempted 2",
                 "1,234 tok/s",
                 "500 tok/s so far", "TTFT –", "TPOT 7.2 ms"):  # fmt: skip
        assert text in shown


def test_the_peak_is_remembered() -> None:
    view = LiveView("continuous", 20)
    view.show(SNAPSHOT)
    view.show(Signal(**{name: getattr(SNAPSHOT, name) for name in Signal.__struct_fields__} | {"kv_usage": 0.1}))
    assert view.kv_peak == 0.5


def test_without_a_terminal_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    with LiveView("continuous", 20, clock=lambda: now) as view:
        told = []
        for now in (100.0, 109.9, 110.0, 115.0, 119.9, 121.0):  # noqa: B007  # the clock reads it
            view.show(SNAPSHOT)
            told.append(capsys.readouterr())
    line = "continuous: 5/20 requests, 500 tok/s so far, 4 s\n"
    assert told == [("", ""), ("", ""), ("", line), ("", ""), ("", ""), ("", line)]


def test_a_silence_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def at(seconds: float, **more: int) -> Signal:
        whole = {name: getattr(SNAPSHOT, name) for name in Signal.__struct_fields__}
        return Signal(**whole | {"t": round(seconds * 1e9)} | more)

    now = 0.0
    with LiveView("openai", 20, clock=lambda: now) as view:
        told = []
        for now, signal in (  # noqa: B007  # the clock reads it
            (10.0, at(10)),
            (21.0, at(21)),  # 11 s after the last token
            (32.0, at(32, output_tokens=2001)),
            (43.0, at(43, output_tokens=2001, running=0, waiting=0)),  # nothing is due
        ):
            view.show(signal)
            told.append(capsys.readouterr().err)
    assert ["no answer for" in text for text in told] == [False, True, False, False]
    assert "21 s, no answer for 11 s" in told[1]
