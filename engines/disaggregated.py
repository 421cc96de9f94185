"""Disaggregated: one instance computes prompts and another makes outputs, each with a whole scheduler of its own.

              submit ┌──────────────────┐ handed_over ┌──────────────────┐
    Source ─────────►│ prefill instance ├────────────►│ decode instance  ├──► Outcome
                     │ slots, KV, steps │             │ slots, KV, steps │
                     └────────▲─────────┘             └─┬────────▲───────┘
                              └── given back ── Link ◄──┘ admitted │ arrived
                                                  └────────────────┘

One thread drives both, by the loop of engines.loop. Their steps run side by side, and KV moves meanwhile: a request
has its slot and its blocks at the decode instance before its KV is sent, and decodes in the first step planned after
that has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from engines.loop import NAP_NS, Clock, Executor, Instance, NextDue
from engines.scheduling.delivery import Outcome
from engines.scheduling.kv_transfer import Transfer
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Scheduler


class TimedExecutor(Executor, Protocol):
    """`submit` returns before the step has run, because the other instance must be served meanwhile."""

    def ends_ns(self) -> int | None:
        """When the oldest step not yet collected ends or has ended; None where there is none, or that is not known yet
        (then the clock is woken when it ends)."""
        ...


class Link(Protocol):
    """Carries KV from the prefill instance's pool into the decode instance's."""

    def start(self, transfer: Transfer) -> None: ...

    def ends_ns(self) -> int | None:
        """As TimedExecutor's, of the oldest transfer."""
        ...

    def collect(self) -> Transfer:
        """The oldest, which has ended."""
        ...


class TimedInstance(Instance):
    """One of the two: the loop does not wait for its steps, but collects those that have ended."""

    def __init__(self, scheduler: Scheduler, executor: TimedExecutor, depth: int = 0) -> None:
        super().__init__(scheduler, executor, depth)
        self._ends_ns = executor.ends_ns

    def ends_ns(self) -> int | None:
        """When the oldest step ends, where that is known."""
        return self._ends_ns() if self.in_flight else None


class TwoInstances:
    """What engines.loop drives in place of one Instance."""

    def __init__(self, prefill: TimedInstance, decode: TimedInstance, link: Link) -> None:
        self.prefill = prefill
        self.decode = decode
        self._link = link

    @property
    def idle(self) -> bool:
        return self.prefill.idle and self.decode.idle

    @property
    def kv_blocks(self) -> tuple[int, ...]:
        return self.prefill.kv_blocks + self.decode.kv_blocks

    def live_indices(self) -> list[int]:
        return self.prefill.live_indices() + self.decode.live_indices()

    def submit(self, request: Request, now_ns: int) -> Outcome:
        """Queue it for its prompt to be computed; one that either instance could never hold is rejected at once."""
        rejected = None
        if request.max_output_tokens > 1 and (reason := self.decode.scheduler.gate.never_fits(request)) is not None:
            rejected = f"decode instance: {reason}"
        request.output_limit = 1  # of the prefill instance
        if (reason := self.prefill.scheduler.gate.never_fits(request)) is not None:
            rejected = f"prefill instance: {reason}"
        return self.prefill.scheduler.submit(request, now_ns, rejected)

    def abort(self, index: int) -> Outcome:
        outcome = self.prefill.abort(index)
        if not outcome.finished:
            outcome = self.decode.abort(index)
            self._ended_at_decode(outcome)
        return outcome

    def launch(self, now_ns: int) -> bool:
        """Launch all steps of both that can be, and start the transfers of requests that were admitted to decode."""
        launched = False
        for instance in (self.prefill, self.decode):
            while instance.launch(now_ns):
                launched = True
        for transfer in self.decode.scheduler.running.take_transfers(now_ns):
            self._link.start(transfer)
        return launched

    def collect(self, clock: Clock, next_due: NextDue) -> Iterator[tuple[Outcome, int]]:
        """Wait for the next event; then what has ended, the earliest first; of equals KV, prompts, decodes."""
        wakes = (next_due(), self.prefill.wake_at_ns, self.decode.wake_at_ns)
        wakes_ns = [at_ns for at_ns, _ in self._ends()] + [at_ns for at_ns in wakes if at_ns is not None]
        assert wakes_ns or self._under_way, "nothing runs, nothing is due, and the source is not exhausted"
        clock.wait_until(min(wakes_ns) if wakes_ns else clock.now_ns() + NAP_NS)
        now_ns = clock.now_ns()
        while (ends := self._ends()) and ends[0][0] <= now_ns:
            at_ns, which = ends[0]
            match which:
                case 0:
                    self.decode.scheduler.running.arrived(self._link.collect(), at_ns)
                case 1:
                    outcome, end_ns = self.prefill.collect_step(clock)
                    for request in outcome.handed_over:
                        self.decode.scheduler.receive(request)
                    yield outcome, end_ns
                case _:
                    outcome, end_ns = self.decode.collect_step(clock)
                    self._ended_at_decode(outcome)
                    yield outcome, end_ns

    def _ended_at_decode(self, outcome: Outcome) -> None:
        for request in outcome.finished:
            self.prefill.scheduler.ended_elsewhere(request)

    def _ends(self) -> list[tuple[int, int]]:
        """When what is under way ends, and which of the three it is, the earliest first."""
        ends = (self._link.ends_ns(), self.prefill.ends_ns(), self.decode.ends_ns())
        return sorted((at_ns, which) for which, at_ns in enumerate(ends) if at_ns is not None)

    @property
    def _under_way(self) -> bool:
        """Something will end, even if it is not known when."""
        return self.prefill.in_flight or self.decode.in_flight or self.decode.scheduler.running.awaits_kv
