"""A disaggregated run, taken apart: figures from the case that is worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from engines.base import SilentObserver
from engines.request_table import RequestTable
from engines.scheduling.policies.preemption import PriorityPreemption
from engines.scheduling.request import Request
from engines.scheduling.slots import Slots
from reports.breakdown import breakdown, total
from reports.instances import records_by_instance, steps_by_instance, transfers
from reports.over_time import signals_over_time
from reports.slots import SlotState, num_slots, slot_counts, slot_spans
from reports.slowest import slowest_requests
from reports.summary import completed_run
from tests.engines.test_disaggregated import MS, pair, run
from tests.ledger_identities import check_identities
from tests.reports.factory import header
from workloads.pacing import Pacing
from workloads.plan import UGAP, RequestPlan

PAPER = run(pair({}, {}), [(20, 3), (8, 2)])  # see test_times_as_on_paper
BUSY = run(
    pair({"kv_blocks": 40}, {"kv_blocks": 24, "max_num_seqs": 6}),
    [((7 * i) % 60 + 1, (11 * i) % 30 + 1) for i in range(60)],
    at_ms=[4 * i for i in range(60)],
)


def test_transfers_as_on_paper() -> None:
    """Both were asked for at 3.8 ms; the first took 10 ms on the link, the second came behind it."""
    found = transfers(PAPER)
    assert found is not None
    assert (found.requests, found.blocks) == (2, 7)
    assert (found.wait_ms.mean, found.wait_ms.max) == (0, 0)
    assert (found.transfer_ms.mean, found.transfer_ms.max) == (12, 14)


def test_signals_as_on_paper() -> None:
    """3.8 of 36.8 ms one device was busy, 23 of 36.8 the other."""
    summary = completed_run(PAPER, header(event_unit="step")).summary
    assert summary is not None
    prefill, decode = (summary.instances[name].signals for name in ("prefill", "decode"))
    assert (prefill.device_busy, decode.device_busy) == (pytest.approx(3.8 / 36.8), pytest.approx(23 / 36.8))
    assert summary.signals.device_busy == pytest.approx(26.8 / 73.6)
    assert (prefill.steps, decode.steps, summary.signals.steps) == (1, 2, 3)
    assert decode.running_mean == pytest.approx(2 * 23 / 36.8)  # both from 13.8 ms on, when the first KV is there
    assert prefill.running_mean == pytest.approx(2 * 3.8 / 36.8)
    assert summary.signals.running_mean == pytest.approx(2 * 26.8 / 36.8)
    assert decode.waiting_mean == pytest.approx(2 * 10 / 36.8)
    assert summary.instances["decode"].waste.launched_tokens == 3


def test_parts_as_on_paper() -> None:
    parts = breakdown(PAPER)
    first = np.argsort(PAPER.column("i")[parts.row])
    in_ms = {name: (column[first] / MS).tolist() for name, column in parts.e2el_ns().items()}
    assert in_ms == {"prefill": [3.8, 3.8], "transfer": [10, 14], "decode": [23, 19]}


def test_parts_of_a_request_without_a_token_after_its_kv_transfer() -> None:
    """An EOS right behind the first token is no output: the request's time ends with its first token."""
    rows = [
        msgspec.structs.replace(row, last=row.first, output_tokens=1, events=1, finish_reason="stop")
        for row in PAPER.rows
    ]
    parts = breakdown(replace(PAPER, rows=RequestTable.of(rows)))
    in_ms = {name: (column / MS).tolist() for name, column in parts.e2el_ns().items()}
    assert in_ms == {"prefill": [3.8, 3.8]}


def test_parts_add_up_where_there_is_pressure() -> None:
    assert BUSY.steps["preempted"].sum() > 0
    parts = breakdown(BUSY)
    whole = (BUSY.column_ns("last") - BUSY.column_ns("scheduled"))[parts.row]
    assert total(parts.e2el_ns()).tolist() == whole.tolist()
    assert {"handover", "transfer", "preempted", "queue"} <= set(parts.e2el_ns())
    assert all((column >= 0).all() for column in parts.e2el_ns().values())
    assert all((column >= 0).all() for column in parts.blocked_ns.values())
    assert (total(parts.blocked_ns) <= parts.ttft_ns["queue"]).all()


@pytest.fixture
def preempted_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before a preemption waited until a request had computed a position; files of those runs are still read."""

    def candidates(_: PriorityPreemption, head: Request, slots: Slots) -> list[int]:
        behind = slots.less_urgent(head)
        found: list[int] = behind[slots.active[behind] & ~slots.arriving[behind]][::-1].tolist()
        return found

    monkeypatch.setattr(PriorityPreemption, "candidates", candidates)


@pytest.mark.usefixtures("preempted_without_progress")
def test_parts_of_a_request_preempted_before_a_step_was_launched_for_it() -> None:
    """Request 0's KV arrives at 3.4 ms, and just then it must yield to request 1. The step that was planned for it was
    never launched; its number, 3, is that of request 2's prompt."""
    plan = RequestPlan.of(
        [4, 4, 4], [3, 3, 1], priority=np.array([1, 0, 0]), arrivals_ugap=np.array([0, 2 * UGAP, 4 * UGAP])
    )
    decode = {"max_num_seqs": 1, "order": "priority", "preempt_for_priority": True}
    record = pair({}, decode).run(plan, Pacing(plan.arrivals_ugap, rate_per_s=1000), SilentObserver())
    parts = breakdown(record)
    first = np.flatnonzero(record.column("i")[parts.row] == 0)
    in_ms = {name: float(column[first][0] / MS) for name, column in parts.e2el_ns().items()}
    assert record.steps["instance"].tolist()[:3] == [0, 0, 0]
    assert (in_ms["prefill"], in_ms["transfer"]) == (pytest.approx(1.4), pytest.approx(2))
    # The end of step 3, at 5.4 ms, is the first that is known after it got up; it is back at 27.4 and done at 39.9.
    assert (in_ms["preempted"], in_ms["decode"]) == (pytest.approx(22), pytest.approx(39.9 - 27.4 + 2))


@pytest.mark.usefixtures("preempted_without_progress")
def test_parts_of_a_request_preempted_when_its_kv_had_arrived_without_a_step() -> None:
    """Request 1 is admitted during request 0's last step, 14.4 to 25.4 ms, and its KV arrives at 32.4, when it must
    yield to request 3: that is when it got up, and not when that step ended."""
    plan = RequestPlan.of(
        [4, 36, 4, 4],
        [3, 3, 3, 3],
        priority=np.array([0, 1, 0, 0]),
        arrivals_ugap=np.array([0, UGAP * 3 // 2, 20 * UGAP, 20 * UGAP]),
    )
    decode = {"max_num_seqs": 2, "order": "priority", "preempt_for_priority": True}
    record = pair({}, decode).run(plan, Pacing(plan.arrivals_ugap, rate_per_s=1000), SilentObserver())
    row = next(row for row in record.rows if row.i == 1)
    assert row.preemptions == 1
    assert row.transfer_ended == 32.4 * MS
    parts = breakdown(record)
    of_it = record.column("i")[parts.row] == 1
    back_ms = record.steps["now_ns"][row.stints[-1].admitted - 1] / MS
    assert parts.e2el_ns()["preempted"][of_it][0] / MS == pytest.approx(back_ms - 32.4)


def test_each_instance_is_a_run_of_its_own() -> None:
    """The slot timeline agrees with the ledger of each instance."""
    parts = records_by_instance(BUSY)
    assert list(parts) == ["prefill", "decode"]
    for (name, record), blocks, slots in zip(parts.items(), (40, 24), (4, 6), strict=True):
        steps = record.steps
        check_identities(steps, slots, blocks)
        assert num_slots(record) == slots
        edges = np.arange(len(steps) + 1)
        counts = slot_counts(slot_spans(record, header(event_unit="step")), slots, edges).sum(axis=0)
        occupied = counts[:, [SlotState.PREFILL, SlotState.DECODE, SlotState.TRANSFER]].sum(axis=1)
        assert occupied.tolist() == steps["active_slots"].tolist(), name
        assert counts[:, SlotState.TRANSFER].any() == (name == "decode")
    assert sum(len(row.stints) for record in parts.values() for row in record.rows) == BUSY.stints()[0].shape[0]
    lost = [sum(row.preemptions for row in record.rows) for record in parts.values()]
    assert lost == [steps["preempted"].sum() for steps in steps_by_instance(BUSY.steps).values()]


def test_a_run_that_ends_while_kv_is_on_its_way() -> None:
    """Request 1 is cut off in transit (201.4 to 301.4 ms), in a slot for a step that was never launched."""
    plan = RequestPlan.of([4, 4], [2, 2], arrivals_ugap=np.array([0, 2 * UGAP]))
    pacing = Pacing(plan.arrivals_ugap, rate_per_s=10, duration_s=0.25, drain_s=0)
    record = pair({}, {}, block_ms=100).run(plan, pacing, SilentObserver())
    assert [row.status for row in record.rows] == ["completed", "cancelled"]
    decode = records_by_instance(record)["decode"]
    assert [stint.admitted for row in decode.rows for stint in row.stints] == [1, 2]
    assert len(decode.steps) == 1
    counts = slot_counts(slot_spans(decode, header(event_unit="step")), 4, np.array([0, 1])).sum(axis=0)
    assert counts[0, SlotState.DECODE] == 1


def test_a_device_is_never_busier_than_all_the_time() -> None:
    courses = signals_over_time(BUSY)
    assert list(courses) == ["prefill", "decode"]
    for course in courses.values():
        assert all(value is not None and 0 <= value <= 1 + 1e-9 for value in course.values["device_busy"])


def test_the_slowest_requests_are_shown_with_the_prompts_of_their_step() -> None:
    found = slowest_requests(BUSY, breakdown(BUSY))[0].neighbours
    assert found is not None
    assert BUSY.steps["instance"][found.step - 1] == 0
