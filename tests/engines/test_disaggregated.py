"""Two instances on a virtual clock: times that can be worked out on paper, and pools that are too small."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from engines.base import Observer, RunRecord, SilentObserver
from engines.disaggregated import TimedInstance, TwoInstances
from engines.ledger import StepArray
from engines.loop import VirtualClock
from engines.request_table import RequestRow
from engines.scheduling.config import DisaggregatedConfig, SchedulerConfig
from engines.scheduling.request import Request
from engines.scheduling.resource_gate import Quota
from engines.simulated.cost import CostExecutor
from engines.simulated.data_sheet import Deployment, step_times_of
from engines.simulated.disaggregated import SimulatedDisaggregatedEngine, TimedLink
from engines.simulated.hardware import find_hardware
from engines.simulated.shapes import find_shape
from engines.simulated.step_time import DecodeTerms, FittedStepTimes, GapTerms, MixedTerms, Origin
from tests.engines.simulated.small_runs import run_step_by_step
from tests.ledger_identities import check_identities
from workloads.pacing import Pacing
from workloads.plan import UGAP, RequestPlan

MS = 1_000_000
# A step with a prompt in it takes 1 ms and 0.1 ms a token, one that only decodes 10 ms and 1 ms a row.
STEP_TIMES = FittedStepTimes(
    calibrated=True,
    decode=DecodeTerms(step=10.0 * MS, row=1.0 * MS, kv=0.0),
    mixed=MixedTerms(
        step=1.0 * MS, token=0.1 * MS, beyond_knee=0, knee_tokens=10**9, row=0, kv=0, pair=0, prefill_kv=0
    ),
    gap=GapTerms(step=0.0, row=0.0),
    origin=Origin(source="paper"),
)
BLOCK = 4  # tokens
BLOCK_MS = 2  # on the link


def pair(
    prefill: dict[str, object], decode: dict[str, object], law: FittedStepTimes = STEP_TIMES, block_ms: int = BLOCK_MS
) -> SimulatedDisaggregatedEngine:
    defaults: dict[str, object] = {
        "kv_blocks": 100, "block_size": BLOCK, "max_model_len": 200, "max_num_seqs": 4, "max_num_batched_tokens": 40,
        "watermark": 0.0,
    }  # fmt: skip
    first, second = (SchedulerConfig(**(defaults | own)) for own in (prefill, decode))  # type: ignore[arg-type]
    return SimulatedDisaggregatedEngine(
        DisaggregatedConfig(first, second), law, 1e9, kv_bytes_per_token=block_ms * MS // BLOCK
    )


def run(
    engine: SimulatedDisaggregatedEngine,
    lengths: Sequence[tuple[int, int]],
    at_ms: Sequence[float] | None = None,
    observer: Observer | None = None,
    priority: Sequence[int] | None = None,
) -> RunRecord:
    """at_ms: when each request comes; None: all at once."""
    prompts, outputs = zip(*lengths, strict=True)
    arrivals = np.arange(len(prompts)) if at_ms is None else np.array(at_ms)
    columns = {"arrivals_ugap": np.round(arrivals * UGAP).astype(np.int64)}
    columns |= {} if priority is None else {"priority": np.array(priority)}
    plan = RequestPlan.of(prompts, outputs, **columns)
    pacing = Pacing(plan.arrivals_ugap, rate_per_s=None if at_ms is None else 1000.0)
    return engine.run(plan, pacing, observer or SilentObserver())


def rows(record: RunRecord) -> list[tuple[int, int, float, float]]:
    """(instance, step, start and end in ms) of every step, as they were launched."""
    return [(int(one["instance"]), int(one["step"]), one["start_ns"] / MS, one["end_ns"] / MS) for one in record.steps]


def events_ms(record: RunRecord, index: int) -> list[float]:
    row = next(row for row in record.rows if row.i == index)
    times: list[float] = (record.event_times_ns()[row.events_at : row.events_at + row.events] / MS).tolist()
    return times


def test_times_as_on_paper() -> None:
    """Two prompts of 20 and 8 tokens, three and two outputs.

    prefill   |- both, 1 + 2.8 ms -|
    link                       3.8 |-- 5 blocks, 10 ms --| 13.8 |-- 2 blocks, 4 ms --| 17.8
    decode                                          13.8 |- 0: 11 ms -| 24.8 |- 0 and 1: 12 ms -| 36.8
    """
    record = run(pair({}, {}), [(20, 3), (8, 2)])
    assert events_ms(record, 0) == [3.8, 24.8, 36.8]
    assert events_ms(record, 1) == [3.8, 36.8]
    assert rows(record) == [(0, 1, 0.0, 3.8), (1, 2, 13.8, 24.8), (1, 3, 24.8, 36.8)]
    assert record.steps["transfers"].tolist() == [0, 2, 0]
    assert record.steps["transfer_blocks"].tolist() == [0, 7, 0]


def test_steps_run_beside_each_other_and_are_told_in_the_order_of_their_launch() -> None:
    """Request 0 decodes (11 ms a step) while request 1's prompt of 40 tokens is computed (5 ms), which needs 20 ms on
    the link: it joins in the first step that begins after its KV has arrived."""
    record = run(pair({}, {}), [(4, 6), (40, 2)], at_ms=[0, 5])
    # 0: prompt until 1.4, KV until 3.4, then 11 ms each: 14.4, 25.4, 36.4 (with 1: 12 ms) 48.4, 59.4
    # 1: prompt from 5 to 10, admitted when the step ends at 14.4, KV from 14.4 to 34.4
    assert events_ms(record, 0) == pytest.approx([1.4, 14.4, 25.4, 36.4, 48.4, 59.4])
    assert events_ms(record, 1) == pytest.approx([10.0, 48.4])
    assert [one[:2] for one in rows(record)] == [(0, 1), (1, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7)]
    assert record.steps["step"].tolist() == list(range(1, 8))


class Reader(SilentObserver):
    """Reads as a crash would leave it: a request's tokens must not point at steps that are not there yet."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.ended: list[int] = []

    def steps_recorded(self, steps: StepArray) -> None:
        self.steps += steps["step"].tolist()

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        assert events.max(initial=0) <= len(self.steps)
        self.ended.append(row.i)


def test_who_ends_beside_an_earlier_step_is_told_when_that_has_ended() -> None:
    """Request 0 gets its last token in step 4, while a prompt of 400 tokens still takes step 3 on the other side."""
    observer = Reader()
    long = {"max_num_batched_tokens": 400, "max_model_len": 500, "kv_blocks": 200}
    record = run(pair(long, long), [(4, 3), (400, 2)], at_ms=[0, 4], observer=observer)
    assert rows(record)[2:4] == [(0, 3, 4.0, 45.0), (1, 4, 14.4, 25.4)]
    assert observer.steps == list(range(1, len(record.steps) + 1))
    assert observer.ended == [row.i for row in record.rows] == [0, 1]
    assert record.rows[0].end == round(25.4 * MS)


def test_a_single_output_token_needs_no_decode_instance() -> None:
    record = run(pair({}, {"kv_blocks": 1}), [(40, 1), (8, 1)])
    assert [row.status for row in record.rows] == ["completed"] * 2
    assert record.steps["instance"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("prefill", "decode", "says"),
    [
        ({"kv_blocks": 4}, {}, "prefill instance: exceeds_kv: needs 5 blocks (20 positions), pool has 4"),
        ({}, {"kv_blocks": 5}, "decode instance: exceeds_kv: needs 6 blocks (22 positions), pool has 5"),
    ],
)
def test_what_either_side_can_never_hold_is_rejected_at_once(
    prefill: dict[str, object], decode: dict[str, object], says: str
) -> None:
    record = run(pair(prefill, decode), [(20, 3), (4, 2)])
    by_index = {row.i: row for row in record.rows}
    assert (by_index[0].finish_reason, by_index[0].error) == ("rejected", says)
    assert by_index[1].status == "completed"


def test_a_full_decode_pool_holds_back_the_prefill_instance() -> None:
    """sglang#40703, vllm#57104, dynamo#10557: nothing is dropped, nothing stands still, and both pools drain.

    The decode pool holds one request at a time, the prefill pool the KV of two: the third prompt must wait for the
    first request to end, though the prefill instance has nothing to do.
    """
    record = run(pair({"kv_blocks": 10}, {"kv_blocks": 6}), [(20, 4)] * 5)
    assert [row.i for row in record.rows] == [0, 1, 2, 3, 4]
    assert {row.status for row in record.rows} == {"completed"}
    prefill, decode = (record.steps[record.steps["instance"] == one] for one in (0, 1))
    check_identities(prefill, 4, 10)
    check_identities(decode, 4, 6)
    assert decode["running"].max() == 1
    assert prefill["preempted"].sum() == decode["preempted"].sum() == 0
    # Two prompts at once; the first's blocks are free when they have arrived (3 + 10 ms; the second's are kept until
    # there is room for it: the first then has ended, after 3 steps of 11 ms), and the next prompt takes them.
    assert events_ms(record, 0)[0] == events_ms(record, 1)[0] == 5.0
    assert events_ms(record, 0)[-1] == 5 + 10 + 3 * 11
    assert events_ms(record, 2)[0] == 5 + 10 + 3
    assert events_ms(record, 3)[0] == 48 + 10 + 3
    assert events_ms(record, 1)[1] == 48 + 10 + 11
    assert (prefill["kv_kept_blocks"] <= prefill["kv_used_blocks"]).all()
    assert prefill["kv_kept_blocks"].max() == 5


def test_under_pressure_a_request_is_computed_again_where_it_decodes() -> None:
    """Two requests outgrow the decode pool; the newest is preempted; its prompt is computed there, as waste."""
    record = run(pair({}, {"kv_blocks": 12}), [(20, 12), (20, 12)])
    assert {row.status for row in record.rows} == {"completed"}
    decode = record.steps[record.steps["instance"] == 1]
    prefill = record.steps[record.steps["instance"] == 0]
    assert decode["preempted"].sum() == 1
    assert decode["recomputed_tokens"].sum() > 20
    assert prefill["recomputed_tokens"].sum() == 0
    assert [row.preemptions for row in record.rows] == [0, 1]
    assert all(row.output_tokens == row.events == 12 for row in record.rows)


def test_blocks_that_are_still_being_written_are_never_taken_away() -> None:
    """Request 0 runs out of blocks while request 1's KV takes 100 ms to arrive: the older one is preempted."""
    record = run(pair({}, {"kv_blocks": 12}, block_ms=20), [(20, 12), (20, 12)])
    by_index = {row.i: row for row in record.rows}
    assert (by_index[0].preemptions, by_index[1].preemptions) == (1, 0)
    assert {row.output_tokens for row in record.rows} == {12}
    assert by_index[1].transfer_ended == 205 * MS


def test_a_tenant_pays_its_tokens_once() -> None:
    """With 100 tokens to spend, requests of 20 + 30 and 80 + 1 leave a debt of 31: the third may come after 310 ms, and
    its prompt takes 3 more. Where it goes on nothing is left to pay, though 10 tokens a second would take long."""
    prefill, decode = ({"quotas": {"default": Quota(tokens_per_s=rate)}} for rate in (100.0, 10.0))
    record = run(pair(prefill, decode), [(20, 30), (80, 1), (20, 30)])
    assert events_ms(record, 2)[0] == 313
    assert events_ms(record, 2)[1] < 313 + 10 + 2 * 12


@pytest.mark.parametrize("at_step", [2, 4])
def test_a_tenant_is_refunded_where_its_request_ends_at_the_other_instance(at_step: int) -> None:
    """Charged 20 + 180 when its prompt was admitted; aborted while its KV is sent, or after two steps of decoding."""
    engine = pair({"quotas": {"default": Quota(tokens_per_s=100.0)}}, {}, STEP_TIMES)
    clock = VirtualClock()
    prefill, decode = (TimedInstance(one, CostExecutor(STEP_TIMES, clock)) for one in engine.config.build())
    two = TwoInstances(prefill, decode, TimedLink(engine.block_ns, clock))
    account = prefill.scheduler.gate._quotas._accounts["default"]
    request = Request(0, 20, 180)
    two.submit(request, 0)
    while request.output_tokens < at_step - 1:
        two.launch(clock.now_ns())
        assert account.charged in ({0: 200}, {})
        list(two.collect(clock, lambda: 10**18))
    two.launch(clock.now_ns())
    assert (account.tokens, account.charged) == (-100.0, {0: 200})
    two.abort(0)
    assert (account.tokens, account.charged) == (100.0 - request.used_tokens, {})
    assert request.used_tokens == 20 + at_step - 1


def test_a_tenant_keeps_to_its_slots_in_each_instance() -> None:
    record = run(pair({}, {"quotas": {"default": Quota(max_num_seqs=1)}}), [(20, 4)] * 3)
    assert record.steps["running"][record.steps["instance"] == 1].max() == 1
    assert {row.status for row in record.rows} == {"completed"}


def test_a_prompt_waits_for_blocks_that_come_back_and_gives_none_up() -> None:
    """Request 1 keeps 2 of 6 blocks until the only slot to decode is free; request 2 has computed 16 of its 20 tokens
    in the other 4 and waits for a fifth."""
    record = run(
        pair({"kv_blocks": 6, "max_num_batched_tokens": 8, "admission": "optimistic"}, {"max_num_seqs": 1}),
        [(20, 20), (8, 2), (20, 2)],
        at_ms=[0, 30, 40],
    )
    assert not record.steps["preempted"].any()
    assert not record.steps["recomputed_tokens"].any()
    free_ms = events_ms(record, 0)[-1]
    assert events_ms(record, 2)[0] == pytest.approx(free_ms + 2 * BLOCK_MS + 1.4)  # request 1's KV, the last 4 tokens
    assert {row.status for row in record.rows} == {"completed"}


def test_a_request_whose_kv_is_on_its_way_is_not_preempted_before_it_has_used_it() -> None:
    """The only slot is given to request 0, whose KV takes 100 ms to come and which decodes for a step of 11 ms; the
    more urgent request 1 has to wait."""
    urgent = {"order": "priority", "preempt_for_priority": True, "max_num_seqs": 1}
    record = run(pair({}, urgent, block_ms=20), [(20, 3), (4, 3)], at_ms=[0, 10], priority=[2, 0])
    by_index = {row.i: row for row in record.rows}
    assert by_index[0].transfer_ended == 103 * MS
    assert by_index[1].transfer_asked == 114 * MS
    assert (by_index[0].preemptions, by_index[1].preemptions) == (1, 0)
    assert {row.status for row in record.rows} == {"completed"}


def test_a_prompt_that_is_lost_while_its_token_is_sampled_is_computed_again_where_it_decodes() -> None:
    """The step that samples request 2's first token still runs when request 1 needs a block and takes one of its. It
    then waits to decode, behind request 0, and nowhere else: request 3 goes before it where prompts are computed."""
    settings = {
        "kv_blocks": 4, "max_num_batched_tokens": 8, "max_prompt_chunk": 4, "admission": "optimistic",
        "victim": "least-computed",
    }  # fmt: skip
    overlapped = msgspec.structs.replace(STEP_TIMES, overlapped=True)
    lengths = [(4, 20), (12, 3), (8, 3), (8, 2)]
    record = run(pair(settings, {"max_num_seqs": 1}, overlapped), lengths, at_ms=[0, 10, 10, 30])
    prefill, decode = (record.steps[record.steps["instance"] == one] for one in (0, 1))
    assert (prefill["preempted"].sum(), decode["preempted"].sum()) == (1, 0)
    assert (prefill["recomputed_tokens"].sum(), decode["recomputed_tokens"].sum()) == (0, 8)
    by_index = {row.i: row for row in record.rows}
    assert by_index[2].transfer_asked is None
    assert None not in [by_index[one].transfer_asked for one in (0, 1, 3)]
    assert [row.output_tokens for row in record.rows] == [20, 3, 3, 2]
    assert [len([stint for stint in by_index[2].stints if stint.slot == slot]) for slot in (1, 4)] == [1, 1]


def test_planning_beside_a_running_step_hands_over_as_well() -> None:
    """The step after the one that samples a first token is planned before that token is seen."""
    overlapped = msgspec.structs.replace(STEP_TIMES, overlapped=True)
    record = run(pair({"max_num_batched_tokens": 8}, {}, overlapped), [(20, 3), (8, 2), (12, 9)])
    assert {row.status for row in record.rows} == {"completed"}
    assert record.steps["discarded_tokens"].sum() == 0
    assert record.steps["sampled_tokens"].sum() == 3 + 2 + 9


@pytest.mark.parametrize("overlapped", [False, True], ids=["one by one", "overlapped"])
@pytest.mark.parametrize(
    "settings", [{}, {"admission": "optimistic", "kv_blocks": 12}, {"prompt_buckets": (8,)}], ids=str
)
def test_prompts_alone_are_computed_as_by_an_engine_of_one_instance(
    overlapped: bool, settings: dict[str, object]
) -> None:
    """Requests of one output token never get to the other instance: the ledger is the ordinary loop's, bit for bit."""
    engine = pair(settings, {}, msgspec.structs.replace(STEP_TIMES, overlapped=overlapped))
    lengths = [((7 * i) % 40 + 1, 1) for i in range(50)]
    record = run(engine, lengths, at_ms=[1.3 * i for i in range(50)])
    plan = RequestPlan.of(*zip(*lengths, strict=True), arrivals_ugap=np.arange(50) * UGAP * 13 // 10)
    alone = run_step_by_step(
        plan,
        engine.config.prefill,
        lambda clock: CostExecutor(engine.step_times, clock),
        depth=int(overlapped),
        rate_per_s=1000.0,
    )
    for name in record.steps.dtype.names or ():
        assert record.steps[name].tolist() == alone.steps[name].tolist(), name
    assert [row.first for row in record.rows] == [row.first for row in alone.rows]


def test_the_same_bits_every_time() -> None:
    lengths = [((7 * i) % 60 + 1, (11 * i) % 30 + 1) for i in range(60)]
    engine = pair({"kv_blocks": 40}, {"kv_blocks": 45})
    first, second = (run(engine, lengths, at_ms=[3 * i for i in range(60)]) for _ in range(2))
    assert first.steps.tobytes() == second.steps.tobytes()
    assert list(first.rows) == list(second.rows)
    assert first.steps["preempted"].sum() > 0


class Impatient(VirtualClock):
    """Time that must move."""

    waits = 0

    def wait_until(self, when_ns: int) -> None:
        super().wait_until(when_ns)
        self.waits += 1
        assert self.waits < 100


class StopsAtOnce(SilentObserver):
    """When request 1 comes, which is the second time it is asked."""

    asked = 0

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        self.asked += 1
        return self.asked > 1


def test_a_stop_waits_for_the_running_step_though_a_request_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request 1 comes at 1 ms, in a step that ends at 5: it is not asked for any more, and stays due."""
    monkeypatch.setattr("engines.simulated.disaggregated.VirtualClock", Impatient)
    record = run(pair({}, {}), [(40, 3), (8, 2)], at_ms=[0, 1], observer=StopsAtOnce())
    assert record.interrupted
    assert [(row.i, row.status) for row in record.rows] == [(0, "cancelled")]
    assert rows(record) == [(0, 1, 0.0, 5.0)]


def test_a_request_passes_the_front_end_once() -> None:
    """As on one instance, so that the two can be compared."""
    fitted = pair({}, {})
    data_sheet = step_times_of("tiny", find_shape("tiny"), find_hardware("h100"), Deployment(hardware="h100"))
    first_ms = [
        events_ms(run(dataclasses.replace(fitted, step_times=step_times), [(20, 3)]), 0)[0]
        for step_times in (data_sheet, msgspec.structs.replace(data_sheet, front_end_ns=0))
    ]
    assert first_ms[0] - first_ms[1] == pytest.approx(data_sheet.front_end_ns / MS) == 7.0
