"""Servers that refuse a field: it is left out or renamed once, and said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.wire.driving import Outcome, load
from tests.wire.fake import GOOD, Call, FakeServer, plain
from workloads.errors import CbbenchError


def refusing(names: set[str], say: Any = None, **config: Any) -> tuple[Outcome, FakeServer]:
    """Of a server that refuses the fields one at a time. say(name): the body of its refusal."""

    async def script(call: Call) -> None:
        refused = sorted(names & call.body.keys())
        body = openai(refused[0]) if refused and say is None else say(refused[0]) if refused else ""
        await call.send(plain("400 Bad Request", body.encode()) if refused else GOOD)

    with FakeServer(script) as server:
        return load(server, requests=3, warmup_requests=1, **config), server


def openai(name: str) -> str:
    """As gateways to the OpenAI API say it."""
    hint = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
    message = f"Unsupported parameter: '{name}' is not supported with this model.{hint}"
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": name}})


def fastapi(name: str) -> str:
    """The whole body is repeated, with fields that are not meant."""
    body = {"model": "m", "temperature": 0.0, "ignore_eos": True, "stream_options": {}, name: 1}
    detail = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": body}
    return json.dumps({"detail": [detail]})


def mistral(name: str) -> str:
    return json.dumps({"object": "error", "message": {"detail": [{"loc": ["body", name], "msg": "Extra inputs"}]}})


@pytest.mark.parametrize("say", [openai, fastapi, mistral, lambda name: f"unknown field `{name}`"])
@pytest.mark.parametrize("name", ["ignore_eos", "min_tokens", "stream_options", "temperature"])
def test_a_refused_field_is_left_out_and_said(name: str, say: Any) -> None:
    ran, server = refusing({name}, say)
    assert ran.failures == [None] * 3
    assert [name in body for body in server.bodies[:3]] == [True, True, False]  # two probes, then without it
    others = {"ignore_eos", "min_tokens", "stream_options", "temperature"} - {name}
    assert others <= server.bodies[-1].keys()
    (note,) = ran.report.notes
    assert f"does not take {name}; left out" in note


def test_max_tokens_is_renamed() -> None:
    ran, server = refusing({"max_tokens"}, api="chat", output_tokens=2)
    assert ran.failures == [None] * 3
    assert "max_tokens" not in server.bodies[-1]
    assert server.bodies[-1]["max_completion_tokens"] == 2
    assert ran.report.notes == ("the server does not take max_tokens; sent as max_completion_tokens",)


@pytest.mark.parametrize("workers", [1, 2])
def test_several_refused_fields(workers: int) -> None:
    names = {"ignore_eos", "min_tokens", "stream_options", "temperature", "max_tokens"}
    ran, server = refusing(names, workers=workers, concurrency=2)
    assert ran.failures == [None] * 3
    assert len(ran.report.notes) == len(names)
    assert not any(names & body.keys() for body in server.bodies[-3:])


def test_a_limit_on_max_tokens_renames_nothing() -> None:
    with pytest.raises(CbbenchError, match="max_tokens is too large"):
        refusing({"max_tokens"}, lambda _: '{"error":{"message":"max_tokens is too large: 9 > 4"}}', prompt_form="text")


def test_what_the_user_wants_sent_is_not_left_out() -> None:
    with pytest.raises(CbbenchError, match="temperature"):
        refusing({"temperature"}, extra_body={"temperature": 0.7})


def test_text_where_ids_and_a_field_are_refused() -> None:
    async def script(call: Call) -> None:
        if isinstance(call.body["prompt"], list):
            await call.send(plain("422 No", b'{"detail":"prompt: input should be a valid string"}'))
        elif "ignore_eos" in call.body:
            await call.send(plain("400 No", openai("ignore_eos").encode()))
        else:
            await call.send(GOOD)

    with FakeServer(script) as server:
        ran = load(server, requests=2, warmup_requests=1)
    assert ran.failures == [None] * 2
    assert isinstance(server.bodies[-1]["prompt"], str)
    assert "ignore_eos" not in server.bodies[-1]


def test_fields_to_omit() -> None:
    with FakeServer(lambda call: call.send(GOOD)) as server:
        load(server, omit=("temperature", "stream_options", "model", "user"))
        load(server, omit=("temperature",), extra_body={"temperature": 0.3})
    assert not {"temperature", "stream_options", "model"} & server.bodies[0].keys()
    assert server.bodies[1]["temperature"] == 0.3


def test_without_a_warmup_nothing_is_adapted_and_it_is_said() -> None:
    async def script(call: Call) -> None:
        await call.send(plain("400 Bad Request", openai("max_tokens").encode()))

    ran = load(script, requests=3)
    assert ran.failures == ["http_4xx"] * 3
    (note,) = [one for one in ran.report.notes if "warmup is 0" in one]
    assert "sent as max_completion_tokens" in note
