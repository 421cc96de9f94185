"""Why answers end: which finish reasons are an answer, and what is said of the requests that failed."""

from __future__ import annotations

import pytest

from tests.wire.driving import load
from tests.wire.fake import DONE, Call, FakeServer, plain, response, text, usage


def ends(reason: str, tokens: int = 3) -> bytes:
    return response(*[text("w")] * tokens, text("", reason), usage(tokens), DONE)


@pytest.mark.parametrize(
    "reason",
    ["insufficient_system_resource", "timeout", "cancelled", "content_filter", "repetition", "load_shed", "unknown"],
)
def test_any_other_reason_short_of_the_plan_is_a_failure(reason: str) -> None:
    ran = load(lambda call: call.send(ends(reason)), output_tokens=64)
    assert (ran.row.status, ran.row.finish_reason) == ("failed", "stream_error")
    assert reason in (ran.row.error or "")
    assert ran.report.finish_reasons == {reason: 1}


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "eos_token", "stop_sequence", "STOP"])
def test_a_known_reason_is_an_answer_however_short(reason: str) -> None:
    ran = load(lambda call: call.send(ends(reason)), output_tokens=64)
    assert ran.row.status == "completed"
    assert ran.report.finish_reasons == {reason: 1}


def test_an_unknown_reason_after_all_planned_tokens_is_an_answer() -> None:
    assert load(lambda call: call.send(ends("budget")), output_tokens=3).row.status == "completed"


@pytest.mark.parametrize("workers", [1, 2])
def test_reasons_are_counted(workers: int) -> None:
    async def script(call: Call) -> None:
        await call.send(ends("timeout" if call.number % 10 == 0 else "stop"))

    with FakeServer(script) as server:
        ran = load(server, requests=40, concurrency=4, output_tokens=64, workers=workers)
    assert ran.report.finish_reasons == {"stop": 36, "timeout": 4}
    assert ran.failures.count("stream_error") == 4


def test_reasons_without_end_are_bounded() -> None:
    ran = load(lambda call: call.send(ends(f"r{call.number}" * 100)), requests=50, output_tokens=64)
    assert sum(ran.report.finish_reasons.values()) == 50
    assert len(ran.report.finish_reasons) == 33
    assert max(map(len, ran.report.finish_reasons)) == 64


def test_a_refusal_keeps_its_words() -> None:
    said = b'{"error":{"message":"Rate limit reached for m: 3 RPM"}}'
    ran = load(lambda call: call.send(plain("429 Too Many Requests", said)), requests=2)
    assert all("Rate limit reached for m" in (row.error or "") for row in ran.record.rows)
