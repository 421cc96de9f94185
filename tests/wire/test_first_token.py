"""loadgen B1 and B2: which event is the first token, and which are tokens at all."""

from __future__ import annotations

import numpy as np
import pytest

from tests.wire.driving import load
from tests.wire.fake import DONE, END, HEAD, Call, chunk, delta, event, response, text, usage

WAIT_S = 0.05


def after_wait(first: bytes, *later: bytes):  # type: ignore[no-untyped-def]
    """Sends `first` at once, and the rest WAIT_S later."""

    async def script(call: Call) -> None:
        await call.send(HEAD + chunk(first))
        await call.pause(WAIT_S)
        await call.send(b"".join(map(chunk, later)) + END)

    return script


@pytest.mark.parametrize("content", [None, ""])
def test_the_role_chunk_is_no_token(content: str | None) -> None:
    """B1 1-3, vllm #3759 #15106, aiperf #224: it comes as soon as the request is admitted, long before the prefill."""
    opening = delta(role="assistant", content=content)
    row = load(after_wait(opening, delta(content="a"), delta("stop", content="b"), usage(2), DONE), api="chat").row
    assert row.status == "completed"
    assert row.events == 2
    assert row.sent is not None
    assert row.first_byte is not None
    assert row.first is not None
    assert row.first - row.first_byte >= WAIT_S * 0.9e9, "first token counts from the text, not from the role"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_the_first_token_and_the_answer_is_kept_apart(name: str) -> None:
    """B1 4, guidellm #737 #835, sglang #35438: neither 0 nor "empty"; the first answer token has its own time."""
    ran = load(after_wait(delta(**{name: "hm"}), delta(content="a"), delta("stop"), usage(2), DONE), api="chat")
    assert ran.row.status == "completed"
    assert ran.row.events == 2
    assert ran.row.first == ran.row.first_byte
    assert ran.row.first_answer - ran.row.first >= WAIT_S * 0.9e9  # type: ignore[operator]


def test_an_answer_without_reasoning_has_no_first_answer_of_its_own() -> None:
    assert load(lambda call: call.send(response(text("a", "stop"), DONE))).row.first_answer is None


def test_reasoning_alone_is_an_answer() -> None:
    """B1 4: deltas only in `reasoning_content` are never "empty response"."""
    row = load(
        lambda call: call.send(response(delta("length", reasoning_content="hm"), usage(1), DONE)), api="chat"
    ).row
    assert (row.status, row.events) == ("completed", 1)


@pytest.mark.parametrize(
    "events",
    [
        (DONE,),
        (usage(0), DONE),
        (text(""), text("", "stop"), DONE),
        (text("", "stop"), usage(0), DONE),
        (delta(role="assistant", content=""), delta("stop"), DONE),
    ],
    ids=["only done", "usage 0", "no text", "no text and usage 0", "role and finish"],
)
def test_an_answer_without_a_token_fails_as_empty(events: tuple[bytes, ...]) -> None:
    """B1 5-7, sglang #9585, vllm #5895, guidellm #613: its first token is missing, not at 0."""
    row = load(lambda call: call.send(response(*events))).row
    assert (row.status, row.finish_reason) == ("failed", "empty")
    assert row.first is None
    assert row.last is None
    assert row.events == 0


def test_usage_proves_that_empty_events_were_tokens() -> None:
    """B1 8: tokens that make no text, such as half a character or what comes after an end token, are still tokens."""
    events = (text("a"), text(""), text("b"), text("", "length"), usage(4), DONE)
    row = load(lambda call: call.send(response(*events))).row
    assert (row.events, row.output_tokens) == (4, 4)


def test_usage_does_not_prove_what_it_does_not_add_up_to() -> None:
    events = (text("a"), text(""), text("bcd", "length"), usage(6), DONE)
    row = load(lambda call: call.send(response(*events))).row
    assert (row.events, row.output_tokens) == (2, 6)


def test_an_answer_of_empty_events_only_is_timed_by_them() -> None:
    row = load(after_wait(text(""), text("", "length"), usage(2), DONE)).row
    assert (row.status, row.events) == ("completed", 2)
    assert row.last - row.first >= WAIT_S * 0.9e9  # type: ignore[operator]


def test_tool_calls_are_tokens_and_null_ones_are_not() -> None:
    """B1 9, guidellm #752."""
    call_piece = [{"index": 0, "function": {"arguments": "{"}}]
    events = (delta(content=None, tool_calls=None), delta(tool_calls=call_piece), delta(tool_calls=call_piece))
    row = load(lambda call: call.send(response(*events, delta("tool_calls"), DONE)), api="chat").row
    assert (row.status, row.finish_reason, row.events) == ("completed", "tool_calls", 2)


def test_a_last_chunk_without_choices_carries_the_usage() -> None:
    """B1 10, production-stack #873: no IndexError, the counts are taken, the clock is untouched. B2 12: nor is a gap
    lost or made when the usage comes by itself."""
    ran = load(after_wait(text("a"), text("b", "stop"), usage(2, prompt_tokens=8), DONE))
    assert ran.row.output_tokens == 2
    assert ran.row.token_source == "usage"
    assert len(ran.event_ms()) == 2


def test_usage_may_ride_on_the_last_token() -> None:
    """B2 12, vllm #7372 #5926."""
    last = event(
        {"choices": [{"text": "b", "finish_reason": "stop"}], "usage": {"prompt_tokens": 8, "completion_tokens": 2}}
    )
    ran = load(after_wait(text("a"), last, DONE))
    assert (ran.row.events, ran.row.output_tokens) == (2, 2)
    first_ms, last_ms = ran.event_ms()
    assert last_ms - first_ms >= WAIT_S * 900


def test_the_last_usage_told_wins() -> None:
    """Servers that count along send one with every event."""
    events = [
        event(
            {"choices": [{"text": "a", "finish_reason": None}], "usage": {"prompt_tokens": 8, "completion_tokens": n}}
        )
        for n in (1, 2, 3)
    ]
    row = load(lambda call: call.send(response(*events, text("", "stop"), DONE))).row
    assert row.output_tokens == 3


def test_several_tokens_in_one_event() -> None:
    """B2 13 and 14, vllm #27485, sglang #12064: the number of tokens is the server's, the events are what was timed."""
    row = load(lambda call: call.send(response(text("a b c"), text("d e f"), text("g", "length"), usage(7), DONE))).row
    assert (row.events, row.output_tokens) == (3, 7)


def test_a_single_token_has_no_gap() -> None:
    """B2 17, vllm-omni #6693."""
    ran = load(lambda call: call.send(response(text("a", "length"), usage(1), DONE)))
    assert ran.row.first == ran.row.last
    assert np.array_equal(ran.record.event_values, [0])


def test_events_that_are_no_tokens_do_not_move_the_clock() -> None:
    """B2 20, inference-perf #392 #452: keep-alive comments, foreign events, usage and the finish come later, and `last`
    stays with the last token."""

    async def script(call: Call) -> None:
        await call.send(HEAD + chunk(text("a")) + chunk(text("b")))
        await call.pause(WAIT_S)
        rest = (
            b": ping\n\n",
            b"event: metrics\ndata: {}\n\n",
            b"event: note\ndata: hello\n\n",
            text("", "stop"),
            usage(2),
            DONE,
        )
        await call.send(b"".join(map(chunk, rest)) + END)

    row = load(script).row
    assert (row.status, row.events) == ("completed", 2)
    assert row.end - row.last >= WAIT_S * 0.9e9  # type: ignore[operator]
    assert row.last - row.first < WAIT_S * 0.5e9  # type: ignore[operator]
