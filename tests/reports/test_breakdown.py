"""Parts of TTFT and E2EL: they add up, and each is what its name says."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from engines.base import RunRecord, SilentObserver
from engines.ledger import Blocked
from engines.request_table import RequestRow, StintRow
from engines.simulated.engine import SimulatedEngine
from reports.breakdown import Breakdown, breakdown, total
from reports.render.breakdown import breakdown_table, breakdown_view, worst_table
from reports.slowest import slowest_requests
from tests.engines.scheduling.driving import config
from tests.engines.simulated.small_runs import STEP_TIMES, run_step_by_step
from tests.reports.factory import MS, ledger, record, row
from tests.wire.driving import load
from tests.wire.fake import good
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


def plan_of(requests: int) -> RequestPlan:
    rng = np.random.default_rng(7)
    gaps = np.cumsum(rng.exponential(1e6, requests)).astype(np.int64)
    return RequestPlan.of(rng.integers(1, 60, requests), rng.integers(1, 40, requests), arrivals_ugap=gaps)


def assert_adds_up(made: RunRecord) -> Breakdown:
    """To the ns, with no part below zero."""
    parts = breakdown(made)
    rows = [one for one in made.rows if one.status == "completed" and one.first is not None]
    assert parts.row.shape[0] == len(rows) > 0
    assert total(parts.ttft_ns).tolist() == [one.first - one.scheduled for one in rows]  # type: ignore[operator]
    assert total(parts.e2el_ns()).tolist() == [one.last - one.scheduled for one in rows]  # type: ignore[operator]
    for columns in (parts.ttft_ns, parts.after_ns, parts.blocked_ns):
        assert all(column.min() >= 0 for column in columns.values())
    if parts.blocked_ns:
        assert (total(parts.blocked_ns) <= parts.ttft_ns["queue"]).all()
    return parts


SETTINGS: dict[str, dict[str, object]] = {
    "recompute": {"kv_blocks": 40, "admission": "optimistic"},
    "swap": {"kv_blocks": 40, "admission": "optimistic", "on_kv_pressure": "swap", "swap_blocks": 80},
    "padded": {"mode": "static", "max_num_batched_tokens": 64},
    "compact": {"mode": "static", "static": "compact-held", "static_patience_s": 0.2},
    "chunked": {"max_num_batched_tokens": 8},
    "whole prompts": {"chunked_prefill": False, "max_num_batched_tokens": 64, "prefill": "prefill-first"},
    "prompt buckets": {"prompt_buckets": (10, 30), "max_num_batched_tokens": 64},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("concurrency", [None, 20])
def test_parts_add_up_under_every_policy(name: str, concurrency: int | None) -> None:
    plan, settings = plan_of(120), config(**{"kv_blocks": 400} | SETTINGS[name])
    pacing = Pacing(plan.arrivals_ugap, rate_per_s=60.0, concurrency=concurrency)
    made = SimulatedEngine(settings, STEP_TIMES).run(plan, pacing, SilentObserver())
    parts = assert_adds_up(made)
    assert "server" not in parts.ttft_ns
    assert ("client" in parts.ttft_ns) == (concurrency is not None)
    preempted = made.column("preemptions")[parts.row] > 0
    assert preempted.any() == (name in ("recompute", "swap"))
    if preempted.any():
        away_ns = parts.e2el_ns()["preempted"]
        assert (away_ns[preempted] > 0).all()
        assert (away_ns[~preempted] == 0).all()
    assert_blocked_as_step_by_step(made, parts)


def test_parts_add_up_with_a_step_in_flight() -> None:
    """A preempted request may get a token after it has lost its slot."""
    plan, settings = plan_of(120), config(kv_blocks=40, admission="optimistic")
    made = run_step_by_step(plan, settings, depth=1, rate_per_s=60.0)
    assert_adds_up(made)
    assert made.column("preemptions").any()


def assert_blocked_as_step_by_step(made: RunRecord, parts: Breakdown) -> None:
    """The definition in plain Python, planning by planning."""
    now_ns, reasons = made.steps["now_ns"].tolist(), made.steps["blocked"].tolist()
    for at, index in enumerate(parts.row.tolist()):
        one = made.rows[index]
        assert one.submitted is not None
        wanted: dict[str, int] = {}
        since, admitted = one.submitted, now_ns[one.stints[0].admitted - 1]
        planned = [step for step, now in enumerate(now_ns) if one.submitted <= now <= admitted]
        for step, until in zip([planned[0], *planned[:-1]], [now_ns[step] for step in planned], strict=True):
            if reasons[step] != Blocked.NO and until > since:
                name = Blocked(reasons[step]).name.lower()
                wanted[name] = wanted.get(name, 0) + until - since
            since = until
        assert {name: int(column[at]) for name, column in parts.blocked_ns.items() if column[at]} == wanted


def test_over_http_only_client_and_server_remain() -> None:
    made = load(good, requests=4, concurrency=2, rate=1000.0).record
    parts = assert_adds_up(made)
    assert set(parts.ttft_ns) == {"client", "server"}
    assert set(parts.after_ns) <= {"decode"}
    assert not parts.blocked_ns


def row_in_slot(i: int, times_ms: tuple[float, float, float, float], stints: tuple[StintRow, ...]) -> RequestRow:
    scheduled, sent, first, last = times_ms
    made, _ = row(i, [first, last], scheduled_ms=scheduled, sent_ms=sent, stints=stints, prompt_tokens=10 * (i + 1))
    return made


def by_hand() -> RunRecord:
    """Steps of 10 ms without a pause. Request 0 runs from step 1 on. Request 1 arrives at 12 ms, is planned in step 4,
    gets its first token in step 5, is preempted after step 6, admitted again in step 9 and ends with it."""
    steps = ledger([1] * 10, [0] * 10, slots=2)
    steps["blocked"][:5] = [Blocked.NO, Blocked.KV, Blocked.ROWS, Blocked.NO, Blocked.ROWS]
    steps["end_ns"][7] += 5 * MS  # step 8 is the longest
    steps["preempted"][6] = 1
    steps["useful_tokens"][7] = 33
    made = [
        row_in_slot(0, (0, 0, 10, 100), (StintRow(0, 1, 1, 10),)),
        row_in_slot(1, (10, 12, 50, 90), (StintRow(1, 4, 5, 6), StintRow(1, 9, 9, 9))),
    ]
    return record([(one, np.zeros(2, np.uint32)) for one in made], steps=steps)


def test_one_request_by_hand() -> None:
    parts = breakdown(by_hand())
    assert_adds_up(by_hand())
    assert {name: column[1] / MS for name, column in parts.ttft_ns.items()} == {
        "client": 2, "queue": 18, "prefill": 20
    }  # fmt: skip
    assert {name: column[1] / MS for name, column in parts.after_ns.items()} == {"decode": 20, "preempted": 20}
    # Until 20 ms for the reason of the step planned then, which is step 3; and from then to 30 ms for the same.
    assert {name: column[1] / MS for name, column in parts.blocked_ns.items()} == {"rows": 18}


def test_means_shares_and_the_tail() -> None:
    summary = breakdown(by_hand()).summary()
    assert summary is not None
    assert summary.requests == 2
    assert summary.ttft["queue"].mean_ms == 9
    assert summary.ttft["queue"].share == pytest.approx(9 / 25)
    assert summary.ttft["queue"].tail_share == pytest.approx(18 / 40)
    assert sum(part.tail_share or 0 for part in summary.e2el.values()) == pytest.approx(1)
    assert breakdown(record([row(0, status="failed", finish_reason="error")])).summary() is None


def test_the_worst_request_and_its_neighbours() -> None:
    made = by_hand()
    (one,) = slowest_requests(made, breakdown(made), "ttft")
    assert (one.row.i, one.total_ns) == (1, 40 * MS)
    near = one.neighbours
    assert near is not None
    assert (near.step, near.step_ms, near.prompts, near.preemptions) == (2, 10, (10,), 0)
    (one,) = slowest_requests(made, breakdown(made), "e2el")
    assert (one.row.i, one.total_ns) == (0, 100 * MS)
    near = one.neighbours
    assert near is not None
    assert (near.step, near.step_ms, near.prompts, near.prefill_tokens, near.preemptions) == (8, 15, (), 32, 1)


def test_at_most_fifty_and_the_worst_first() -> None:
    made = record([row(i, [i + 10.0, i + 20 + i % 7], scheduled_ms=0) for i in range(6000)])
    found = slowest_requests(made, breakdown(made))
    assert [one.row.i for one in found] == list(range(5999, 5949, -1))
    assert found[0].neighbours is None


def test_the_tables_name_what_there_is() -> None:
    made = by_hand()
    parts = breakdown(made)
    summary = parts.summary()
    assert summary is not None
    console = Console(width=80)
    with console.capture() as out:
        console.print(
            breakdown_table(summary, explained=False), worst_table(slowest_requests(made, parts), "worst TTFT")
        )
    text = out.get()
    assert "blocked: slots" in text
    assert "45.0%" in text  # the queue's share of the tail
    assert "server" not in text
    assert text.splitlines()[-3].split() == ["worst", "longest", "others", "prefill"]
    assert text.splitlines()[-2].split()[-6:] == ["prefill", "step", "ms", "in", "it", "tokens"]
    assert "…" not in text


def test_a_narrow_terminal_gets_the_words_below_the_table() -> None:
    summary = breakdown(by_hand()).summary()
    assert summary is not None
    for width, beside in ((80, False), (160, True)):
        console = Console(width=width)
        with console.capture() as out:
            console.print(breakdown_view(summary, width=width))
        text = out.get()
        assert "…" not in text
        assert ("queue waiting for its first slot" in " ".join(text.split())) is not beside
        assert "waiting for its first slot" in " ".join(text.split())
        assert "no slot was free" in " ".join(text.split())
