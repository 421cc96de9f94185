"""When a load client's own slowness spoils its numbers."""

from __future__ import annotations

import msgspec
import pytest

from engines.base import ClientReport
from reports.client_limits import client_limits, client_notes
from reports.metrics import RequestTimes, request_times
from reports.render.run import connections_line
from reports.schema import Criteria, SlaResult
from reports.summary import completed_run
from reports.validity import validity
from tests.reports.factory import header, record, row, ttft_record

GOOD = ClientReport(
    stamps="kernel",
    loop_lag_p99_ms=0.2,
    read_lag_p99_ms=0.1,
    send_lag_p99_ms=0.3,
    cpu_share=0.2,
    achieved_over_asked_rate=1.0,
    coalesced_event_share=0.0,
    token_events=1000,
    cpu_s=1.0,
    resends=0,
    connections=8,
    prompt_mismatch_share=0.0,
    prompt_tokens_over_mean=0.0,
    short_answer_share=0.0,
    workers=1,
)


def _times() -> RequestTimes:
    return request_times(ttft_record([40.0] * 30))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"send_lag_p99_ms": 2.5}, "sent late: P99 2.5 ms, limit 2.0 ms"),  # 5 % of a TTFT of 40 ms
        ({"stamps": "read", "read_lag_p99_ms": None, "loop_lag_p99_ms": 500.0}, "read late: P99 500.0 ms"),
        ({"cpu_share": 0.95}, "95% of its core"),
        ({"achieved_over_asked_rate": 0.9}, "0.900 of the offered rate"),
        ({"read_lag_p99_ms": 500.0, "coalesced_event_share": 0.4}, "40% of the token events were read together"),
    ],
)
def test_each_way_of_not_keeping_up_is_named_with_its_limit(change: dict[str, object], says: str) -> None:
    (reason,) = client_limits(msgspec.structs.replace(GOOD, **change), _times(), capped=False)
    assert says in reason


def test_a_client_that_keeps_up_is_no_limit() -> None:
    assert client_limits(GOOD, _times(), capped=False) == ()
    assert client_notes(GOOD) == ()


def test_a_client_that_was_kept_off_the_cores_is_noted() -> None:
    assert client_notes(msgspec.structs.replace(GOOD, core_wait_s=0.9)) == ()
    (note,) = client_notes(msgspec.structs.replace(GOOD, core_wait_s=1.5))
    assert "waited 1.50 s for one" in note
    tiny = msgspec.structs.replace(GOOD, cpu_s=0.001, core_wait_s=0.05)
    assert client_notes(tiny) == ()


def test_what_is_the_servers_doing_is_not_held_against_the_client() -> None:
    capped_rate = msgspec.structs.replace(GOOD, achieved_over_asked_rate=0.5)
    assert client_limits(capped_rate, _times(), capped=True) == ()
    batching_server = msgspec.structs.replace(GOOD, coalesced_event_share=0.5)
    assert client_limits(batching_server, _times(), capped=False) == ()
    late_but_stamped = msgspec.structs.replace(GOOD, read_lag_p99_ms=500.0)
    assert client_limits(late_but_stamped, _times(), capped=False) == ()


def test_the_verdict_is_client_limited_unless_something_worse_is_true() -> None:
    busy = msgspec.structs.replace(GOOD, cpu_share=0.99, prompt_mismatch_share=0.2)
    judged = validity(_times(), max_failure_rate=0.01, open_loop=False, client=busy)
    assert judged.verdict == "client_limited"
    assert any("20.0% of the prompts" in reason for reason in judged.reasons)
    nothing = request_times(ttft_record([], failed=5))
    assert validity(nothing, max_failure_rate=0.01, open_loop=False, client=busy).verdict == "invalid"


def test_a_finish_reason_that_is_not_an_answers_is_noted() -> None:
    assert client_notes(msgspec.structs.replace(GOOD, finish_reasons={"stop": 9, "length": 1})) == ()
    (note,) = client_notes(msgspec.structs.replace(GOOD, finish_reasons={"stop": 36, "timeout": 4}))
    assert "timeout: 4" in note
    assert "stop" not in note


def judged(expr: str, **client: object) -> SlaResult:
    """The SLA on requests whose tokens came 10 ms apart, by a client that says this of itself."""
    made = record([row(i, [i + 40.0 + 10 * j for j in range(20)], scheduled_ms=float(i)) for i in range(400)])
    report = msgspec.structs.replace(GOOD, **client)
    criteria = Criteria(sla=(expr,))
    (one,) = completed_run(made, msgspec.structs.replace(header(), client=report, criteria=criteria)).sla
    return one


def test_a_tpot_that_was_not_seen_is_not_judged() -> None:
    assert judged("p50_tpot_ms<=50").verdict == "pass"
    for bound in (1, 50):
        one = judged(f"p50_tpot_ms<={bound}", unseen_answer_share=0.4, unseen_token_share=0.9)
        assert (one.verdict, one.value) == ("inconclusive", None)
        assert "most tokens of 40% of the outputs came in no event" in one.reason
    assert judged("p50_ttft_ms<=50", unseen_answer_share=0.4).verdict == "pass"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"usage_below_events_share": 0.5}, "50.0% of the outputs have fewer tokens by their usage"),
        ({"usage_implausible_share": 0.5}, "impossibly large"),
        ({"unseen_token_share": 0.9, "unseen_answer_share": 1.0}, "90% of the output tokens came in no event"),
        ({"unseen_token_share": 0.6, "unseen_answer_share": 0.0}, "TPOT is per token, ITL per event"),
    ],
)
def test_a_count_that_disagrees_with_the_stream_is_noted(change: dict[str, object], says: str) -> None:
    (note,) = client_notes(msgspec.structs.replace(GOOD, **change))
    assert says in note


@pytest.mark.parametrize("bound", [5, 50])
def test_itl_of_events_that_came_together_is_not_judged(bound: int) -> None:
    """100 events in one read have a P99 of 0 ms, and would pass."""
    assert judged("p99_itl_ms<=50", coalesced_event_share=0.04).verdict == "pass"
    one = judged(f"p99_itl_ms<={bound}", coalesced_event_share=0.75)
    assert (one.verdict, one.value) == ("inconclusive", None)
    assert "75% of the token events came together" in one.reason
    assert judged("p50_tpot_ms<=50", coalesced_event_share=0.75).verdict == "pass"


def test_records_that_were_written_late_are_noted() -> None:
    assert client_notes(msgspec.structs.replace(GOOD, record_lag_p99_ms=40.0, record_backlog_peak=9)) == ()
    (note,) = client_notes(msgspec.structs.replace(GOOD, record_lag_p99_ms=400.0, record_backlog_peak=9))
    assert "P99 400 ms after the end" in note
    assert "at most 9 waited" in note


def test_connections_that_were_waited_for_or_not_used_are_noted() -> None:
    (waited,) = client_notes(msgspec.structs.replace(GOOD, connection_waits=3, connection_wait_p99_ms=40.0))
    assert "3 requests waited for a connection, P99 40.0 ms" in waited
    assert client_notes(msgspec.structs.replace(GOOD, connection_waits=3, connection_wait_p99_ms=0.2)) == ()
    (unused,) = client_notes(msgspec.structs.replace(GOOD, connections=8, connections_used=5))
    assert "8 connections were opened, 5 of them used" in unused


def test_connections_and_handshakes_have_a_line_of_their_own() -> None:
    opened = msgspec.structs.replace(
        GOOD, connections=12, connections_peak=8, handshake_p50_ms=0.41, handshake_p99_ms=12.5
    )
    assert connections_line(opened) == ("connections 12 opened, at most 8 at once · handshake P50 0.41 ms, P99 12.5 ms")
    assert connections_line(GOOD) == connections_line(None) == ""
