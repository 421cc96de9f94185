"""The loop on a virtual clock: arrivals, closed loop, deadlines, stops, overlap, and what is recorded when."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from engines.base import RunRecord, Signal, SilentObserver
from engines.ledger import StepArray
from engines.loop import Instance, VirtualClock
from engines.recorded_loop import run_loop
from engines.request_table import RequestRow
from engines.scheduling.request import Request
from tests.engines.scheduling.driving import STEP_NS, CountingExecutor, config, run_counting
from tests.ledger_identities import check_identities
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.source import PlanSource


def _by_index(record: RunRecord) -> list[RequestRow]:
    return sorted(record.rows, key=lambda row: row.i)


def test_a_lone_request_is_timed_exactly() -> None:
    record = run_counting(RequestPlan.of([20], [3]), config())  # two prompt chunks of 16 and 4, then two decodes
    (row,) = record.rows
    assert (row.scheduled, row.sent, row.submitted) == (0, 0, 0)
    assert (row.first, row.last, row.end) == (2 * STEP_NS, 4 * STEP_NS, 4 * STEP_NS)
    assert record.event_values.tolist() == [2, 3, 4]
    assert record.event_times_ns().tolist() == [2 * STEP_NS, 3 * STEP_NS, 4 * STEP_NS]
    assert (row.status, row.finish_reason, row.token_source) == ("completed", "length", "engine")
    assert [(s.slot, s.admitted, s.sampled, s.ended) for s in row.stints] == [(0, 1, 2, 4)]


def test_open_loop_waiting_for_the_running_step_is_inside_ttft() -> None:
    """1000 requests per second and 1 ms steps: request i is due at i ms; an idle engine jumps to the next arrival."""
    record = run_counting(RequestPlan.of([1, 1], [1, 1]), config(), rate_per_s=400.0)  # due at 0 and at 2.5 ms
    first, second = _by_index(record)
    assert second.scheduled == second.sent == second.submitted == 2_500_000
    assert second.first == 3_500_000
    record = run_counting(RequestPlan.of([1, 1], [4, 1]), config(), rate_per_s=400.0)
    first, second = _by_index(record)
    assert first.end == 4 * STEP_NS
    assert (second.sent, second.submitted, second.first) == (2_500_000, 3_000_000, 4_000_000)


def test_closed_loop_schedules_at_the_moment_the_slot_came_free() -> None:
    record = run_counting(RequestPlan.of([1] * 4, [2, 5, 2, 2]), config(), concurrency=2)
    rows = _by_index(record)
    assert [row.scheduled for row in rows] == [0, 0, 2 * STEP_NS, 4 * STEP_NS]
    assert max(record.steps["running"]) == 2


def test_rejected_at_submit_frees_its_place_in_the_closed_loop() -> None:
    record = run_counting(RequestPlan.of([5000, 1, 5000, 1], [2, 2, 2, 2]), config(), concurrency=1)
    rows = _by_index(record)
    assert [row.status for row in rows] == ["failed", "completed", "failed", "completed"]
    assert rows[0].first is None
    assert rows[0].error is not None
    assert rows[3].scheduled == 2 * STEP_NS


def test_deadline_cancels_what_still_runs_and_issues_nothing_more() -> None:
    plan = RequestPlan.of([1] * 50, [100] * 50)
    record = run_counting(plan, config(max_num_seqs=2), concurrency=2, duration_s=0.15, drain_s=0.02)
    statuses = [row.status for row in record.rows]
    assert statuses.count("completed") == 2  # ended at 100 ms
    assert statuses.count("cancelled") == 2  # started at 100 ms, cancelled at 170 ms
    assert record.rows[-1].end == 170_000_000
    assert record.rows[-1].output_tokens == 70
    assert not record.interrupted


class _StopAfter(SilentObserver):
    """Asks to stop after some steps; notes the order in which it is told of things."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.seen_steps = 0
        self.signals: list[Signal] = []

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        self.left -= 1
        return self.left < 0

    def steps_recorded(self, steps: StepArray) -> None:
        self.seen_steps += len(steps)

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        assert self.seen_steps >= max(events.tolist(), default=0), "events point at steps not handed on yet"

    def sampled(self, signal: Signal) -> None:
        self.signals.append(signal)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_stop_cancels_the_rest_and_keeps_what_was_done(depth: int) -> None:
    plan = RequestPlan.of([1] * 9, [3] * 6 + [900] * 3)
    clock, observer = VirtualClock(), _StopAfter(700)
    record = run_loop(
        Instance(config(max_num_seqs=3, kv_blocks=1000).build(), CountingExecutor(clock), depth),
        PlanSource(plan, Pacing(plan.arrivals_ugap)),
        clock,
        observer,
        planned=9,
        make_request=lambda one: Request(one.index, one.prompt_tokens, one.output_tokens),
    )
    assert record.interrupted
    assert [row.status for row in record.rows] == ["completed"] * 6 + ["cancelled"] * 3
    assert observer.seen_steps == len(record.steps)
    assert len(observer.signals) == len(record.signals) >= 2
    assert record.signals[-1].running == 3
    assert record.signals[-1].device_busy == pytest.approx(1.0)
    check_identities(record.steps, 3, 1000)


def test_overlap_gives_the_same_tokens_in_no_more_steps_than_it_must() -> None:
    plan = RequestPlan.of([3 + i % 11 for i in range(40)], [1 + i % 17 for i in range(40)])
    plain = run_counting(plan, config(kv_blocks=30))
    overlapped = run_counting(plan, config(kv_blocks=30), depth=1)
    assert [row.output_tokens for row in _by_index(plain)] == [row.output_tokens for row in _by_index(overlapped)]
    # a slot or block given up is seen one step later, once for each request at most
    assert len(plain.steps) <= len(overlapped.steps) <= len(plain.steps) + 40


def test_two_runs_are_the_same_to_the_bit() -> None:
    plan = RequestPlan.of([3 + i % 11 for i in range(40)], [1 + i % 17 for i in range(40)])
    one, two = (run_counting(plan, config(kv_blocks=20), rate_per_s=300.0) for _ in range(2))
    assert one.rows == two.rows
    assert one.steps.tobytes() == two.steps.tobytes()
    assert one.event_values.tolist() == two.event_values.tolist()
