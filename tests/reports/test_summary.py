"""The summary as a whole, steady throughput and validity, on runs with known answers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from engines.base import ClientReport, RunRecord, ScrapeReport, Signal
from engines.ledger import Blocked
from engines.request_table import StintRow
from reports.metrics import request_times
from reports.steady import steady
from reports.summary import completed_run, summarize
from reports.summary_schema import Summary
from reports.validity import validity
from tests.reports.factory import MS, bus_stop, header, ledger, record, row, row_in_slot
from tests.reports.test_client import GOOD


def test_the_classic_batch_in_numbers() -> None:
    one = summarize(bus_stop(), header(event_unit="step", mode="static"))
    assert (one.requests.planned, one.requests.sent, one.requests.completed) == (3, 3, 3)
    assert one.throughput.window_s == 2.0
    assert one.throughput.output_token_per_s == 130
    assert one.throughput.total_token_per_s == 131.5
    assert one.waste is not None
    assert (one.waste.dead_slot_steps, one.waste.slot_steps, one.waste.useful_tokens) == (340, 600, 260)
    assert one.signals.device_busy == 0.5
    assert one.signals.running_mean == 1.3
    assert one.signals.kv_usage_peak == 0.5
    assert one.signals.step_ms_mean == 10


def test_steps_that_the_host_launched_too_slowly_are_not_busy() -> None:
    """bus_stop's 200 steps last 10 ms each, and its device works in half of each."""
    one = bus_stop()
    assert summarize(one, header()).signals.launch_bound is None  # no device of its own
    one.steps["host_ahead_ns"] = 5 * MS
    one.steps["host_ahead_ns"][:50] = 1
    signals = summarize(one, header()).signals
    assert (signals.device_busy, signals.launch_bound) == (0.375, 0.125)


def test_signals_are_averages_over_wall_time() -> None:
    """One request in step 1 (20 ms), a pause of 60 ms, then two in step 2; one of them was sent 10 ms before it."""
    steps = ledger([1, 2], [0, 0], slots=2)
    steps["end_ns"] = [20 * MS, 100 * MS]
    steps["start_ns"] = steps["now_ns"] = [0, 80 * MS]
    steps["admitted"] = [1, 2]
    steps["blocked"] = [Blocked.KV, Blocked.NO]
    made = [
        row(0, [20], stints=[StintRow(0, 1, 1, 1)]),
        row(1, [100], scheduled_ms=70, stints=[StintRow(0, 2, 2, 2)]),
        row(2, [100], scheduled_ms=80, stints=[StintRow(1, 2, 2, 2)]),
    ]
    one = summarize(record(made, steps=steps), header())
    assert one.signals.running_mean == pytest.approx((20 + 2 * 20) / 100)
    assert one.signals.waiting_mean == pytest.approx(10 / 100)
    assert one.signals.kv_usage_mean == pytest.approx((20 * 1 + 20 * 2) / 4 / 100)
    assert one.signals.kv_usage_peak == 2 / 4
    assert one.signals.blocked == {"kv": 0.5}


def scraped(**sources: str) -> ClientReport:
    report = ScrapeReport(
        url="http://x/metrics", samples=2, missed=0, problem=None, sources=sources, restarted=False, output_tokens=None,
        output_tokens_received=0, requests=None, requests_ended=0, preemptions=None, prefix_hit_rate=None,
        prefixes_shared=False,
    )  # fmt: skip
    return msgspec.structs.replace(GOOD, scrape=report)


def test_without_a_ledger_a_sample_counts_for_the_time_before_it() -> None:
    """The server counts the running ones; the client knows how long requests waited for their first token."""
    samples = [Signal(t, running, 4, usage, 0.8, 1.0, 3, 0, 0) for t, running, usage in ((100, 1, 0.5), (400, 5, 0.1))]
    head = msgspec.structs.replace(header(), client=scraped(running="vllm:num_requests_running", waiting="client"))
    one = summarize(record([row(0, [1, 2])], signals=samples), head).signals
    assert one.running_mean == pytest.approx((1 * 100 + 5 * 300) / 400)
    assert one.waiting_mean == pytest.approx(0.5)
    assert (one.kv_usage_mean, one.kv_usage_peak, one.preemptions) == (pytest.approx(0.2), 0.5, 3)
    assert summarize(record([row(0, [1, 2])], signals=samples), head).waste is None


def test_without_a_ledger_and_a_page_of_metrics_the_client_counts() -> None:
    """Two requests are in flight for 100 ms each, of 400 ms; their first tokens come after 30 and 60 ms."""
    made = [row(0, [30, 100]), row(1, [360, 400], scheduled_ms=300)]
    one = summarize(record(made), header()).signals
    assert one.running_mean == pytest.approx((70 + 40) / 400)
    assert one.waiting_mean == pytest.approx((30 + 60) / 400)


def test_nothing_at_all_gives_no_numbers() -> None:
    run = completed_run(record([], planned=5), header())
    assert run.summary is not None
    assert run.summary.requests.planned == 5
    assert run.summary.throughput.output_token_per_s is None
    assert run.validity is not None
    assert (run.validity.verdict, run.validity.reasons) == ("invalid", ("no request completed",))


def test_tokens_of_failed_requests_are_not_throughput() -> None:
    bad = row(1, [5, 6, 7, 8], status="failed", finish_reason="error", end_ms=1000)
    one: Summary = summarize(record([row(0, [500, 1000]), bad]), header())
    assert one.throughput.output_token_per_s == 2
    assert one.throughput.request_per_s == 1


# Steady window


def closed_loop(slots: int, waves: int, tokens: int = 10) -> RunRecord:
    """Slots that are filled one per step, each with one request after the other; a step is 10 ms."""
    made = []
    for wave in range(waves):
        for slot in range(slots):
            begin = 1 + slot + wave * tokens
            made.append(row_in_slot(wave * slots + slot, slot, begin, begin + tokens - 1))
    made.sort(key=lambda one: one[0].end)
    last = slots + waves * tokens - 1
    active = [
        sum(one.stints[0].admitted <= step <= one.stints[0].ended for one, _ in made) for step in range(1, last + 1)
    ]
    return record(made, event_unit="step", steps=ledger(active, [0] * last, slots))


def test_the_steady_window_leaves_out_ramp_and_drain() -> None:
    made = closed_loop(slots=8, waves=20)
    found = steady(made, request_times(made))
    whole = summarize(made, header(event_unit="step")).throughput
    assert found is not None
    assert found.output_token_per_s == pytest.approx(800, rel=0.01)  # 8 slots, a token per 10 ms
    assert whole.output_token_per_s is not None
    assert whole.output_token_per_s < 790
    assert 0.05 <= found.start_s <= 0.09  # the seventh or eighth slot is taken
    assert found.end_s == pytest.approx((8 + 19 * 10) * 0.01)  # the last first token


def test_tokens_count_in_the_window_where_they_came_not_where_their_request_ended() -> None:
    """Two slots and one long request across the end: its tokens inside count, the others do not."""
    made = closed_loop(slots=2, waves=5)
    found = steady(made, request_times(made))
    assert found is not None
    assert found.output_token_per_s == pytest.approx(200, rel=0.03)


def test_events_of_several_tokens_share_them() -> None:
    gaps = [
        row(i, [i * 100 + 10, i * 100 + 60, i * 100 + 110], scheduled_ms=i * 100, output_tokens=6) for i in range(50)
    ]
    made = record(gaps)
    found = steady(made, request_times(made))
    assert found is not None
    assert found.output_token_per_s == pytest.approx(60, rel=0.05)


def test_one_request_has_no_steady_window() -> None:
    made = record([row(0, [10, 20, 30])])
    assert steady(made, request_times(made)) is None


# Validity


def queue(n: int, gap_ms: float, service_ms: float) -> RunRecord:
    """One server: a request waits for those before it."""
    made, free = [], 0.0
    for i in range(n):
        begin = max(free, i * gap_ms)
        free = begin + service_ms
        made.append(row(i, [begin + 1, free], scheduled_ms=i * gap_ms))
    return record(made)


def verdict(made: RunRecord, *, open_loop: bool = True, max_failure_rate: float = 0.01) -> tuple[str, str]:
    found = validity(
        request_times(made), max_failure_rate=max_failure_rate, open_loop=open_loop, interrupted=made.interrupted
    )
    return found.verdict, " ".join(found.reasons)


def test_an_open_loop_beyond_capacity_is_overloaded() -> None:
    assert verdict(queue(300, 10, 12))[0] == "overloaded"
    assert verdict(queue(300, 10, 9))[0] == "ok"
    assert verdict(queue(300, 10, 12), open_loop=False)[0] == "ok"


def test_a_run_that_is_merely_short_is_not_overloaded() -> None:
    """Nothing completes while requests arrive, but no request waits for a first token either."""
    made = [row(i, [i * 10 + 30, i * 10 + 20_000], scheduled_ms=i * 10) for i in range(300)]
    assert verdict(record(made))[0] == "ok"


def growing(share: float) -> RunRecord:
    """400 requests, one every 100 ms, whose first tokens come later by that share of the time that has passed. Few are
    in the system, as in a queue for KV."""
    made = [row(i, [i * 100 * (1 + share) + 1, i * 100 * (1 + share) + 2], scheduled_ms=i * 100) for i in range(400)]
    return record(made)


def test_a_wait_that_grows_all_the_time_is_overload_though_few_requests_are_in_the_system() -> None:
    found, reasons = verdict(growing(0.08))
    assert found == "overloaded"
    assert "the median wait for a first token grew from 1.2 to 2 and 2.8 s" in reasons
    assert verdict(growing(0.05))[0] == "ok"


def test_random_arrivals_below_capacity_are_seldom_called_overload() -> None:
    rng = np.random.default_rng(8)
    called = 0
    for _ in range(40):
        at = np.cumsum(rng.exponential(10, 400))
        made, free = [], 0.0
        for i, when in enumerate(at.tolist()):
            begin = max(free, when)
            free = begin + rng.exponential(7)
            made.append(row(i, [begin + 1, free + 1], scheduled_ms=when))
        called += verdict(record(made))[0] == "overloaded"
    assert called <= 2


def test_failures_above_the_limit_are_invalid_but_rejections_are_not() -> None:
    good = [row(i, [i * 10 + 1, i * 10 + 2], scheduled_ms=i * 10) for i in range(98)]
    failed = [row(98 + i, scheduled_ms=990, status="failed", finish_reason="error", error="x") for i in range(2)]
    refused = [row(98 + i, scheduled_ms=990, status="failed", finish_reason="rejected", error="x") for i in range(2)]
    assert verdict(record(good + failed)) == ("invalid", "2 of 100 requests failed: 2.0% is above 1.0%")
    assert verdict(record(good + failed), max_failure_rate=0.02)[0] == "ok"
    assert verdict(record(good + refused))[0] == "ok"
    assert verdict(record(refused))[0] == "invalid"


def test_answers_after_reasoning_are_summed_up_where_a_request_failed() -> None:
    answered, gaps = row(0, [10, 20, 30])
    failed = row(1, status="failed", finish_reason="error", error="x")
    made = record([(msgspec.structs.replace(answered, first_answer=20_000_000), gaps), failed])
    found = summarize(made, header(num_requests=2)).latency.ttfot_ms
    assert found is not None
    assert (found.count, found.mean) == (1, 20)


def test_an_interrupt_is_noted() -> None:
    made = record([row(0, [1, 2])], interrupted=True)
    assert verdict(made)[0] == "ok"
    assert "interrupted" in verdict(made)[1]


def test_distinct_messages_of_failures_are_counted() -> None:
    """What they say differs in an id alone, so it counts as one; the kinds are counted beside them."""
    said = [f"HTTP 429: rate limit, request req-{i:08x}9" for i in range(3)] + ["HTTP 400: no such model"]
    failed = [
        row(i, [], end_ms=1.0, status="failed", finish_reason="http_4xx", error=why) for i, why in enumerate(said)
    ]
    requests = summarize(record([*failed, row(4, [30, 40])]), header()).requests
    assert requests.errors == {"http_4xx": 4}
    assert requests.messages == {said[0]: 3, said[3]: 1}
