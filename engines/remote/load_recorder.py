"""The RunRecord of a load over HTTP: one row per request that has ended, its token events, and the signals.

LoadRecorder makes it from the answers that one process reads, MergedRecorder from what several worker processes send.
Both pass every row and every signal on to the run's observer.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import Observer, RunRecord, Signal
from engines.remote.answer import Failure, StreamedAnswer
from engines.remote.client_stats import ClientStats
from engines.remote.headers import request_id
from engines.remote.usage import OutputCount, believable_cached_tokens, believable_prompt_tokens
from engines.request_table import RequestRow, RequestTable, Status
from workloads.plan import RequestPlan

SIGNAL_PERIOD_NS = 250_000_000


@dataclass(slots=True, eq=False)
class Exchange:
    """A request that is due or in flight, and its answer so far. Times are of time.monotonic_ns()."""

    index: int
    scheduled_ns: int
    ready_ns: int  # when it could be sent: due, and below the cap on requests in flight
    taken_ns: int  # when the dispatcher took it up; from then to `sent_ns` it waits for a connection
    answer: StreamedAnswer
    sent_ns: int | None = None
    resent: bool = False
    refusals: int = 0  # answered with 429, and sent again or waiting for that


class EndedRequests:
    """The rows of the requests that have ended, and their token events in the same order."""

    def __init__(self) -> None:
        self.rows = RequestTable()
        self._gaps_us: list[NDArray[np.uint32]] = []
        self.num_events = 0

    def add(self, row: RequestRow, gaps_us: NDArray[np.uint32]) -> None:
        """row: with `events_at` = num_events. gaps_us: from each token event to the next, [row.events]."""
        self.rows.append(row)
        self._gaps_us.append(gaps_us)
        self.num_events += len(gaps_us)

    def record(self, plan: RequestPlan, signals: list[Signal], *, interrupted: bool) -> RunRecord:
        return RunRecord(
            planned=len(plan),
            rows=self.rows,
            event_values=np.concatenate(self._gaps_us) if self._gaps_us else np.empty(0, np.uint32),
            event_unit="us",
            signals=signals,
            interrupted=interrupted,
        )


class LoadRecorder:
    """Times of exchanges are of time.monotonic_ns(); those of rows and signals count from `start_ns`."""

    def __init__(self, plan: RequestPlan, observer: Observer, stats: ClientStats, id_prefix: str | None = None) -> None:
        """id_prefix: of the requests' X-Request-Id; None: they have none of ours."""
        self._plan = plan
        self._observer = observer
        self.stats = stats
        self._id_prefix = id_prefix
        self._ended = EndedRequests()
        self._signals: list[Signal] = []
        self._output_tokens = 0
        self._ttfts_ms: list[float] = []
        self._sampled_ns = 0
        self._sampled_events = 0
        self.start_ns = 0

    @property
    def stopping(self) -> bool:
        return self._observer.stopping

    def planned_tokens(self, index: int) -> int:
        """Output tokens that request `index` asks for."""
        return int(self._plan.output_tokens[index])

    def ended(self, exchange: Exchange, failure: Failure | None, end_ns: int, *, cancelled: bool = False) -> None:
        answer = exchange.answer
        status: Status = "cancelled" if cancelled else "failed" if failure else "completed"
        gaps_us = answer.gaps_us()
        count = answer.output_count()
        timed = bool(answer.token_ns) and not answer.whole
        planned = int(self._plan.prompt_tokens[exchange.index])
        counted = believable_prompt_tokens(answer.prompt_tokens, planned)
        prompt_tokens = counted or planned
        row = RequestRow(
            i=exchange.index,
            scheduled=self._since(exchange.scheduled_ns),
            submitted=self._since(exchange.taken_ns),
            sent=self._maybe_since(exchange.sent_ns),
            first_byte=self._maybe_since(answer.first_byte_ns),
            first=self._since(answer.token_ns[0]) if timed else None,
            last=self._since(answer.token_ns[-1]) if answer.token_ns else None,
            end=self._since(end_ns),
            prompt_tokens=prompt_tokens,
            output_tokens=count.tokens,
            status=status,
            finish_reason="aborted" if cancelled else failure.kind if failure else answer.finish_reason,
            error=failure.message if failure else None,
            token_source=count.source,
            tenant=self._plan.tenants[int(self._plan.tenant[exchange.index])],
            priority=int(self._plan.priority[exchange.index]),
            preemptions=0,
            events_at=self._ended.num_events,
            events=len(gaps_us),
            first_answer=self._first_answer(answer),
            cached_tokens=believable_cached_tokens(answer.cached_tokens, prompt_tokens),
            request_id=request_id(self._id_prefix, exchange.index),
        )
        self._count(answer, row, counted, count)
        self._ended.add(row, gaps_us)
        self._output_tokens += row.output_tokens
        if row.first is not None and row.sent is not None:
            self._ttfts_ms.append((row.first - row.sent) / 1e6)
        self._observer.request_ended(row, gaps_us)
        self.stats.record_lag_ns.add(time.monotonic_ns() - end_ns)

    def _first_answer(self, answer: StreamedAnswer) -> int | None:
        """The time of the first token that is not reasoning; None where it is the first token of all."""
        if answer.whole or answer.first_answer_ns is None or answer.first_answer_ns == answer.token_ns[0]:
            return None
        return self._since(answer.first_answer_ns)

    def sample(self, now_ns: int, in_flight: Collection[Exchange]) -> None:
        """Record a signal and pass it on, unless the last one is less than SIGNAL_PERIOD_NS old."""
        t_ns = self._since(now_ns)
        span_ns = t_ns - self._sampled_ns
        if span_ns < SIGNAL_PERIOD_NS:
            return
        # Of a whole answer it is not seen whether it has begun: its request counts as running.
        running = [len(one.answer.token_ns) for one in in_flight if one.answer.token_ns or one.answer.whole]
        events = self._ended.num_events + sum(running)
        fresh = max(events - self._sampled_events, 0)
        signal = Signal(
            t=t_ns,
            running=len(running),
            waiting=len(in_flight) - len(running),
            kv_usage=None,  # known to the server alone
            device_busy=None,
            output_token_per_s=fresh * 1e9 / span_ns,
            preemptions=None,
            completed=len(self._ended.rows),
            output_tokens=self._output_tokens + sum(running),
            ttft_ms=median(self._ttfts_ms) if self._ttfts_ms else None,
            tpot_ms=len(running) * span_ns / 1e6 / fresh if fresh and running else None,
        )
        self._ttfts_ms.clear()
        self._sampled_ns, self._sampled_events = t_ns, events
        self._signals.append(signal)
        self._observer.sampled(signal)

    def record(self, *, interrupted: bool) -> RunRecord:
        return self._ended.record(self._plan, self._signals, interrupted=interrupted)

    def _count(self, answer: StreamedAnswer, row: RequestRow, prompt_tokens: int | None, count: OutputCount) -> None:
        stats = self.stats
        stats.token_events += row.events
        stats.coalesced += answer.coalesced()
        if not self._plan.prompts_counted:
            stats.prompts_guessed += prompt_tokens is None and row.status == "completed"
        elif prompt_tokens is not None:
            over = prompt_tokens - int(self._plan.prompt_tokens[row.i])
            stats.prompts_counted += 1
            stats.prompts_mismatched += over != 0
            stats.prompt_tokens_over += over
        if answer.finish_reason is not None and row.status != "cancelled":
            stats.count_reason(answer.finish_reason)
        if answer.retry_after_s is not None:
            stats.count_retry_after(answer.retry_after_s)
        if row.status == "completed":
            stats.answers += 1
            stats.count_tokens(count, row.events, implausible_prompt=prompt_tokens != answer.prompt_tokens)
            if row.cached_tokens is not None:
                stats.cached_known += 1
                stats.cached_tokens += row.cached_tokens
                stats.cached_of_tokens += row.prompt_tokens
            over = row.output_tokens - int(self._plan.output_tokens[row.i])
            stats.short_answers += over < 0
            stats.long_answers += over > 0

    def _since(self, at_ns: int) -> int:
        return at_ns - self.start_ns

    def _maybe_since(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - self.start_ns


class MergedRecorder:
    """One record of what all workers send. Their clocks are the same, and so is their time zero."""

    def __init__(self, plan: RequestPlan, observer: Observer) -> None:
        self._plan = plan
        self._observer = observer
        self._ended = EndedRequests()
        self._latest: dict[str, Signal] = {}  # by worker
        self._signals: list[Signal] = []
        self.stats = ClientStats()
        self.start_ns = 0  # time zero of the schedule, of time.monotonic_ns()

    def ended(self, row: RequestRow, gaps_us: NDArray[np.uint32]) -> None:
        row = msgspec.structs.replace(row, events_at=self._ended.num_events)
        self._ended.add(row, gaps_us)
        self._observer.request_ended(row, gaps_us)
        self.stats.record_lag_ns.add(time.monotonic_ns() - self.start_ns - row.end)

    def sampled(self, worker: str, signal: Signal) -> None:
        self._latest[worker] = signal
        if not self._signals or signal.t - self._signals[-1].t >= SIGNAL_PERIOD_NS:
            merged = _sum(signal.t, list(self._latest.values()))
            self._signals.append(merged)
            self._observer.sampled(merged)

    def record(self, *, interrupted: bool) -> RunRecord:
        return self._ended.record(self._plan, self._signals, interrupted=interrupted)


def _sum(t_ns: int, latest: list[Signal]) -> Signal:
    """Counts and rates of all workers; of their latencies the mean."""
    ttfts_ms = [one.ttft_ms for one in latest if one.ttft_ms is not None]
    tpots_ms = [one.tpot_ms for one in latest if one.tpot_ms is not None]
    return Signal(
        t=t_ns,
        running=sum(one.running for one in latest),
        waiting=sum(one.waiting for one in latest),
        kv_usage=None,
        device_busy=None,
        output_token_per_s=sum(one.output_token_per_s for one in latest),
        preemptions=None,
        completed=sum(one.completed for one in latest),
        output_tokens=sum(one.output_tokens for one in latest),
        ttft_ms=sum(ttfts_ms) / len(ttfts_ms) if ttfts_ms else None,
        tpot_ms=sum(tpots_ms) / len(tpots_ms) if tpots_ms else None,
    )
