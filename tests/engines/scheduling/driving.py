"""Tiny helpers to drive a scheduler by hand: requests, a fake device that only counts, and a checked step loop."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from engines.base import RunRecord, SilentObserver
from engines.ledger import LEDGER
from engines.loop import Instance, VirtualClock
from engines.recorded_loop import run_loop
from engines.scheduling.config import SchedulerConfig
from engines.scheduling.delivery import Outcome
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Scheduler
from tests.ledger_identities import check_identities
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.source import Incoming, PlanSource

STEP_NS = 1_000_000


class CountingExecutor:
    """Every step takes one millisecond of virtual time and gives tokens that depend on (request, position) alone."""

    def __init__(self, clock: VirtualClock, vocab: int = 50) -> None:
        self._clock = clock
        self._vocab = vocab
        self._submitted: deque[tuple[StepPlan, int]] = deque()
        self._end_ns = 0

    def submit(self, plan: StepPlan) -> None:
        self._submitted.append((plan, self._clock.now_ns()))

    def collect(self) -> StepResult:
        plan, now_ns = self._submitted.popleft()
        start_ns = max(now_ns, self._end_ns)
        self._end_ns = start_ns + STEP_NS
        return StepResult(plan.step, fake_tokens(plan, self._vocab), start_ns, self._end_ns, STEP_NS)


def fake_tokens(plan: StepPlan, vocab: int = 50) -> np.ndarray:
    return np.array(
        [
            (plan.requests[row].index * 7919 + int(plan.starts[row] + plan.counts[row]) * 31) % vocab
            for row in np.flatnonzero(plan.samples)
        ],
        dtype=np.int32,
    )


def config(**options: object) -> SchedulerConfig:
    defaults: dict[str, object] = {
        "kv_blocks": 100,
        "block_size": 4,
        "max_model_len": 1000,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "watermark": 0.0,
    }
    return SchedulerConfig(**(defaults | options))  # type: ignore[arg-type]


def req(index: int, prompt: int, output: int, **more: object) -> Request:
    return Request(index, prompt, output, **more)  # type: ignore[arg-type]


class Memory:
    """KV memory as an executor would treat it, holding in every place whose token prefix was computed there.

    Whatever is shared, swapped or computed again, each row must find its own prefix in its blocks.
    """

    def __init__(self) -> None:
        self._device: dict[tuple[int, int], object] = {}
        self._host: dict[tuple[int, int], object] = {}
        self._launched: deque[tuple[StepPlan, list[list[int]]]] = deque()

    def launch(self, plan: StepPlan) -> None:
        self._launched.append((plan, [plan.tables[slot].tolist() for slot in plan.slots]))

    def compute(self, block_size: int) -> None:
        plan, tables = self._launched.popleft()
        for device, host in plan.swap_out.tolist():
            for offset in range(block_size):
                self._host[host, offset] = self._device.get((device, offset))
        for host, device in plan.swap_in.tolist():
            for offset in range(block_size):
                self._device[device, offset] = self._host[host, offset]
        for request, table, start, count in zip(plan.requests, tables, plan.starts, plan.counts, strict=True):
            for position in range(int(start)):
                found = self._device.get((table[position // block_size], position % block_size))
                assert found == _content(request, position), f"{request}: wrong KV at {position}"
            for position in range(int(start), int(start + count)):
                self._device[table[position // block_size], position % block_size] = _content(request, position)


def _content(request: Request, position: int) -> object:
    if request.tokens is None:
        return request.index, position
    return request.tokens[: position + 1].tobytes()


@dataclass
class Driven:
    """A scheduler driven step by step, with everything checked after each."""

    scheduler: Scheduler
    config: SchedulerConfig
    depth: int = 0
    plans: list[StepPlan] = field(default_factory=list)
    ledger: list[np.void] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    in_flight: deque[StepPlan] = field(default_factory=deque)
    written: deque[dict[int, Request]] = field(default_factory=deque)  # per step in flight: block -> its writer
    tokens: object = staticmethod(fake_tokens)
    memory: Memory = field(default_factory=lambda: Memory())
    now_ns: int = 0

    @staticmethod
    def of(depth: int = 0, eos_ids: frozenset[int] = frozenset(), **options: object) -> Driven:
        chosen = config(**options)
        return Driven(chosen.build(eos_ids), chosen, depth)

    def submit(self, *requests: Request) -> Driven:
        for request in requests:
            self._take(self.scheduler.submit(request, self.now_ns))
        return self

    def abort(self, index: int) -> None:
        self._take(self.scheduler.abort(index))
        self.scheduler.check_invariants()

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule(self.now_ns)
        if plan is None and not self.in_flight and (wake_ns := self.scheduler.wake_at_ns) is not None:
            self.now_ns = max(self.now_ns, wake_ns)
        if plan is not None:
            self._check_plan(plan)
            self.memory.launch(plan)
            self.plans.append(plan)
            self.in_flight.append(plan)
        self.scheduler.check_invariants()
        return plan

    def collect(self) -> Outcome:
        plan = self.in_flight.popleft()
        self.written.popleft()
        self.memory.compute(self.config.block_size)
        tokens = self.tokens(plan)  # type: ignore[operator]
        end_ns = self.now_ns = self.now_ns + STEP_NS
        outcome = self.scheduler.update(StepResult(plan.step, tokens, end_ns - STEP_NS, end_ns, STEP_NS))
        self._take(outcome)
        self.scheduler.check_invariants()
        return outcome

    def step(self) -> StepPlan | None:
        """Plan one step; collect so that at most `depth` steps stay in flight."""
        plan = self.schedule()
        if len(self.in_flight) > self.depth or (plan is None and self.in_flight):
            self.collect()
        return plan

    def drain(self, limit: int = 10_000) -> Driven:
        """Step until idle, then check that the pool is clean and the ledger adds up."""
        for _ in range(limit):
            if self.scheduler.idle:
                break
            self.step()
        assert self.scheduler.idle, f"not idle after {limit} steps"
        self.scheduler.check_invariants()
        check_identities(self.steps, self.config.max_num_seqs, self.config.kv_blocks)
        return self

    @property
    def steps(self) -> np.ndarray:
        out = np.zeros(len(self.ledger), LEDGER)
        for i, row in enumerate(self.ledger):
            out[i] = row
        return out

    def _take(self, outcome: Outcome) -> None:
        self.finished += outcome.finished
        if outcome.ledger_row is not None:
            self.ledger.append(outcome.ledger_row)

    def _check_plan(self, plan: StepPlan) -> None:
        c = self.config
        assert plan.launched_tokens <= c.max_num_batched_tokens
        assert len(plan.slots) + len(plan.dead_slots) <= c.max_num_seqs
        assert len(set(plan.slots.tolist())) == len(plan.slots), "two rows in one slot"
        assert not any(request.finished for request in plan.requests)
        writes: list[tuple[int, int]] = []
        writer: dict[int, Request] = {}
        for request, slot, start, count in zip(plan.requests, plan.slots, plan.starts, plan.counts, strict=True):
            for position in range(int(start), int(start + count)):
                block = int(plan.tables[slot, position // c.block_size])
                assert block != 0, "a real token would be written to the dummy block"
                assert self.scheduler.kv.pool.references(block) == 1, "a shared block would be written"
                writes.append((block, position % c.block_size))
                writer[block] = request
        assert len(set(writes)) == len(writes), "two writers of one place"
        for earlier in self.written:
            stolen = [block for block, request in writer.items() if earlier.get(block, request) is not request]
            assert not stolen, f"blocks {stolen} still belong to a step in flight"
        for launched in self.in_flight:
            slots = dict(zip(launched.slots.tolist(), launched.requests, strict=True))
            for slot, request in zip(plan.slots.tolist(), plan.requests, strict=True):
                assert slots.get(slot, request) is request, f"slot {slot} still belongs to a step in flight"
        self.written.append(writer)


def run_counting(plan: RequestPlan, chosen: SchedulerConfig, *, depth: int = 0, **pacing: object) -> RunRecord:
    """A whole run on the virtual clock."""
    clock = VirtualClock()

    def make(one: Incoming) -> Request:
        return Request(
            one.index, one.prompt_tokens, one.output_tokens, scheduled_ns=one.scheduled_ns, sent_ns=one.sent_ns
        )

    return run_loop(
        Instance(chosen.build(), CountingExecutor(clock), depth),
        PlanSource(plan, Pacing(plan.arrivals_ugap, **pacing)),  # type: ignore[arg-type]
        clock,
        SilentObserver(),
        planned=len(plan),
        make_request=make,
    )
