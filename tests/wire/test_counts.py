"""loadgen B3: how many tokens, in and out, and by whose count; and the fields of the request bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reports.client_limits import client_notes
from tests.wire.driving import load
from tests.wire.fake import DONE, END, GOOD, HEAD, Call, FakeServer, chunk, delta, event, plain, response, text, usage
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan


def test_an_answer_shorter_than_asked() -> None:
    """B3 23, sglang #24254: the count is the server's, not max_tokens."""
    ran = load(lambda call: call.send(response(text("a", "stop"), usage(1), DONE)), output_tokens=100)
    assert (ran.row.output_tokens, ran.row.token_source) == (1, "usage")
    assert ran.report.short_answer_share == 1


def test_an_answer_longer_than_asked() -> None:
    ran = load(lambda call: call.send(response(text("a"), text("b"), text("c", "stop"), usage(3), DONE)))
    assert (ran.row.output_tokens, ran.report.long_answer_share, ran.report.short_answer_share) == (3, 1, 0)
    assert any("100.0% of the outputs were longer than requested" in note for note in client_notes(ran.report))


def test_a_server_without_usage() -> None:
    """B3 25, vllm #14673: counted by events, and said so."""
    row = load(lambda call: call.send(response(text("a"), text("b", "stop"), DONE))).row
    assert (row.output_tokens, row.token_source, row.prompt_tokens) == (2, "counted", 8)


def test_hidden_reasoning_is_in_the_count() -> None:
    """B3 33, llmeter #99: usage counts tokens that no event showed."""
    row = load(lambda call: call.send(response(delta("stop", content="a"), usage(50), DONE)), api="chat").row
    assert (row.output_tokens, row.events) == (50, 1)


def test_prompts_go_as_ids_of_exactly_the_planned_length() -> None:
    """B3 26, sglang #15732 (92 % of prompts had another length)."""
    with FakeServer(lambda call: call.send(GOOD)) as server:
        ran = load(server, requests=5, prompt_tokens=8)
    assert [len(body["prompt"]) for body in server.bodies] == [8] * 5
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 5
    assert ran.report.prompt_mismatch_share == 0


def test_a_server_that_counts_prompts_otherwise_is_found_out() -> None:
    """B3 26 and 29, guidellm #75: the server's count is the truth, and how often it differs is reported."""
    ran = load(
        lambda call: call.send(response(text("a", "stop"), usage(1, prompt_tokens=31), DONE)), requests=4, api="chat"
    )
    assert {row.prompt_tokens for row in ran.record.rows} == {31}
    assert ran.report.prompt_mismatch_share == 1
    assert ran.report.prompt_tokens_over_mean == 23


def words(call: Call) -> int:
    prompt = call.body.get("prompt") or call.body["messages"][0]["content"]
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


def test_a_chat_template_is_taken_off_the_text() -> None:
    """B3 29: 20 tokens more than the text; after the check the served length is the planned one."""

    async def script(call: Call) -> None:
        n = call.body["max_tokens"]
        await call.send(
            response(*[delta(content="a")] * (n - 1), delta("length", content="b"), usage(n, words(call) + 20), DONE)
        )

    ran = load(script, requests=4, prompt_tokens=50, api="chat", warmup_requests=2)
    assert {row.prompt_tokens for row in ran.record.rows} == {50}
    assert ran.report.prompt_mismatch_share == 0


def test_a_prompt_shorter_than_the_template_is_one_word() -> None:
    async def script(call: Call) -> None:
        await call.send(response(delta("length", content="b"), usage(1, words(call) + 20), DONE))

    ran = load(script, prompt_tokens=5, output_tokens=1, api="chat", warmup_requests=1)
    assert ran.row.prompt_tokens == 21
    assert ran.report.prompt_mismatch_share == 1


def test_text_where_ids_are_refused() -> None:
    async def script(call: Call) -> None:
        if isinstance(call.body["prompt"], list):
            await call.send(plain("422 No", b'{"detail":"prompt: input should be a valid string"}'))
        else:
            await call.send(response(text("a"), text("b", "length"), usage(2, words(call)), DONE))

    with FakeServer(script) as server:
        ran = load(server, requests=3, prompt_tokens=40, warmup_requests=2)
    assert ran.failures == [None] * 3
    assert ran.report.prompt_mismatch_share == 0
    assert all(isinstance(body["prompt"], str) for body in server.bodies[-3:])


def test_the_length_of_the_answer_is_asked_for() -> None:
    """B3 30, vllm #13333, guidellm #979."""
    with FakeServer(lambda call: call.send(GOOD)) as server:
        load(server, output_tokens=7)
        load(server, output_tokens=7, ignore_eos=False)
    asked, left_out = server.bodies
    assert (asked["max_tokens"], asked["min_tokens"], asked["ignore_eos"]) == (7, 7, True)
    assert asked["stream_options"] == {"include_usage": True}
    assert left_out["max_tokens"] == 7
    assert not {"ignore_eos", "min_tokens"} & left_out.keys()


@pytest.mark.parametrize("field", ["ignore_eos", "min_tokens"])
def test_a_strict_server_is_explained(field: str) -> None:
    """B3 30, genai-bench #116 #123: one line that names the field and the way out."""
    refusal = plain("400 Bad Request", f'{{"error":{{"message":"Unrecognized request argument: {field}"}}}}'.encode())
    with FakeServer(lambda call: call.send(refusal)) as server, pytest.raises(CbbenchError) as caught:
        load(server, warmup_requests=1)
    assert caught.value.exit_code == 2
    assert caught.value.field == "ignore_eos"
    assert f"does not take {field}; turn this off" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tgi() -> None:
    """Its own API: text only, one token per event, the counts in the last one if asked for, no [DONE]."""
    info = plain("200 OK", b'{"model_id":"bloom","max_total_tokens":2048}')

    async def script(call: Call) -> None:
        served = len(call.body["inputs"].split()) + 1
        last = {"finish_reason": "length", "generated_tokens": 2, "input_length": served}
        first_event = event({"token": {"id": 1, "text": "a"}, "generated_text": None, "details": None})
        details = last if call.body["parameters"].get("details") else None
        last_event = event({"token": {"id": 2, "text": "b"}, "generated_text": "ab", "details": details})
        await call.send(HEAD + chunk(first_event), chunk(last_event) + END)

    with FakeServer(script, models=info) as server:
        ran = load(server, requests=3, api="tgi", prompt_tokens=20, warmup_requests=1)
    assert ran.failures == [None] * 3
    assert {(row.prompt_tokens, row.output_tokens, row.events) for row in ran.record.rows} == {(20, 2, 2)}
    assert {row.token_source for row in ran.record.rows} == {"usage"}
    assert server.heads[0].startswith("POST /generate_stream ")
    assert server.bodies[-1]["parameters"]["max_new_tokens"] == 2


def test_sampling_tenant_priority_and_more_are_sent_where_they_say_something() -> None:
    settings: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "extra_body": {"seed": 7},
        "api_key": "secret",
    }
    with FakeServer(lambda call: call.send(GOOD)) as server:
        load(server, **settings)
        load(server)
    rich, bare = server.bodies
    assert (rich["temperature"], rich["top_p"], rich["top_k"], rich["seed"]) == (0.5, 0.9, 5, 7)
    assert not {"top_p", "top_k", "seed", "user", "priority"} & bare.keys()
    assert "Authorization: Bearer secret\r\n" in server.heads[0]
    assert "Authorization" not in server.heads[1]


def test_tenants_and_priorities_of_the_plan() -> None:
    from engines.remote.request_bodies import PromptMaker

    plan = RequestPlan.of([4, 4], [1, 1], tenant=np.array([1, 0]), priority=np.array([3, 0]), tenants=("free", "paid"))
    maker = PromptMaker(plan, as_ids=True, token_ids=(10, 20), prompt_seed=0)
    assert [(one.tenant, one.priority) for one in map(maker.spec, (0, 1))] == [("paid", 3), ("free", 0)]


def test_warm_up_prompts_are_of_their_own() -> None:
    """B7 72: no cache of prefixes may carry over, so no measured prompt begins as one of the warm-up does."""
    with FakeServer(lambda call: call.send(GOOD)) as server:
        load(server, requests=50, warmup_requests=4)
    warm = {body["prompt"][0] for body in server.bodies[:-50]}
    measured = {body["prompt"][0] for body in server.bodies[-50:]}
    assert len(server.bodies) == 50 + 4 + 2
    assert not warm & measured


def test_another_prompt_seed_is_other_text() -> None:
    with FakeServer(lambda call: call.send(GOOD)) as server:
        load(server, prompt_seed=0)
        load(server, prompt_seed=1)
        load(server, prompt_seed=1)
    first, second, again = (tuple(body["prompt"]) for body in server.bodies)
    assert first != second == again
