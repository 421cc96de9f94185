"""Recorder: turns what the scheduler reports into the rows, ledger and signals of a RunRecord, and tells the observer.

The ledger rows of a step are handed on before the requests that ended in it, so that whatever a crash leaves on disk,
a request's token events never point at steps that are not there.
"""

from __future__ import annotations

from statistics import median

import numpy as np
from numpy.typing import NDArray

from engines.base import Observer, RequestRow, RunRecord, Signal, Status
from engines.scheduling.ledger import LEDGER, StepArray
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Outcome

SIGNAL_PERIOD_NS = 250_000_000
CHUNK_STEPS = 256

_STATUS: dict[str | None, Status] = {"stop": "completed", "length": "completed", "aborted": "cancelled"}


class Recorder:
    def __init__(self, observer: Observer, planned: int, kv_blocks: int) -> None:
        self._observer = observer
        self._planned = planned
        self._rows: list[RequestRow] = []
        self._events: list[NDArray[np.uint32]] = []
        self._num_events = 0
        self._chunk = np.zeros(CHUNK_STEPS, LEDGER)
        self._filled = 0
        self._chunks: list[StepArray] = []
        self._signals = _Signals(kv_blocks)
        self._signal_list: list[Signal] = []

    def take(self, outcome: Outcome, now_ns: int) -> None:
        """Record a step's ledger row, if it has one, and the requests that ended."""
        if outcome.ledger_row is not None:
            self._chunk[self._filled] = outcome.ledger_row
            self._filled += 1
            if self._filled == CHUNK_STEPS:
                self._flush_steps()
            self._signals.add(outcome)
        for request in outcome.finished:
            self._end(request, now_ns)
        if now_ns >= self._signals.due_ns:
            signal = self._signals.sample(now_ns, len(self._rows))
            self._signal_list.append(signal)
            self._observer.sampled(signal)

    def record(self, interrupted: bool) -> RunRecord:
        self._flush_steps()
        return RunRecord(
            planned=self._planned,
            rows=self._rows,
            event_values=np.concatenate(self._events) if self._events else np.empty(0, np.uint32),
            event_unit="step",
            steps=np.concatenate(self._chunks) if self._chunks else np.empty(0, LEDGER),
            signals=self._signal_list,
            interrupted=interrupted,
        )

    def _flush_steps(self) -> None:
        if self._filled:
            done = self._chunk[: self._filled].copy()
            self._chunks.append(done)
            self._filled = 0
            self._observer.steps_recorded(done)

    def _end(self, request: Request, now_ns: int) -> None:
        self._flush_steps()
        events = request.event_steps()
        row = RequestRow(
            i=request.index,
            scheduled=request.scheduled_ns,
            submitted=request.submitted_ns,
            sent=request.sent_ns,
            first_byte=request.first_ns,
            first=request.first_ns,
            last=request.last_ns,
            end=now_ns,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            status=_STATUS.get(request.finish_reason, "failed"),
            finish_reason=request.finish_reason,
            error=request.error,
            token_source="engine",
            tenant=request.tenant,
            priority=request.priority,
            preemptions=request.preemptions,
            events_at=self._num_events,
            events=len(events),
            stints=tuple(request.stints),
        )
        self._rows.append(row)
        self._events.append(events)
        self._num_events += len(events)
        self._observer.request_ended(row, events)


class _Signals:
    """Sums since the last sample."""

    def __init__(self, kv_blocks: int) -> None:
        self._kv_blocks = kv_blocks
        self.due_ns = SIGNAL_PERIOD_NS
        self._last_ns = 0
        self._last_end_ns = 0
        self._preemptions = 0
        self._output_tokens = 0
        self._row = np.zeros((), LEDGER)
        self._clear()

    def _clear(self) -> None:
        self._busy_ns = 0
        self._tokens = 0
        self._decode_ns = 0
        self._decode_rows = 0
        self._ttfts_ms: list[float] = []

    def add(self, outcome: Outcome) -> None:
        assert outcome.ledger_row is not None
        row = self._row = outcome.ledger_row
        decode_rows, end_ns = int(row["decode_rows"]), int(row["end_ns"])
        self._busy_ns += int(row["busy_ns"])
        self._tokens += int(row["sampled_tokens"])
        self._decode_ns += decode_rows * (end_ns - self._last_end_ns)
        self._decode_rows += decode_rows
        self._last_end_ns = end_ns
        self._preemptions += int(row["preempted"])
        for request in outcome.delivered:
            if request.output_tokens == 1 and request.first_ns is not None:
                self._ttfts_ms.append((request.first_ns - request.sent_ns) / 1e6)

    def sample(self, now_ns: int, completed: int) -> Signal:
        span_ns = max(now_ns - self._last_ns, 1)
        self._output_tokens += self._tokens
        signal = Signal(
            t=now_ns,
            running=int(self._row["running"]),
            waiting=int(self._row["waiting"]),
            kv_usage=1 - int(self._row["kv_free_blocks"]) / self._kv_blocks,
            device_busy=min(self._busy_ns / span_ns, 1.0),
            output_token_per_s=self._tokens * 1e9 / span_ns,
            preemptions=self._preemptions,
            completed=completed,
            output_tokens=self._output_tokens,
            ttft_ms=median(self._ttfts_ms) if self._ttfts_ms else None,
            tpot_ms=self._decode_ns / self._decode_rows / 1e6 if self._decode_rows else None,
        )
        self._clear()
        self._last_ns = now_ns
        self.due_ns = now_ns + SIGNAL_PERIOD_NS
        return signal
