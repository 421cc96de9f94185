"""The token count of `usage`, checked against the events of the stream."""

from __future__ import annotations

from typing import Any

import pytest

from reports.client_limits import client_notes
from tests.wire.driving import Outcome, load
from tests.wire.fake import DONE, HEAD, Call, chunk, delta, event, response, text, usage


def usage_of(output_tokens: Any, prompt_tokens: Any = 8, **details: int) -> bytes:
    said = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens, "completion_tokens_details": details}
    return event({"choices": [], "usage": said})


def thinking(shown: int, told: int, reasoning_tokens: int) -> Outcome:
    """`shown` reasoning events and 20 of the answer."""
    events = [delta(reasoning_content="r")] * shown + [delta(content="a")] * 19 + [delta("stop", content="z")]
    count = usage_of(told, reasoning_tokens=reasoning_tokens)
    return load(lambda call: call.send(response(*events, count, DONE)), output_tokens=220, api="chat")


def test_reasoning_counted_beside_the_answer_is_added() -> None:
    ran = thinking(shown=200, told=20, reasoning_tokens=200)
    assert (ran.row.output_tokens, ran.row.events, ran.row.token_source) == (220, 220, "usage")
    assert (ran.report.short_answer_share, ran.report.usage_below_events_share) == (0, 0)


def test_reasoning_counted_in_the_answer_is_not_added_twice() -> None:
    ran = thinking(shown=200, told=220, reasoning_tokens=200)
    assert (ran.row.output_tokens, ran.row.token_source) == (220, "usage")


@pytest.mark.parametrize("reasoning", [200, 0])
def test_reasoning_that_is_not_streamed_leaves_no_tpot(reasoning: int) -> None:
    """The server says how much it was, or it shows from the count alone."""
    ran = thinking(shown=0, told=220, reasoning_tokens=reasoning)
    assert (ran.row.output_tokens, ran.row.events, ran.row.token_source) == (220, 20, "usage_unseen")
    assert ran.report.unseen_answer_share == 1
    assert ran.report.unseen_token_share == pytest.approx(200 / 220)


def test_a_little_hidden_reasoning_is_found_by_its_count() -> None:
    assert thinking(shown=0, told=30, reasoning_tokens=10).row.token_source == "usage_unseen"


def test_a_few_tokens_in_an_event_are_seen() -> None:
    events = [text("a b c")] * 9 + [text("x y z", "length")]
    ran = load(lambda call: call.send(response(*events, usage(30), DONE)), output_tokens=30)
    assert (ran.row.output_tokens, ran.row.token_source) == (30, "usage")
    assert (ran.report.unseen_answer_share, ran.report.unseen_token_share) == (0, pytest.approx(2 / 3))


def test_more_events_than_tokens_are_counted() -> None:
    ran = thinking(shown=200, told=1, reasoning_tokens=0)
    assert (ran.row.output_tokens, ran.row.token_source) == (220, "counted")
    assert ran.report.usage_below_events_share == 1


@pytest.mark.parametrize("told", [1_000_000, 2**62, 2**63, 2**64, 10**30])
def test_an_absurd_count_is_not_believed(told: int) -> None:
    events = (*[text("a")] * 3, text("b", "length"))
    ran = load(lambda call: call.send(response(*events, usage_of(told, told), DONE)), output_tokens=64)
    assert (ran.row.status, ran.row.output_tokens, ran.row.prompt_tokens) == ("completed", 4, 8)
    assert ran.report.usage_implausible_share == 1
    assert sum(signal.output_tokens for signal in ran.record.signals) < 1000


@pytest.mark.parametrize("told", [-5, 0, True, "7", 1e30, None, [1]])
def test_what_is_no_count_is_ignored(told: object) -> None:
    ran = load(lambda call: call.send(response(text("a"), text("b", "length"), usage_of(told, told), DONE)))
    assert (ran.row.status, ran.row.output_tokens, ran.row.token_source) == ("completed", 2, "counted")


def counted(piece: str, tokens: int, finish: str | None = None) -> bytes:
    return event({"choices": [{"text": piece, "finish_reason": finish}], "usage": {"completion_tokens": tokens}})


def test_an_empty_event_with_which_the_count_grows_is_a_token() -> None:
    """The closing chunk repeats the total, so that the sum of events does not show it."""
    wait_s = 0.05

    async def script(call: Call) -> None:
        events = [counted("", 1), counted("", 2), counted("a", 3), counted("b", 4), counted("", 4, "length")]
        await call.send(HEAD)
        for one in events:
            await call.pause(wait_s)
            await call.send(chunk(one))
        await call.send(chunk(DONE), b"0\r\n\r\n")

    ran = load(script, output_tokens=4)
    times_ms = ran.event_ms()
    assert (ran.row.events, ran.row.output_tokens, ran.row.first_answer) == (4, 4, None)
    assert times_ms[1] - times_ms[0] >= wait_s * 900


def test_a_total_on_the_closing_chunk_is_no_token() -> None:
    ran = load(lambda call: call.send(response(text("a"), text("b"), counted("", 2, "length"), DONE)))
    assert (ran.row.events, ran.row.output_tokens) == (2, 2)


def test_events_in_one_read_are_coalesced() -> None:
    """The gaps of 0 ms between them are not the server's."""
    whole = chunk(b"".join([text("a")] * 99 + [text("b", "length"), usage(100), DONE])) + b"0\r\n\r\n"
    ran = load(lambda call: call.send(HEAD + whole), output_tokens=100)
    assert ran.report.coalesced_event_share == pytest.approx(0.99)


def counted_prompts(details: dict[str, Any]) -> Outcome:
    """Two answers of a server that took some of their prompts, 8 tokens each, from its prefix cache."""
    said = event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2} | details})
    return load(lambda call: call.send(response(text("a"), text("b", "stop"), said, DONE)), output_tokens=2)


@pytest.mark.parametrize(
    "details",
    [{"prompt_tokens_details": {"cached_tokens": 6}}, {"prompt_cache_hit_tokens": 6}],
    ids=["openai", "deepseek"],
)
def test_cached_prompt_tokens_are_recorded_and_noted(details: dict[str, Any]) -> None:
    ran = counted_prompts(details)
    assert (ran.row.cached_tokens, ran.report.cached_tokens, ran.report.cached_token_share) == (6, 6, 0.75)
    assert any(
        "75% of the prompt tokens came from the server's prefix cache" in note for note in client_notes(ran.report)
    )


@pytest.mark.parametrize("cached", [9, 1 << 62, 10**30, -1, "6", None, [6]])
def test_an_impossible_count_of_cached_tokens_is_not_used(cached: Any) -> None:
    ran = counted_prompts({"prompt_tokens_details": {"cached_tokens": cached}})
    assert (ran.row.status, ran.row.cached_tokens, ran.report.cached_tokens) == ("completed", None, None)


def test_no_cached_token_is_a_count() -> None:
    ran = counted_prompts({"prompt_tokens_details": {"cached_tokens": 0}})
    assert (ran.row.cached_tokens, ran.report.cached_tokens, ran.report.cached_token_share) == (0, 0, 0.0)
    assert not any("cache" in note for note in client_notes(ran.report))
