"""Prompts of a file on the wire: as they are, in every API, and counted by the server that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from tests.wire.driving import Watching
from tests.wire.fake import DONE, END, HEAD, Call, FakeServer, chunk, event, plain, response, text, usage
from workloads.errors import CbbenchError
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.spec import build_plan

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'Why "so"?\n'}]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "u"}}]}
]
WORDS = {"prompt": 'Tell me: "why" é\n', "output_tokens": 2, "tenant": "acme", "priority": 3}


def plan_of(tmp_path: Path, *rows: dict[str, Any], n: int | None = None) -> RequestPlan:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"output_tokens": 2} | row) + "\n" for row in rows), "utf-8")
    return build_plan(str(path), num_requests=n or len(rows), seed=0, arrival="poisson", max_model_len=None)


def run(server: FakeServer, plan: RequestPlan, **config: Any) -> RemoteEngine:
    """The rows are at `engine.rows` of the observer's, in plan order."""
    engine = RemoteEngine(RemoteConfig(**({"url": server.url, "warmup_requests": 0} | config)))
    watching = Watching()
    engine.run(plan, Pacing(plan.arrivals_ugap, concurrency=config.get("workers", 1)), watching)
    assert {row.status for row in watching.rows} == {"completed"}
    engine.rows = sorted(watching.rows, key=lambda row: row.i)  # type: ignore[attr-defined]
    return engine


async def counting(call: Call) -> None:
    """A tokenizer for which a letter is a token, and a template that adds 7 to a chat."""
    body = call.body
    said = body.get("prompt") or "".join(str(one["content"]) for one in body["messages"]) + " " * 7
    await call.send(response(text("a"), text("b", "length"), usage(2, len(said)), DONE))


def test_as_text_with_tenant_and_priority_and_counted_by_usage(tmp_path: Path) -> None:
    with FakeServer(counting) as server:
        engine = run(server, plan_of(tmp_path, WORDS, {"prompt": "b" * 100}))
    first, second = server.bodies
    assert first["prompt"] == WORDS["prompt"]
    assert (first["user"], first["priority"], first["max_tokens"]) == ("acme", 3, 2)
    assert second["prompt"] == "b" * 100
    assert [row.prompt_tokens for row in engine.rows] == [len(WORDS["prompt"]), 100]  # type: ignore[attr-defined]
    assert engine.client is not None
    assert engine.client.prompt_mismatch_share is None, "no length was planned"
    assert engine.client.prompt_guessed_share is None


def test_chats_as_they_are_and_prompts_as_a_users_words(tmp_path: Path) -> None:
    with FakeServer(counting) as server:
        engine = run(
            server, plan_of(tmp_path, {"messages": CHAT}, {"prompt": "hello"}, {"messages": PARTS}), api="chat"
        )
    assert [body["messages"] for body in server.bodies] == [CHAT, [{"role": "user", "content": "hello"}], PARTS]
    assert not any("prompt" in body for body in server.bodies)
    assert engine.rows[1].prompt_tokens == len("hello") + 7  # type: ignore[attr-defined]


def test_tgi(tmp_path: Path) -> None:
    info = plain("200 OK", b'{"model_id": "m", "max_total_tokens": 4096}')

    async def script(call: Call) -> None:
        details = {"finish_reason": "length", "generated_tokens": 1, "input_length": 9}
        last = event({"token": {"id": 1, "text": "a"}, "generated_text": "a", "details": details})
        await call.send(HEAD + chunk(last) + END)

    with FakeServer(script, models=info) as server:
        engine = run(server, plan_of(tmp_path, WORDS), api="tgi")
    assert server.bodies[0]["inputs"] == WORDS["prompt"]
    assert engine.rows[0].prompt_tokens == 9  # type: ignore[attr-defined]


def test_a_file_that_counts_is_checked(tmp_path: Path) -> None:
    with FakeServer(counting) as server:
        engine = run(
            server, plan_of(tmp_path, {"prompt": "abc", "prompt_tokens": 3}, {"prompt": "abc", "prompt_tokens": 5})
        )
    assert engine.client is not None
    assert engine.client.prompt_mismatch_share == 0.5
    assert engine.client.prompt_tokens_over_mean == -1


def test_a_server_that_does_not_count_leaves_a_guess_that_is_told(tmp_path: Path) -> None:
    from reports.client_limits import client_notes

    async def silent(call: Call) -> None:
        await call.send(response(text("a"), text("b", "length"), DONE))

    with FakeServer(silent) as server:
        engine = run(server, plan_of(tmp_path, {"prompt": "a" * 40}))
    assert engine.rows[0].prompt_tokens == 10  # type: ignore[attr-defined]
    assert engine.client is not None
    assert engine.client.prompt_guessed_share == 1
    assert any("did not count 100% of the prompts" in note for note in client_notes(engine.client))


def test_warm_up_says_nothing_of_the_file_and_workers_share_it(tmp_path: Path) -> None:
    said = [f"prompt number {i}" for i in range(6)]
    with FakeServer(counting) as server:
        run(server, plan_of(tmp_path, *({"prompt": one} for one in said)), warmup_requests=3, workers=2)
    prompts = [body["prompt"] for body in server.bodies]
    assert sorted(prompts[-6:]) == said
    assert len(prompts) == 6 + 3 + 2
    assert not set(prompts[:-6]) & set(said)


def test_hits_of_a_prefix_cache_are_expected(tmp_path: Path) -> None:
    from tests.engines.remote.test_scrape import VLLM

    async def metrics(path: str) -> bytes:
        return plain("200 OK", VLLM.encode(), "text/plain")

    with FakeServer(counting, metrics=metrics) as server:
        engine = run(server, plan_of(tmp_path, WORDS), scrape=True)
    assert engine.client is not None
    assert engine.client.scrape is not None
    assert engine.client.scrape.prefixes_shared


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "p.jsonl, line 2: messages: completions takes no chats; want chat"),
        ({"api": "chat", "prompt_form": "ids"}, "prompt_form: `api` chat takes no token ids"),
        ({"prompt_form": "ids"}, "prompt_form: ids, but "),
    ],
)
def test_what_the_api_has_no_place_for(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with FakeServer(counting) as server, pytest.raises(CbbenchError) as caught:
        run(server, plan_of(tmp_path, WORDS, {"messages": CHAT}), **config)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    assert server.bodies == []
