"""Splits by tenant, priority and prompt bucket, and the service gap, on runs with known answers."""

from __future__ import annotations

from itertools import combinations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.base import RunRecord
from reports.fairness import overlaps, service_gap_tokens, waits_ns
from reports.metrics import definitions
from reports.summary import summarize
from reports.summary_schema import Summary
from tests.reports.factory import MS, header, ledger, record, row, row_in_slot


def two_tenants() -> RunRecord:
    """a gets its first answer while b waits, and b's answer comes when no request of a waits any more."""
    return record(
        [
            row(0, [10, 20, 30], tenant="a", priority=0),
            row(1, [40, 60], tenant="a", priority=0, preemptions=2),
            row(2, [50, 100], scheduled_ms=5, tenant="b", priority=1, prompt_tokens=600, preemptions=1),
            row(3, scheduled_ms=70, end_ms=90, status="failed", finish_reason="error", tenant="b", priority=1),
        ]
    )


def test_one_tenant_one_priority_and_no_buckets_are_no_split() -> None:
    one = summarize(record([row(0, [1, 2]), row(1, [1, 2])]), header())
    assert (one.by_tenant, one.by_priority, one.by_prompt_bucket, one.service_gap_tokens) == ({}, {}, {}, None)
    nothing = summarize(record([], planned=2), header(config={"prompt_buckets": [8]}))
    assert (nothing.by_tenant, nothing.by_prompt_bucket) == ({}, {})


def test_each_tenant_in_numbers() -> None:
    one = summarize(two_tenants(), header())
    assert list(one.by_tenant) == ["a", "b"]
    a, b = one.by_tenant["a"], one.by_tenant["b"]
    assert (a.requests, a.completed, a.failed) == (2, 2, 0)
    assert (b.requests, b.completed, b.failed) == (2, 1, 1)
    assert (a.latency.ttft_ms.p50, a.latency.ttft_ms.max) == (25, 40)
    assert (b.latency.ttft_ms.count, b.latency.ttft_ms.p99, b.latency.tpot_ms.p50) == (1, 45, 50)
    assert a.output_token_per_s == pytest.approx(5 / 0.1)
    assert b.request_per_s == pytest.approx(1 / 0.1)
    assert (a.max_wait_ms, b.max_wait_ms) == (40, 45)
    assert (a.preemptions, b.preemptions) == (2, 1)
    assert (a.service_tokens, b.service_tokens) == (20 + 2 * 5, 600 + 2 * 2)


def test_priorities_and_buckets_split_alike() -> None:
    one = summarize(two_tenants(), header(config={"prompt_buckets": (512, 4096)}))
    assert list(one.by_priority) == ["0", "1"]
    assert one.by_priority["1"] == one.by_tenant["b"]
    assert list(one.by_prompt_bucket) == ["up to 512", "513 to 4096"]
    assert one.by_prompt_bucket["513 to 4096"].latency.ttft_ms.p99 == 45
    assert one.by_prompt_bucket["up to 512"].requests == 3
    ends = record([row(i, [1, 2], prompt_tokens=n) for i, n in enumerate((512, 513, 4096, 4097))])
    split = summarize(ends, header(config={"prompt_buckets": (512, 4096)})).by_prompt_bucket
    assert {name: part.requests for name, part in split.items()} == {
        "up to 512": 1,
        "513 to 4096": 2,
        "over 4096": 1,
    }


def test_stages_of_the_rate_by_when_a_request_was_due() -> None:
    """One request in the first half second, two in the second half, one later; the last stage lasts until the end."""
    rows = [row(i, [at + 10, at + 30], scheduled_ms=at) for i, at in enumerate((0, 500, 750, 1200))]
    run = header()
    pacing = msgspec.structs.replace(run.workload.pacing, rate_per_s=3.0, rate_schedule="2 for 0.5s, 4 for 0.5s")
    run = msgspec.structs.replace(run, workload=msgspec.structs.replace(run.workload, pacing=pacing))
    stages = summarize(record(rows), run).by_stage
    assert {name: one.requests for name, one in stages.items()} == {"1: 2 for 0.5s": 1, "2: 4 for 0.5s": 2, "then 4": 1}
    assert stages["2: 4 for 0.5s"].request_per_s == pytest.approx(2 / 0.5)
    assert stages["2: 4 for 0.5s"].output_token_per_s == pytest.approx(4 / 0.5)
    assert stages["then 4"].request_per_s == pytest.approx(1 / 0.23)
    assert [one.asked_request_per_s for one in stages.values()] == [2, 4, None]
    assert [(one.key, one.from_per_s, one.to_per_s) for one in stages.values()] == [
        ("1", 2, 2),
        ("2", 4, 4),
        ("then", 4, 4),
    ]
    late = [
        row(0, [10, 30]),
        *(row(i, [600, 610 + 100 * i], scheduled_ms=400) for i in (1, 2)),
        row(3, [710, 720], scheduled_ms=600),
    ]
    queued = summarize(record(late), run).by_stage["1: 2 for 0.5s"]
    assert (queued.completed, queued.request_per_s) == (3, pytest.approx(1 / 0.5)), "two of them ended after it"
    assert summarize(record(rows), header(rate_per_s=3.0)).by_stage == {}
    assert summarize(record([], planned=2), run).by_stage == {}


def test_order_of_sending_and_of_ending_may_differ() -> None:
    made = record(
        [
            row(1, [30, 31], scheduled_ms=20, tenant="b", preemptions=7),
            row(0, [10, 99], scheduled_ms=0, tenant="a"),
        ]
    )
    split = summarize(made, header()).by_tenant
    assert (split["a"].latency.e2el_ms.max, split["b"].latency.e2el_ms.max) == (99, 11)
    assert (split["a"].preemptions, split["b"].preemptions) == (0, 7)


def test_the_splits_survive_the_file() -> None:
    one = summarize(two_tenants(), header(config={"prompt_buckets": (512,)}))
    assert msgspec.json.decode(msgspec.json.encode(one), type=Summary) == one
    assert {"by_tenant", "by_tenant.max_wait_ms", "by_tenant.service_tokens", "service_gap_tokens"} <= set(
        definitions()
    )


# Waiting


def test_in_process_a_wait_ends_when_the_step_that_admits_is_planned() -> None:
    made = record(
        [row_in_slot(0, 0, 1, 3, tenant="a"), row_in_slot(1, 0, 4, 5, tenant="b")],
        event_unit="step",
        steps=ledger([1] * 5, [0] * 5, 1),
    )
    split = summarize(made, header(event_unit="step")).by_tenant
    assert (split["a"].max_wait_ms, split["b"].max_wait_ms) == (0, 30)


def test_a_request_that_was_never_admitted_waited_until_the_end() -> None:
    starved = row(1, status="cancelled", finish_reason="aborted", end_ms=50, tenant="b")
    made = record(
        [row_in_slot(0, 0, 1, 5, tenant="a"), starved],
        event_unit="step",
        steps=ledger([1] * 5, [0] * 5, 1),
    )
    assert summarize(made, header(event_unit="step")).by_tenant["b"].max_wait_ms == 50
    assert summarize(record([row(0, [1, 2], tenant="a"), starved]), header()).by_tenant["b"].max_wait_ms == 50


def test_a_torn_ledger_is_no_error() -> None:
    made = record(
        [row_in_slot(0, 0, 1, 2), row_in_slot(1, 0, 9, 9)], event_unit="us", steps=ledger([1] * 2, [0] * 2, 1)
    )
    assert [(int(at[0]), int(at[1])) for at in zip(*waits_ns(made), strict=True)] == [(0, 0), (0, 90 * MS)]


def test_a_request_that_was_never_sent_did_not_wait() -> None:
    unsent = msgspec.structs.replace(row(0, status="cancelled", tenant="b")[0], sent=None, submitted=None)
    made = record([row(1, [1, 2], tenant="a"), (unsent, np.empty(0, np.uint32))])
    split = summarize(made, header())
    assert split.by_tenant["b"].max_wait_ms is None
    assert split.service_gap_tokens is None


# Service


def test_the_gap_counts_what_was_served_while_both_waited() -> None:
    """Both wait from 5 to 40 ms. By then a got its first prompt and three tokens, and the second prompt with one."""
    assert summarize(two_tenants(), header()).service_gap_tokens == (10 + 2 * 3) + (10 + 2 * 1)


def test_there_is_no_gap_where_no_two_tenants_wait_at_once() -> None:
    made = record([row(0, [10, 20], tenant="a"), row(1, [30, 40], scheduled_ms=15, tenant="b")])
    assert summarize(made, header()).service_gap_tokens is None


def test_a_flood_served_first_come_first_served_against_taking_turns() -> None:
    """One slot; ten requests of `noisy` and one of `quiet`, of one step each, all there at the start."""

    def run(turn_of_quiet: int) -> float | None:
        turns = ["noisy"] * 10
        turns.insert(turn_of_quiet, "quiet")
        made = [row_in_slot(i, 0, i + 1, i + 1, prompt_tokens=100, tenant=name) for i, name in enumerate(turns)]
        return summarize(
            record(made, event_unit="step", steps=ledger([1] * 11, [0] * 11, 1)), header(event_unit="step")
        ).service_gap_tokens

    assert run(10) == 9 * 102  # the last of noisy's is admitted when nine are served
    assert run(1) == 102


def test_tokens_that_come_together_are_one_moment() -> None:
    """In one step, a's token comes before b's in the file but not in time."""
    made = [row_in_slot(i, i, 1, 6, tenant=name) for i, name in enumerate("ab")]
    made += [row(2 + i, status="cancelled", end_ms=60, tenant=name) for i, name in enumerate("ab")]
    steps = ledger([2] * 6, [0] * 6, 2)
    assert summarize(record(made, event_unit="step", steps=steps), header()).service_gap_tokens == 0


@given(
    data=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=12),
    depth=st.integers(1, 3),
)
@settings(deadline=None)
def test_overlaps_equal_counting(data: list[tuple[int, int]], depth: int) -> None:
    begin = np.array([at for at, _ in data], dtype=np.int64)
    end = begin + np.array([length for _, length in data], dtype=np.int64)
    inside = [int(((begin <= t) & (t < end)).sum()) >= depth for t in range(30)]
    found = [False] * 30
    for one, other in zip(*overlaps(begin, end, depth), strict=True):
        found[one:other] = [True] * int(other - one)
    assert found == inside


@st.composite
def runs(draw: st.DrawFn) -> RunRecord:
    made = []
    for i in range(draw(st.integers(1, 8))):
        sent = draw(st.integers(0, 20))
        gaps = draw(st.lists(st.integers(0, 6), max_size=4))
        events = (sent + np.cumsum(gaps)).tolist()
        end = sent + 5 if not events else None
        name = draw(st.sampled_from("abc"))
        made.append(row(i, events, scheduled_ms=sent, end_ms=end, prompt_tokens=3 + i, tenant=name))
    return record(made)


@given(made=runs())
@settings(deadline=None)
def test_the_gap_equals_plain_python(made: RunRecord) -> None:
    names = sorted({one.tenant for one in made.rows})
    horizon = 50
    waiting = {name: [False] * horizon for name in names}
    served = {name: np.zeros(horizon + 1) for name in names}
    at = made.event_times_ns() // MS
    for one in made.rows:
        until = (one.first if one.first is not None else one.end) // MS
        for t in range(one.scheduled // MS, until):
            waiting[one.tenant][t] = True
        for k in range(one.events):
            served[one.tenant][at[one.events_at + k] :] += 2 + (one.prompt_tokens if k == 0 else 0)
    worst = None
    for a, b in combinations(names, 2):
        ahead = served[a] - served[b]
        for begin, end in combinations(range(horizon), 2):
            if all(waiting[a][t] and waiting[b][t] for t in range(begin, end)):
                worst = max(worst or 0.0, abs(ahead[end] - ahead[begin]))
    which = np.array([names.index(one.tenant) for one in made.rows], dtype=np.int64)
    found = service_gap_tokens(made, which, len(names))
    assert found == worst if worst is None else found == pytest.approx(worst)


def test_many_moments_are_compared_at_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = two_tenants()
    monkeypatch.setattr("reports.fairness.MOST_MOMENTS", 4)
    assert summarize(made, header()).service_gap_tokens == 28  # every other moment: 20, 40, 60, 100 ms
