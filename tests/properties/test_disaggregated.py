"""Two instances: whatever the pools, policies, durations and aborts, no request is lost and no KV mixed up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.base import RunRecord, SilentObserver
from engines.disaggregated import TimedInstance, TwoInstances
from engines.loop import VirtualClock
from engines.recorded_loop import run_loop
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from engines.scheduling.kv_transfer import Transfer
from engines.scheduling.plan import StepPlan, StepResult
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Scheduler
from tests.engines.scheduling.driving import Driven, Memory, fake_tokens
from tests.ledger_identities import check_identities

BLOCK_SIZE = 3
TENANTS = ("a", "b")
MS = 1_000_000


class Device:
    """A step lasts as the next of `durations_ms` says; its KV is looked at when it ends, in `memory`."""

    def __init__(self, clock: VirtualClock, durations_ms: Sequence[int]) -> None:
        self.memory = Memory()
        self.check = lambda: None  # after every plan
        self._clock = clock
        self._durations_ms = durations_ms
        self._submitted: deque[tuple[StepPlan, int, int]] = deque()
        self._end_ns = 0
        self._steps = 0

    def submit(self, plan: StepPlan) -> None:
        self.memory.launch(plan)
        start_ns = max(self._clock.now_ns(), self._end_ns)
        self._end_ns = start_ns + MS * self._durations_ms[self._steps % len(self._durations_ms)]
        self._steps += 1
        self._submitted.append((plan, start_ns, self._end_ns))
        self.check()

    def ends_ns(self) -> int | None:
        return self._submitted[0][2] if self._submitted else None

    def collect(self) -> StepResult:
        plan, start_ns, end_ns = self._submitted.popleft()
        self.memory.compute(BLOCK_SIZE)
        return StepResult(plan.step, fake_tokens(plan), start_ns, end_ns, end_ns - start_ns)


class Carrier:
    """A transfer's targets hold garbage until its end, when the sources are read: neither may have been used."""

    def __init__(self, clock: VirtualClock, prefill: Memory, decode: Memory, block_ms: int) -> None:
        self._clock, self._from, self._to, self._block_ms = clock, prefill, decode, block_ms
        self._started: deque[tuple[Transfer, int]] = deque()
        self._end_ns = 0

    def start(self, transfer: Transfer) -> None:
        self._to._device.update({(block, at): "garbage" for block in transfer.targets for at in range(BLOCK_SIZE)})
        lasts_ns = MS * self._block_ms * len(transfer.sources) + 1
        self._end_ns = max(self._clock.now_ns(), self._end_ns) + lasts_ns
        self._started.append((transfer, self._end_ns))

    def ends_ns(self) -> int | None:
        return self._started[0][1] if self._started else None

    def collect(self) -> Transfer:
        transfer, _ = self._started.popleft()
        for source, target in zip(transfer.sources, transfer.targets, strict=True):
            for at in range(BLOCK_SIZE):
                self._to._device[target, at] = self._from._device.get((source, at))
        return transfer


class Script:
    """A Source: requests and aborts at their times."""

    def __init__(self, requests: Sequence[tuple[int, Request]], aborts: Sequence[tuple[int, int]]) -> None:
        self._requests = deque(sorted(requests, key=lambda one: one[0]))
        self._aborts = deque(sorted(aborts))
        self.ended: list[int] = []

    def poll(self, now_ns: int) -> tuple[list[Request], list[int]]:
        new, aborted = [], []
        while self._requests and self._requests[0][0] * MS <= now_ns:
            new.append(self._requests.popleft()[1])
        while self._aborts and self._aborts[0][0] * MS <= now_ns:
            aborted.append(self._aborts.popleft()[1])
        return new, aborted

    def next_due_ns(self) -> int | None:
        due = [queue[0][0] * MS for queue in (self._requests, self._aborts) if queue]
        return min(due, default=None)

    def completed(self, index: int, now_ns: int) -> None:
        self.ended.append(index)

    @property
    def exhausted(self) -> bool:
        return not self._requests and not self._aborts


def _instance(**sizes: object) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries(
        {
            "kv_blocks": st.integers(1, 14),
            "block_size": st.just(BLOCK_SIZE),
            "max_num_seqs": st.integers(1, 6),
            "max_num_batched_tokens": st.integers(6, 20),
            "max_model_len": st.just(60),
            "order": st.sampled_from(["fcfs", "shortest-prompt", "shortest-predicted", "priority", "fair"]),
            "watermark": st.sampled_from([0.0, 0.3]),
            "admission": st.sampled_from(["full-prompt", "full-reserve", "optimistic", "prompt-fits", "peak"]),
            "on_kv_pressure": st.sampled_from(["recompute", "reject"]),
            "victim": st.sampled_from(["newest", "last", "least-computed", "lowest-priority"]),
            "skip_ahead": st.sampled_from([0, 2]),
            "prompt_buckets": st.sampled_from([(), (4,), (3, 10)]),
            "prefix_caching": st.booleans(),
            "preempt_for_priority": st.booleans(),
        }
        | sizes
    ).map(lambda one: one if one["order"] == "priority" else one | {"preempt_for_priority": False})


prefill_instance = _instance(
    chunked_prefill=st.booleans(), prefill=st.sampled_from(["decode-first", "prefill-first", "in-order"])
)
lengths = st.tuples(
    st.integers(1, 24), st.integers(1, 16), st.integers(0, 30), st.sampled_from(TENANTS), st.integers(0, 2)
)
aborting = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=4)
durations = st.lists(st.integers(1, 9), min_size=1, max_size=4)
Wanted = list[tuple[int, int, int, str, int]]
Chosen = tuple[Any, ...]


def _prompt(index: int, length: int) -> np.ndarray:
    return np.full(length, index % 2, np.int32)


def _requests(wanted: Wanted, eos: bool) -> list[tuple[int, Request]]:
    requests = []
    for i, (prompt, output, at, tenant, priority) in enumerate(wanted):
        request = Request(i, prompt, output, prompt=_prompt(i, prompt), tenant=tenant, priority=priority)
        request.ignore_eos = not eos
        requests.append((at, request))
    return requests


class Played:
    def __init__(
        self, prefill: dict[str, object], decode: dict[str, object], wanted: Wanted, aborts: list[tuple[int, int]],
        prefill_ms: list[int], decode_ms: list[int], block_ms: int, depth: int, eos: bool,
    ) -> None:  # fmt: skip
        self.config = DisaggregatedConfig(SchedulerConfig(**prefill), SchedulerConfig(**decode))  # type: ignore[arg-type]
        clock = VirtualClock()
        self.schedulers: tuple[Scheduler, Scheduler] = self.config.build(frozenset({3, 11}) if eos else frozenset())
        devices = Device(clock, prefill_ms), Device(clock, decode_ms)
        for device in devices:
            device.check = self.check
        link = Carrier(clock, devices[0].memory, devices[1].memory, block_ms)
        first, second = (TimedInstance(*one, depth) for one in zip(self.schedulers, devices, strict=True))
        timed = _requests(wanted, eos)
        self.requests = [request for _, request in timed]
        self.source = Script(timed, aborts)
        self.record: RunRecord = run_loop(
            TwoInstances(first, second, link),
            self.source,  # type: ignore[arg-type]
            clock,
            SilentObserver(),
            planned=len(wanted),
            make_request=lambda one: one,  # type: ignore[return-value, arg-type]
        )
        self.check()

    def check(self) -> None:
        for scheduler in self.schedulers:
            scheduler.check_invariants()


runs = st.tuples(
    prefill_instance, _instance(), st.lists(lengths, min_size=1, max_size=16), aborting, durations, durations,
    st.integers(0, 6), st.integers(0, 1), st.booleans(),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(runs)
def test_all_ends_once_and_both_pools_drain(chosen: Chosen) -> None:
    """Device and Carrier check on the way that every row finds its own prefix in its blocks."""
    run = Played(*chosen)
    count = len(run.requests)
    assert sorted(run.source.ended) == list(range(count))
    assert sorted(row.i for row in run.record.rows) == list(range(count))
    for scheduler in run.schedulers:
        assert scheduler.idle
        assert scheduler.kv.available == scheduler.kv.num_blocks
    for request in run.requests:
        assert request.output_tokens == len(request.event_steps())
        assert (np.diff(request.event_steps()) > 0).all()
        if request.finish_reason == "length":
            assert request.output_tokens == request.max_output_tokens
    steps = run.record.steps
    assert steps["step"].tolist() == list(range(1, len(steps) + 1))
    assert (np.diff(steps["now_ns"]) >= 0).all()
    assert steps["sampled_tokens"].sum() == sum(request.output_tokens for request in run.requests)
    for number, config in enumerate((run.config.prefill, run.config.decode)):
        own = steps[steps["instance"] == number]
        check_identities(own, config.max_num_seqs, config.kv_blocks)
        assert (np.diff(own["end_ns"]) > 0).all()
    assert not steps["decode_rows"][steps["instance"] == 0].any()


@settings(max_examples=100, deadline=None)
@given(runs)
def test_a_request_has_a_slot_in_one_instance_after_the_other(chosen: Chosen) -> None:
    """First slots of prompts, then slots of the decode instance; every token from the instance whose slot it had."""
    run = Played(*chosen)
    prefill_slots = run.config.prefill.max_num_seqs
    for row, request in zip(run.record.rows, _in_order(run), strict=True):
        decodes = [stint.slot >= prefill_slots for stint in row.stints]
        assert decodes == sorted(decodes)
        instances = run.record.steps["instance"][request.event_steps().astype(np.int64) - 1].tolist()
        assert instances == [0, *[1] * (len(instances) - 1)][: len(instances)]
        for one, decoding in zip(row.stints, decodes, strict=True):
            if one.sampled:
                assert run.record.steps["instance"][one.admitted - 1] == decoding


def _in_order(run: Played) -> list[Request]:
    return [run.requests[row.i] for row in run.record.rows]


@settings(max_examples=100, deadline=None)
@given(runs)
def test_tokens_are_those_of_one_instance_alone(chosen: Chosen) -> None:
    run = Played(*chosen)
    for request in run.requests:
        if request.finish_reason == "length":
            solo = Request(request.index, request.prompt_tokens, request.max_output_tokens)
            solo.tokens = np.zeros(request.prompt_tokens + request.max_output_tokens, np.int32)
            solo.tokens[: request.prompt_tokens] = _prompt(request.index, request.prompt_tokens)
            Driven.of(kv_blocks=100, max_model_len=100).submit(solo).drain()
            assert request.tokens is not None
            assert request.tokens.tolist() == solo.tokens.tolist()


def test_decodes_go_on_where_no_prompt_they_wait_for_has_a_block() -> None:
    """Two requests share the blocks of a prefix, and the second took the last block, which the prompt of the first
    needs: the prefill instance planned nothing, for ever."""
    prefill = {
        "kv_blocks": 4, "block_size": 3, "max_num_seqs": 2, "max_num_batched_tokens": 7, "max_model_len": 40,
        "order": "priority", "ageing": 100.0, "skip_ahead": 2, "prefix_caching": True, "preempt_for_priority": True,
        "prefill": "prefill-first", "admission": "prompt-fits", "on_kv_pressure": "reject", "victim": "least-computed",
        "max_prompt_chunk": 4,
    }  # fmt: skip
    decode = {"kv_blocks": 12, "block_size": 3, "max_num_seqs": 3, "max_num_batched_tokens": 15, "max_model_len": 40}
    wanted = [(11, 2, 1, "b", 2), (14, 2, 5, "a", 2), (12, 3, 5, "b", 0), (4, 3, 2, "a", 1), (7, 7, 3, "b", 0)]
    run = Played(prefill, decode, wanted, [], [1, 6, 2], [7, 7, 2], 0, 0, False)
    assert sorted(run.source.ended) == list(range(len(wanted)))
