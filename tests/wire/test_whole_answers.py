"""Answers without a stream: E2EL is measured, and nothing that needs the time of a token."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from reports.client_limits import unseen_times
from tests.wire.driving import load
from tests.wire.fake import Call, FakeServer, plain

USAGE = {"prompt_tokens": 8, "completion_tokens": 5}
TEXT = {"choices": [{"text": " a b c d e", "finish_reason": "length"}], "usage": USAGE}
CHAT = {"choices": [{"message": {"role": "assistant", "content": "a b"}, "finish_reason": "stop"}], "usage": USAGE}
WAIT_S = 0.05


def answering(body: object) -> Callable[[Call], Any]:
    async def answer(call: Call) -> None:
        await call.pause(WAIT_S)
        await call.send(plain("200 OK", json.dumps(body).encode()))

    return answer


@pytest.mark.parametrize(("api", "body"), [("completions", TEXT), ("chat", CHAT)])
def test_a_whole_answer_has_an_end_and_no_first_token(api: str, body: object) -> None:
    with FakeServer(answering(body)) as server:
        ran = load(server, output_tokens=5, api=api, stream=False)
    row = ran.row
    assert (row.status, row.output_tokens, row.token_source, row.events) == ("completed", 5, "whole", 0)
    assert row.first is None
    assert row.last is not None
    assert row.sent is not None
    assert row.last - row.sent >= WAIT_S * 0.9e9
    (sent,) = server.bodies
    assert sent["stream"] is False
    assert "stream_options" not in sent
    assert "\r\nAccept: application/json\r\n" in server.heads[0]
    assert unseen_times(ran.report, "ttft_ms") == "not measured: the answers came whole, not as a stream"
    assert unseen_times(ran.report, "e2el_ms") is None


@pytest.mark.parametrize("completion_tokens", [None, 10**30, -1, "5"])
def test_without_a_believable_usage_the_tokens_are_not_known(completion_tokens: object) -> None:
    body = TEXT | {"usage": {"completion_tokens": completion_tokens}}
    with FakeServer(answering(body)) as server:
        assert load(server, output_tokens=5, stream=False).row.output_tokens == 0


@pytest.mark.parametrize(
    ("body", "failure"),
    [({"choices": [], "usage": USAGE}, "empty"), ({"error": {"message": "no room"}}, "stream_error")],
)
def test_an_answer_without_a_choice_or_with_an_error_fails(body: object, failure: str) -> None:
    with FakeServer(answering(body)) as server:
        assert load(server, output_tokens=5, stream=False).failures == [failure]


def test_an_answer_that_is_cut_fails() -> None:
    async def cut(call: Call) -> None:
        await call.send(plain("200 OK", json.dumps(TEXT).encode())[:-10])
        call.close()

    with FakeServer(cut) as server:
        assert load(server, output_tokens=5, stream=False).failures == ["truncated"]
