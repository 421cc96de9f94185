"""Disaggregated: prompts are computed by one instance and outputs made by another, each a whole scheduler of its own.

              submit ┌──────────────────┐ handed_over ┌──────────────────┐
    Source ─────────►│ prefill instance ├────────────►│ decode instance  ├──► Outcome ──► StepRecorder
                     │ seats, KV, steps │             │ seats, KV, steps │
                     └────────▲─────────┘             └─┬────────▲───────┘
                              └── given back ── Link ◄──┘ seated │ arrived
                                                  └──────────────┘

One thread owns both. Steps of the two run beside each other, and KV moves beside both: a request has its seat and its
blocks at the decode instance before its KV sets out, and decodes in the first step planned after that has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from engines.base import Observer, RunRecord
from engines.loop import NAP_NS, Clock, Executor, VirtualClock
from engines.recorder import StepRecorder
from engines.scheduling.kv_transfer import Transfer
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Outcome, Scheduler
from workloads.source import Incoming, Source


class PairedExecutor(Executor, Protocol):
    """`submit` returns before the step has run, as another instance must be served meanwhile."""

    def ends_ns(self) -> int | None:
        """When the oldest step not yet collected ends or has ended; None where there is none, or nobody knows yet (then
        the clock is woken when it ends)."""
        ...


class Link(Protocol):
    """Carries KV from the prefill instance's pool into the decode instance's."""

    def start(self, transfer: Transfer) -> None: ...

    def ends_ns(self) -> int | None:
        """As PairedExecutor's, of the oldest transfer."""
        ...

    def collect(self) -> Transfer:
        """The oldest, which has ended."""
        ...


class Instance:
    """A scheduler and what computes its steps. depth: steps in flight while the next is planned."""

    def __init__(self, scheduler: Scheduler, executor: PairedExecutor, depth: int = 0) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._depth = depth
        self._in_flight = 0
        self._nothing_to_plan = False  # until the step in flight has ended, as in engines.loop.drive
        self.wake_at_ns: int | None = None  # when time alone will let somebody in

    def plan(self, now_ns: int) -> None:
        """Launch steps, as many as may be and can be."""
        self.wake_at_ns = None
        while self._in_flight <= self._depth and not self._nothing_to_plan:
            plan = self.scheduler.schedule(now_ns)
            if plan is None:
                self.wake_at_ns = self.scheduler.wake_at_ns
                self._nothing_to_plan = self.in_flight
                return
            self.executor.submit(plan)
            self._in_flight += 1

    def collect(self) -> tuple[Outcome, int]:
        """What the oldest step changed, and when it ended."""
        result = self.executor.collect()
        self._in_flight -= 1
        self._nothing_to_plan = False
        return self.scheduler.update(result), result.end_ns

    @property
    def in_flight(self) -> bool:
        return self._in_flight > 0

    def ends_ns(self) -> int | None:
        """When the oldest step ends, where that is known."""
        return self.executor.ends_ns() if self.in_flight else None


@dataclass(frozen=True, slots=True)
class TwoInstances:
    prefill: Instance
    decode: Instance
    link: Link

    @property
    def idle(self) -> bool:
        return self.prefill.scheduler.idle and self.decode.scheduler.idle

    def live_indices(self) -> list[int]:
        return self.prefill.scheduler.live_indices() + self.decode.scheduler.live_indices()

    def submit(self, request: Request, now_ns: int) -> Outcome:
        """Queue it for its prompt to be computed; one that either instance could never hold is rejected at once."""
        refused = None
        if request.max_output_tokens > 1 and (reason := self.decode.scheduler.gate.refusal(request)) is not None:
            refused = f"decode instance: {reason}"
        request.output_limit = 1  # of the prefill instance
        if (reason := self.prefill.scheduler.gate.refusal(request)) is not None:
            refused = f"prefill instance: {reason}"
        return self.prefill.scheduler.submit(request, now_ns, refused)

    def abort(self, index: int) -> Outcome:
        outcome = self.prefill.scheduler.abort(index)
        return outcome if outcome.finished else self.decode.scheduler.abort(index)

    def plan(self, now_ns: int) -> None:
        """Launch what can be, and fetch the KV of those who were just seated to decode."""
        self.prefill.plan(now_ns)
        self.decode.plan(now_ns)
        for transfer in self.decode.scheduler.take_transfers(now_ns):
            self.link.start(transfer)

    def collect(self, now_ns: int) -> Iterator[tuple[Outcome, int]]:
        """What has ended by now, the earliest first; of equals KV, then prompts, then decodes."""
        while (ends := self._ends()) and ends[0][0] <= now_ns:
            at_ns, which = ends[0]
            match which:
                case 0:
                    self.decode.scheduler.arrived(self.link.collect(), at_ns)
                case 1:
                    outcome, end_ns = self.prefill.collect()
                    for request in outcome.handed_over:
                        self.decode.scheduler.receive(request)
                    yield outcome, end_ns
                case _:
                    outcome, end_ns = self.decode.collect()
                    for request in outcome.finished:
                        self.prefill.scheduler.ended_elsewhere(request)
                    yield outcome, end_ns

    def _ends(self) -> list[tuple[int, int]]:
        """When what is under way ends, and which of the three it is, the earliest first."""
        ends = (self.link.ends_ns(), self.prefill.ends_ns(), self.decode.ends_ns())
        return sorted((at_ns, which) for which, at_ns in enumerate(ends) if at_ns is not None)

    def wakes_ns(self) -> list[int]:
        """When something may happen by the passing of time, as far as that is known."""
        wakes = (self.prefill.wake_at_ns, self.decode.wake_at_ns)
        return [*(at_ns for at_ns, _ in self._ends()), *(at_ns for at_ns in wakes if at_ns is not None)]

    @property
    def under_way(self) -> bool:
        """Something will end, known or not when."""
        return self.prefill.in_flight or self.decode.in_flight or bool(self.decode.scheduler.seating.arrivals)


def run_disaggregated(
    pair: TwoInstances,
    source: Source[Incoming],
    clock: Clock,
    observer: Observer,
    *,
    planned: int,
    make_request: Callable[[Incoming], Request],
) -> RunRecord:
    """Run until the source is exhausted and every request has ended, or until the observer asks to stop."""
    pools = (pair.prefill.scheduler.kv.num_blocks, pair.decode.scheduler.kv.num_blocks)
    recorder = StepRecorder(observer, planned, *pools, thinned=isinstance(clock, VirtualClock))

    def take(outcome: Outcome, at_ns: int) -> None:
        for request in outcome.finished:
            source.completed(request.index, at_ns)
        recorder.take(outcome, at_ns)

    stopping = False
    while True:
        now_ns = clock.now_ns()
        for outcome, end_ns in pair.collect(now_ns):
            take(outcome, end_ns)
        stopping = stopping or observer.stopping
        new, aborted = ([], pair.live_indices()) if stopping else source.poll(now_ns)
        for one in new:
            take(pair.submit(make_request(one), now_ns), now_ns)
        for index in aborted:
            take(pair.abort(index), now_ns)
        pair.plan(clock.now_ns())
        if pair.idle and (stopping or source.exhausted):
            return recorder.record(interrupted=stopping)
        due_ns = None if stopping else source.next_due_ns()  # else who was left there would be due for ever
        wakes = [*pair.wakes_ns(), *([] if due_ns is None else [due_ns])]
        assert wakes or pair.under_way, "nothing runs, nothing is due, and the source is not exhausted"
        clock.wait_until(min(wakes, default=now_ns + NAP_NS))
