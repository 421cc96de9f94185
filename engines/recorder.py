"""StepRecorder: the scheduler's outcomes become rows, ledger and signals of a RunRecord, and the observer is told.

The ledger rows of a step are passed on before the requests that ended in it, so that whatever a crash leaves on disk,
a request's token events never point at steps that are not there. Where two instances run side by side, a step may end
before one that was launched earlier: its row waits for that one, and so do the requests that ended in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import Observer, RunRecord, Signal
from engines.ledger import LEDGER, StepArray, computing_ns
from engines.request_table import RequestRow, RequestTable, Status, StintRow
from engines.scheduling.delivery import Outcome
from engines.scheduling.request import Request
from engines.step_runs import StepRuns
from workloads.columns import IntColumn

SIGNAL_PERIOD_NS = 250_000_000
CHUNK_STEPS = 256
THINNING = 1000  # samples of a virtual run's past

_STATUS: dict[str | None, Status] = {"stop": "completed", "length": "completed", "aborted": "cancelled"}


@dataclass(frozen=True, slots=True)
class EndedRequest:
    row: RequestRow  # but for events_at
    runs: Sequence[Sequence[int]]  # of its token events: (first step, consecutive steps)

    def event_steps(self) -> NDArray[np.uint32]:
        """Step number of every token: uint32[output_tokens]."""
        if not self.runs:
            return np.empty(0, np.uint32)
        spelled = [np.arange(first, first + count, dtype=np.uint32) for first, count in self.runs]
        return spelled[0] if len(spelled) == 1 else np.concatenate(spelled)


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Consecutive steps of one instance, with what else happened meanwhile, each in order."""

    steps: StepArray
    ended_in: IntColumn  # step in which each request ended
    ended: Iterator[EndedRequest]
    first_in: IntColumn  # step of each first token
    ttfts_ms: NDArray[np.float64]
    polled_after: IntColumn  # step after which each request was submitted
    polled_ns: IntColumn


class StepRecorder:
    """thinned: samples come ever more rarely, as a virtual run may last for days; a live view of a real one wants them
    four times a second."""

    def __init__(self, observer: Observer, planned: int, *kv_blocks: int, thinned: bool = False) -> None:
        """kv_blocks: of the pool of each instance."""
        self._observer = observer
        self._planned = planned
        self._rows = RequestTable()
        self._events = StepRuns()
        self._steps = np.zeros(CHUNK_STEPS, LEDGER)  # grows when full
        self._num_steps = 0  # without a gap
        self._ahead: set[int] = set()  # steps behind one that has not ended yet
        self._ended: deque[tuple[Request, int]] = deque()  # with tokens of steps that the observer cannot have yet
        self._told = 0  # steps that the observer has
        self._signals = _Signals(kv_blocks, thinned)
        self._signal_list: list[Signal] = []

    def take(self, outcome: Outcome, now_ns: int) -> None:
        """Record a step's ledger row, if it has one, and the requests that ended."""
        if outcome.skipped_steps is not None:
            self._take_skipped(outcome.skipped_steps, outcome.finished)
            return
        if outcome.ledger_row is not None:
            self._keep(outcome.ledger_row, 1)
            self._signals.add(outcome)
            if self._ended:
                self._tell_ended()
        for request in outcome.finished:
            self._end(request, now_ns)
        if now_ns >= self._signals.due_ns:
            self._sample(now_ns)

    def _take_skipped(self, steps: StepArray, finished: Iterable[Request]) -> None:
        """As take() of each step. In none of them a request gets its first token; `finished` end in the last."""
        while len(steps):
            until = int(np.searchsorted(steps["end_ns"], self._signals.due_ns)) + 1
            now, steps = steps[:until], steps[until:]
            self._keep(now, len(now))
            self._signals.add_steps(now)
            end_ns = int(now["end_ns"][-1])
            if not len(steps):
                for request in finished:
                    self._end(request, end_ns)
            if end_ns >= self._signals.due_ns:
                self._sample(end_ns)

    def take_block(self, block: StepBlock) -> None:
        """As so many take(): of every step, of every request that was submitted, and of those that ended."""
        steps, at, ended, firsts, polled = block.steps, 0, 0, 0, 0
        last_step = int(steps["step"][-1]) if len(steps) else 0
        while True:
            due_ns = self._signals.due_ns
            until = int(np.searchsorted(steps["end_ns"], due_ns))
            poll = max(int(np.searchsorted(block.polled_ns, due_ns)), polled)
            step = int(steps["step"][until]) if until < len(steps) else last_step + 1
            now_ns = None
            if poll < len(block.polled_ns) and block.polled_after[poll] < step:
                step, now_ns = int(block.polled_after[poll]), int(block.polled_ns[poll])
                polled = poll + 1
            elif until < len(steps):
                now_ns = int(steps["end_ns"][until])
            stop = int(np.searchsorted(steps["step"], step, side="right"))
            if stop > at:
                self._keep(steps[at:stop], stop - at)
                self._signals.add_steps(steps[at:stop])
                at = stop
            first_until = int(np.searchsorted(block.first_in, step, side="right"))
            self._signals.add_ttfts(block.ttfts_ms[firsts:first_until].tolist())
            ended_until = len(block.ended_in) if now_ns is None else int(np.searchsorted(block.ended_in, step, "right"))
            for one in islice(block.ended, ended_until - ended):
                self._tell(msgspec.structs.replace(one.row, events_at=len(self._events)), one.runs, one.event_steps())
            firsts, ended = first_until, ended_until
            if now_ns is None:
                return
            self._sample(now_ns)

    def _keep(self, steps: StepArray, count: int) -> None:
        """steps: one row or an array of them."""
        at = int(steps["step"].flat[0]) - 1
        if at + count > len(self._steps):
            # In place, and by a quarter: a long ledger must not be there twice.
            self._steps.resize(at + max(CHUNK_STEPS, count, at // 4), refcheck=False)
        self._steps[at : at + count] = steps
        if at > self._num_steps:
            self._ahead.add(at)
            return
        self._num_steps += count
        while self._num_steps in self._ahead:
            self._ahead.remove(self._num_steps)
            self._num_steps += 1
        if self._num_steps - self._told >= CHUNK_STEPS:
            self._tell_steps()

    def _sample(self, now_ns: int) -> None:
        signal = self._signals.sample(now_ns, len(self._rows))
        self._signal_list.append(signal)
        self._observer.sampled(signal)

    def record(self, interrupted: bool) -> RunRecord:
        self._tell_steps()
        assert not self._ahead
        assert not self._ended
        return RunRecord(
            planned=self._planned,
            rows=self._rows,
            event_values=self._events,
            event_unit="step",
            steps=self._steps[: self._num_steps],
            signals=self._signal_list,
            interrupted=interrupted,
        )

    def _tell_steps(self) -> None:
        if self._told < self._num_steps:
            self._observer.steps_recorded(self._steps[self._told : self._num_steps].copy())
            self._told = self._num_steps

    def _end(self, request: Request, now_ns: int) -> None:
        self._ended.append((request, now_ns))
        self._tell_ended()

    def _tell_ended(self) -> None:
        """In the order in which they ended, as far as all their steps are there."""
        while self._ended and self._ended[0][0].last_step <= self._num_steps:
            self._tell_request(*self._ended.popleft())

    def _tell_request(self, request: Request, now_ns: int) -> None:
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
            events_at=len(self._events),
            events=request.output_tokens,
            stints=tuple(StintRow(*one) for one in request.stints),
            transfer_asked=request.transfer_asked_ns,
            transfer_ended=request.transfer_ended_ns,
        )
        self._tell(row, request.event_runs, request.event_steps())

    def _tell(self, row: RequestRow, runs: Sequence[Sequence[int]], event_steps: NDArray[np.uint32]) -> None:
        self._tell_steps()
        self._rows.append(row)
        self._events.append(runs)
        self._observer.request_ended(row, event_steps)


class _Signals:
    """Sums since the last sample."""

    def __init__(self, kv_blocks: Sequence[int], thinned: bool) -> None:
        self._kv_blocks = sum(kv_blocks)
        self._thinned = thinned
        self.due_ns = SIGNAL_PERIOD_NS
        self._last_ns = 0
        self._last_end_ns = [0] * len(kv_blocks)
        self._preemptions = 0
        self._output_tokens = 0
        self._rows = [np.zeros((), LEDGER) for _ in kv_blocks]  # the newest of each instance
        for row, blocks in zip(self._rows, kv_blocks, strict=True):
            row["kv_free_blocks"] = blocks
        self._clear()

    def _clear(self) -> None:
        self._busy_ns = 0
        self._tokens = 0
        self._decode_ns = 0
        self._decode_rows = 0
        self._ttfts_ms: list[float] = []

    def add(self, outcome: Outcome) -> None:
        assert outcome.ledger_row is not None
        row = outcome.ledger_row
        instance = int(row["instance"])
        self._rows[instance] = row
        decode_rows, end_ns = int(row["decode_rows"]), int(row["end_ns"])
        self._busy_ns += int(computing_ns(row))
        self._tokens += int(row["sampled_tokens"])
        self._decode_ns += decode_rows * (end_ns - self._last_end_ns[instance])
        self._decode_rows += decode_rows
        self._last_end_ns[instance] = end_ns
        self._preemptions += int(row["preempted"])
        for request in outcome.delivered:
            if request.output_tokens == 1 and request.first_ns is not None:
                self._ttfts_ms.append((request.first_ns - request.sent_ns) / 1e6)

    def add_steps(self, steps: StepArray) -> None:
        """As add() of each, where there is one instance and no request gets its first token."""
        ends_ns, decode_rows = steps["end_ns"], steps["decode_rows"].astype(np.int64)
        self._rows[0] = steps[-1]
        self._busy_ns += int(computing_ns(steps).sum())
        self._tokens += int(steps["sampled_tokens"].sum())
        self._decode_ns += int(decode_rows[0]) * (int(ends_ns[0]) - self._last_end_ns[0])
        self._decode_ns += int((decode_rows[1:] * np.diff(ends_ns)).sum())
        self._decode_rows += int(decode_rows.sum())
        self._last_end_ns[0] = int(ends_ns[-1])
        self._preemptions += int(steps["preempted"].sum())

    def add_ttfts(self, ttfts_ms: Sequence[float]) -> None:
        self._ttfts_ms.extend(ttfts_ms)

    def sample(self, now_ns: int, completed: int) -> Signal:
        span_ns = max(now_ns - self._last_ns, 1)
        self._output_tokens += self._tokens
        evictable = sum(int(row["kv_cached_blocks"]) for row in self._rows)
        free = sum(int(row["kv_free_blocks"]) for row in self._rows)
        signal = Signal(
            t=now_ns,
            running=sum(int(row["running"]) for row in self._rows),
            waiting=sum(int(row["waiting"]) for row in self._rows),
            kv_usage=1 - (evictable + free) / self._kv_blocks,
            device_busy=min(self._busy_ns / len(self._rows) / span_ns, 1.0),
            output_token_per_s=self._tokens * 1e9 / span_ns,
            preemptions=self._preemptions,
            completed=completed,
            output_tokens=self._output_tokens,
            ttft_ms=median(self._ttfts_ms) if self._ttfts_ms else None,
            tpot_ms=self._decode_ns / self._decode_rows / 1e6 if self._decode_rows else None,
            kv_evictable=evictable / self._kv_blocks,
            kv_free=free / self._kv_blocks,
        )
        self._clear()
        self._last_ns = now_ns
        self.due_ns = now_ns + max(SIGNAL_PERIOD_NS, now_ns // THINNING if self._thinned else 0)
        return signal
