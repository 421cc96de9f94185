"""Sessions closed inside: a turn waits for the answer before it; sessions begin whatever the server does."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.remote.load_client import Partition
from workloads.length_distributions import parse_distribution
from workloads.pacing import Pacing
from workloads.plan import UGAP, RequestPlan
from workloads.session_pacing import SessionPacing, pacing_of
from workloads.turns import NS_PER_MS, Turns

MS = NS_PER_MS


def plan_of(sessions: list[int], think_ms: list[int] | None = None) -> RequestPlan:
    """A request a gap; sessions: -1 for none."""
    session = np.array(sessions, dtype=np.int64)
    turns = Turns.of(session, parse_distribution("fixed(7)"), seed=0)
    if think_ms is not None:
        turns = Turns(turns.after, MS * np.array(think_ms, dtype=np.int64))
    n = len(sessions)
    return RequestPlan.of(np.ones(n, np.int64), np.ones(n, np.int64), session=session, turns=turns)


def played(pacing: Pacing | Partition, takes_ms: list[int]) -> dict[int, tuple[int, int, int]]:
    """(scheduled, sent, ended) by request, of a server that takes so long for each, however many it has."""
    found, ends, now_ns = {}, [], 0
    while not pacing.exhausted or ends:
        for due in pacing.due(now_ns):
            assert due.index not in found, "handed out twice"
            assert due.scheduled_ns <= due.sent_ns <= now_ns
            found[due.index] = (due.scheduled_ns, due.sent_ns, now_ns + takes_ms[due.index] * MS)
            heappush(ends, (now_ns + takes_ms[due.index] * MS, due.index))
        times = [ns for ns in (pacing.next_due_ns(), ends[0][0] if ends else None) if ns is not None]
        if not times:
            break
        now_ns = max(now_ns, min(times))
        while ends and ends[0][0] <= now_ns:
            pacing.completed(heappop(ends)[1], now_ns)
    return found


def test_a_turn_waits_for_the_answer_before_it_and_its_user() -> None:
    """By hand: a request every 100 ms; sessions A and B, and one request alone."""
    plan = plan_of([0, 1, 0, -1, 0, 1], think_ms=[1, 2, 10, 3, 20, 900])
    found = played(pacing_of(plan, rate_per_s=10.0), [250, 50, 300, 10, 10, 10])
    assert {index: scheduled // MS for index, (scheduled, _, _) in found.items()} == {
        0: 0, 1: 100, 2: 260, 3: 300, 4: 580, 5: 1050,
    }  # fmt: skip


sessions = st.lists(st.integers(-1, 3), min_size=1, max_size=25)


@given(sessions, st.data())
def test_each_turn_is_due_once_and_at_its_time(own: list[int], data: st.DataObject) -> None:
    times = st.lists(st.integers(0, 400), min_size=len(own), max_size=len(own))
    think_ms, takes_ms = data.draw(times), data.draw(times)
    cap = data.draw(st.none() | st.integers(1, 4))
    plan = plan_of(own, think_ms)
    found = played(pacing_of(plan, rate_per_s=20.0, concurrency=cap), takes_ms)
    assert sorted(found) == list(range(len(own)))
    assert plan.turns is not None
    for index, (scheduled, _, _) in found.items():
        before = int(plan.turns.after[index])
        arrival = index * 50 * MS
        assert scheduled == (arrival if before < 0 else max(arrival, found[before][2] + think_ms[index] * MS))
        if before >= 0:
            assert own[before] == own[index] >= 0
            assert all(one != own[index] for one in own[before + 1 : index]), "the turn just before it"


@given(sessions, st.integers(1, 4))
def test_workers_have_whole_sessions_and_together_all_of_them(own: list[int], workers: int) -> None:
    plan = plan_of(own)
    whole = pacing_of(plan, rate_per_s=20.0)
    takes_ms = [30] * len(own)
    parts = [played(Partition(plan, pacing_of(plan, rate_per_s=20.0), at, workers), takes_ms) for at in range(workers)]
    assert sum(map(len, parts)) == len(own)
    assert {index: times for part in parts for index, times in part.items()} == played(whole, takes_ms)


def test_after_the_duration_no_turn_comes() -> None:
    """The answer of the first ends at 900 ms; its turn would be due at 1,010, and the run sends until 1,000."""
    plan = plan_of([0, 0, -1], think_ms=[0, 110, 0])
    found = played(pacing_of(plan, rate_per_s=10.0, duration_s=1.0), [900, 1, 1])
    assert sorted(found) == [0, 2]


def test_without_sessions_it_is_the_same_as_without_turns() -> None:
    plan = plan_of([-1] * 30)
    takes_ms = [40] * 30
    usual = played(Pacing(plan.arrivals_ugap, rate_per_s=20.0, concurrency=2), takes_ms)
    assert played(SessionPacing(plan.arrivals_ugap, plan.turns, rate_per_s=20.0, concurrency=2), takes_ms) == usual  # type: ignore[arg-type]


def test_turns_are_part_of_the_work_and_need_a_rate() -> None:
    one, other = plan_of([0, 0], think_ms=[0, 5]), plan_of([0, 0], think_ms=[0, 6])
    plain = RequestPlan.of(np.ones(2, np.int64), np.ones(2, np.int64), session=np.zeros(2, np.int64))
    assert len({one.sha256, other.sha256, plain.sha256}) == 3
    assert one.arrivals_ugap[1] == UGAP
    with pytest.raises(ValueError, match="need a rate"):
        pacing_of(one)
