"""Recorder: what has ended becomes the rows, events and signals of a RunRecord, and the observer is told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from engines.base import Observer, RunRecord, Signal
from engines.remote.answer import Failure, StreamedAnswer
from engines.remote.client_stats import ClientStats
from engines.request_table import RequestRow, RequestTable, Status
from workloads.plan import RequestPlan

SIGNAL_PERIOD_NS = 250_000_000


@dataclass(slots=True, eq=False)
class Exchange:
    """A request on its way. Times are of time.monotonic_ns()."""

    index: int
    scheduled_ns: int
    ready_ns: int  # when it could be sent: due, and a seat free
    taken_ns: int  # when we took it up; from then to `sent` it waits for a connection
    answer: StreamedAnswer
    sent_ns: int | None = None
    resent: bool = False


class LoadRecorder:
    """Times of exchanges count from `start_ns` in what it writes."""

    def __init__(self, plan: RequestPlan, observer: Observer, stats: ClientStats) -> None:
        self._plan = plan
        self._observer = observer
        self.stats = stats
        self._rows = RequestTable()
        self._events: list[NDArray[np.uint32]] = []
        self._num_events = 0
        self._signals: list[Signal] = []
        self._output_tokens = 0
        self._ttfts_ms: list[float] = []
        self._sampled_ns = 0
        self._sampled_events = 0
        self.start_ns = 0

    @property
    def stopping(self) -> bool:
        return self._observer.stopping

    def ended(self, exchange: Exchange, failure: Failure | None, end_ns: int, *, cancelled: bool = False) -> None:
        answer = exchange.answer
        status: Status = "cancelled" if cancelled else "failed" if failure else "completed"
        gaps_us = answer.gaps_us()
        counted = answer.output_tokens is None
        row = RequestRow(
            i=exchange.index,
            scheduled=self._since(exchange.scheduled_ns),
            submitted=self._since(exchange.taken_ns),
            sent=self._maybe_since(exchange.sent_ns),
            first_byte=self._maybe_since(answer.first_byte_ns),
            first=self._since(answer.token_ns[0]) if answer.token_ns else None,
            last=self._since(answer.token_ns[-1]) if answer.token_ns else None,
            end=self._since(end_ns),
            prompt_tokens=answer.prompt_tokens or int(self._plan.prompt_tokens[exchange.index]),
            output_tokens=len(gaps_us) if counted else answer.output_tokens or 0,
            status=status,
            finish_reason="aborted" if cancelled else failure.kind if failure else answer.finish_reason,
            error=failure.message if failure else None,
            token_source="counted" if counted else "usage",
            tenant=self._plan.tenants[int(self._plan.tenant[exchange.index])],
            priority=int(self._plan.priority[exchange.index]),
            preemptions=0,
            events_at=self._num_events,
            events=len(gaps_us),
            first_answer=self._first_answer(answer),
        )
        self._count(answer, row)
        self._rows.append(row)
        self._events.append(gaps_us)
        self._num_events += len(gaps_us)
        self._output_tokens += row.output_tokens
        if row.first is not None and row.sent is not None:
            self._ttfts_ms.append((row.first - row.sent) / 1e6)
        self._observer.request_ended(row, gaps_us)

    def _first_answer(self, answer: StreamedAnswer) -> int | None:
        """Where it is not the first token."""
        if answer.first_answer_ns is None or answer.first_answer_ns == answer.token_ns[0]:
            return None
        return self._since(answer.first_answer_ns)

    def sample(self, now_ns: int, in_flight: Collection[Exchange]) -> None:
        """Tell how it goes, if it is time again."""
        t_ns = self._since(now_ns)
        span_ns = t_ns - self._sampled_ns
        if span_ns < SIGNAL_PERIOD_NS:
            return
        running = [len(one.answer.token_ns) for one in in_flight if one.answer.token_ns]
        events = self._num_events + sum(running)
        fresh = max(events - self._sampled_events, 0)
        signal = Signal(
            t=t_ns,
            running=len(running),
            waiting=len(in_flight) - len(running),
            kv_usage=None,  # what only the server knows
            device_busy=None,
            output_token_per_s=fresh * 1e9 / span_ns,
            preemptions=None,
            completed=len(self._rows),
            output_tokens=self._output_tokens + sum(running),
            ttft_ms=median(self._ttfts_ms) if self._ttfts_ms else None,
            tpot_ms=len(running) * span_ns / 1e6 / fresh if fresh and running else None,
        )
        self._ttfts_ms.clear()
        self._sampled_ns, self._sampled_events = t_ns, events
        self._signals.append(signal)
        self._observer.sampled(signal)

    def record(self, *, interrupted: bool) -> RunRecord:
        return RunRecord(
            planned=len(self._plan),
            rows=self._rows,
            event_values=np.concatenate(self._events) if self._events else np.empty(0, np.uint32),
            event_unit="us",
            signals=self._signals,
            interrupted=interrupted,
        )

    def _count(self, answer: StreamedAnswer, row: RequestRow) -> None:
        stats = self.stats
        stats.token_events += row.events
        stats.coalesced += answer.coalesced()
        if not self._plan.prompts_counted:
            stats.prompts_guessed += answer.prompt_tokens is None and row.status == "completed"
        elif answer.prompt_tokens is not None:
            over = answer.prompt_tokens - int(self._plan.prompt_tokens[row.i])
            stats.prompts_counted += 1
            stats.prompts_mismatched += over != 0
            stats.prompt_tokens_over += over
        if row.status == "completed":
            stats.answers += 1
            stats.short_answers += row.output_tokens < int(self._plan.output_tokens[row.i])

    def _since(self, at_ns: int) -> int:
        return at_ns - self.start_ns

    def _maybe_since(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - self.start_ns
