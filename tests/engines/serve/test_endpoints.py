"""Every endpoint over a real socket, on an executor that repeats its prompt: answers, streams and errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engines.serve.serving import EOS, Running, echoing, eventually, ids, stream_data

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with echoing() as (running, _):
        yield running


def test_health_and_models(server: Running) -> None:
    assert server.get("/health")[0] == 200
    status, text = server.get("/v1/models")
    assert status == 200
    assert '"id":"echo"' in text
    assert '"max_model_len":512' in text
    assert '"vocab_size":512' in text


def test_a_completion_of_text(server: Running) -> None:
    status, answer = server.post(COMPLETIONS, {"model": "echo", "prompt": "hello", "max_tokens": 7})
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "echo"
    assert answer["choices"] == [{"index": 0, "text": "hellohe", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@pytest.mark.parametrize("prompt", [ids("ab"), [ids("ab")], ["ab"]])
def test_token_ids_and_lists_of_one(server: Running, prompt: Any) -> None:
    assert server.complete(prompt, max_tokens=3)["text"] == "aba"


def test_the_default_is_sixteen_tokens(server: Running) -> None:
    assert server.complete("ab")["usage"]["completion_tokens"] == 16


def test_a_completion_as_a_stream(server: Running) -> None:
    body = {"prompt": "abc", "max_tokens": 3, "stream_options": {"include_usage": True}}
    *chunks, usage, done = server.events(COMPLETIONS, body)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert {chunk["id"] for chunk in chunks} == {usage["id"]}
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in chunks)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_a_chat(server: Running) -> None:
    status, answer = server.post(CHAT, {"messages": HI, "max_tokens": 8})
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "user: hi"}
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len("user: hi\nassistant:")


def test_a_chat_as_a_stream(server: Running) -> None:
    """A role, then content, then a finish reason, then the end; no usage unless requested."""
    first, *content, finish, done = server.events(CHAT, {"messages": HI, "max_tokens": 4})
    assert done == "[DONE]"
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in content) == "user"
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert not any("usage" in chunk for chunk in (first, *content, finish))


def test_a_chat_may_fill_the_context_and_its_content_may_be_parts(server: Running) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    for more, tokens in (({}, 512 - 19), ({"max_completion_tokens": 5}, 5)):
        status, answer = server.post(CHAT, {"messages": messages, **more})
        assert status == 200
        assert answer["usage"]["completion_tokens"] == tokens
        assert answer["usage"]["prompt_tokens"] == 19


def test_an_end_of_text_token_stops(server: Running) -> None:
    prompt = [*ids("ab"), EOS]
    got = server.complete(prompt, max_tokens=9)
    assert (got["text"], got["finish_reason"], got["usage"]["completion_tokens"]) == ("ab", "stop", 2)
    got = server.complete(prompt, max_tokens=7, ignore_eos=True)
    assert (got["text"], got["finish_reason"]) == ("ababa", "length")


@pytest.mark.parametrize(
    ("min_tokens", "tokens", "reason"), [(2, 2, "stop"), (3, 5, "stop"), (6, 8, "stop"), (9, 10, "length")]
)
def test_an_end_of_text_before_min_tokens_does_not_stop(
    server: Running, min_tokens: int, tokens: int, reason: str
) -> None:
    """The prompt ends with one, so it comes as token 3, 6 and 9."""
    got = server.complete([*ids("ab"), EOS], max_tokens=10, min_tokens=min_tokens)
    assert (got["usage"]["completion_tokens"], got["finish_reason"]) == (tokens, reason)


def test_an_answer_may_be_empty(server: Running) -> None:
    assert server.complete([EOS, 5], max_tokens=9)["text"] == ""
    finish, done = server.events(COMPLETIONS, {"prompt": [EOS, 5], "max_tokens": 9})
    assert (finish["choices"][0]["text"], finish["choices"][0]["finish_reason"], done) == ("", "stop", "[DONE]")


@pytest.mark.parametrize("stop", ["cd", ["zz", "cd"]])
def test_stop_strings_cut_the_text(server: Running, stop: Any) -> None:
    got = server.complete("abcdef", max_tokens=20, stop=stop)
    assert (got["text"], got["finish_reason"], got["usage"]["completion_tokens"]) == ("ab", "stop", 4)
    *chunks, _ = server.events(COMPLETIONS, {"prompt": "abcdef", "max_tokens": 20, "stop": stop})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("depth", [0, 1])
def test_stop_token_ids_end_as_an_end_of_text_does(depth: int) -> None:
    """The token is not shown, whatever ignore_eos says; other requests of the step are not touched by it."""
    (a, b, c) = ids("abc")
    with echoing(depth=depth) as (server, _):
        got = server.complete("abc", max_tokens=20, stop_token_ids=[c], ignore_eos=True)
        assert (got["text"], got["finish_reason"], got["usage"]["completion_tokens"]) == ("ab", "stop", 2)
        assert server.metric("vllm:request_success_total", 'finished_reason="stop"') == 1
        with ThreadPoolExecutor(6) as pool:
            asked = [{"stop_token_ids": [b, EOS]}, {"stop_token_ids": [c], "min_tokens": 3}, {}] * 2
            texts = [one["text"] for one in pool.map(lambda more: server.complete("abc", max_tokens=7, **more), asked)]
        assert texts == ["a", "abcab", "abcabca"] * 2
        *chunks, _ = server.events(COMPLETIONS, {"prompt": "abc", "max_tokens": 9, "stop_token_ids": [a]})
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["stop"]
        assert server.server.engine._instance.scheduler._stop_ids == {EOS}


def test_no_chunk_holds_half_a_character(server: Running) -> None:
    text = "né🙂日本"
    *chunks, _ = server.events(COMPLETIONS, {"prompt": text, "max_tokens": len(text.encode())})
    pieces = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces)


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        (COMPLETIONS, {}, "prompt", "missing"),
        (COMPLETIONS, {"prompt": ""}, "prompt", "empty"),
        (COMPLETIONS, {"prompt": {"a": 1}}, "prompt", "expected"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt", "one prompt a request, got 2"),
        (COMPLETIONS, {"prompt": [1, "b"]}, "prompt", "token ids"),
        (COMPLETIONS, {"prompt": [512]}, "prompt", "0 to 511"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt", "0 to 511"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens", ">= 1"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "many"}, "max_tokens", "expected int"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 4, "min_tokens": 5}, "min_tokens", "more than max_tokens 4"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 600}, "max_tokens", "max_model_len is 512"),
        (COMPLETIONS, {"prompt": "a", "temperature": -1}, "temperature", ">= 0"),
        (COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p", "> 0"),
        (COMPLETIONS, {"prompt": "a", "stop": ["a", ""]}, "stop", "not empty"),
        (COMPLETIONS, {"prompt": "a", "n": 2}, "n", "not supported"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 3}, "logprobs", "not supported"),
        (COMPLETIONS, {"prompt": "a", "stream_options": 3}, "stream_options", "expected"),
        (COMPLETIONS, {"prompt": "a", "stop_token_ids": [512]}, "stop_token_ids", "0 to 511"),
        (COMPLETIONS, {"prompt": "a", "stop_token_ids": ["a"]}, "stop_token_ids", "expected int"),
        (COMPLETIONS, {"prompt": "a", "guided_regex": "a+"}, "guided_regex", "not supported"),
        (COMPLETIONS, {"prompt": "a", "structured_outputs": {"json": {}}}, "structured_outputs", "not supported"),
        (COMPLETIONS, {"prompt": "a", "min_p": 0.1}, "min_p", "not supported"),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs", "not supported"),
        (CHAT, {"messages": HI, "tool_choice": "required"}, "tool_choice", "not supported"),
        (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format", "not supported"),
        (CHAT, {"messages": []}, "messages", "at least one"),
        (CHAT, {"messages": [{"content": "a"}]}, "messages", "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages", "messages[0].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "type text"),
        (CHAT, {"messages": HI, "tools": [{}]}, "tools", "not supported"),
    ],
)
def test_a_bad_request_names_its_field(server: Running, path: str, body: Any, param: str, says: str) -> None:
    status, answer = server.post(path, body)
    assert status == 400
    assert set(answer) == {"error"}
    error = answer["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]
    assert server.post(path, {**body, "stream": True})[0] == 400


def test_other_errors_have_the_same_shape(server: Running) -> None:
    status, answer = server.post(COMPLETIONS, {"prompt": "a", "model": "gpt-4"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert "'echo'" in answer["error"]["message"]
    status, answer = server.post(COMPLETIONS, b"{not json")
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert server.post("/v2/nothing", {})[0] == 404
    status, _ = server.ask("GET", COMPLETIONS, None)
    assert status == 405
    assert server.complete("still there", max_tokens=5)["text"] == "still"


def test_a_body_may_be_large_and_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the 1 MiB that aiohttp would take, and beyond 4 MiB: the answer is about the prompt, not about bytes."""
    with echoing() as (server, _):
        status, answer = server.post(COMPLETIONS, {"prompt": "a" * (5 << 20)})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    monkeypatch.setattr("engines.serve.app.BODY_BYTES", 1 << 20)
    with echoing() as (server, _):
        status, answer = server.post(COMPLETIONS, {"prompt": "a" * (1 << 20)})
        assert status == 413
        assert "Too Large" in answer["error"]["message"]
        assert server.complete("abc", max_tokens=3)["text"] == "abc"


def test_values_that_change_nothing_are_taken(server: Running) -> None:
    harmless: dict[str, Any] = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "logprobs": None,
        "tools": [],
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "length_penalty": 1.0,
        "stop_token_ids": [],
    }
    sampling: dict[str, Any] = {
        "top_k": -1,
        "top_p": 1,
        "seed": -5,
        "priority": 3,
        "user": "me",
        "presence_penalty": 0,
        "metadata": {},
    }
    assert server.complete("abc", max_tokens=3, **harmless, **sampling)["text"] == "abc"


def test_metrics_count_what_happened(server: Running) -> None:
    before = server.metric("vllm:generation_tokens_total")
    server.complete("abc", max_tokens=9)
    assert server.metric("vllm:generation_tokens_total") == before + 9
    assert server.metric("vllm:time_to_first_token_seconds_count") > 0
    assert server.metric("vllm:inter_token_latency_seconds_count") >= 8
    assert server.metric("vllm:prompt_tokens_total") > 0
    assert server.metric("vllm:num_preemptions_total") == 0
    assert server.metric("vllm:prefix_cache_queries_total") == 0, "there is no prefix cache to ask"
    ttfts = server.metric("vllm:time_to_first_token_seconds_count")
    assert server.metric("vllm:request_queue_time_seconds_count") >= ttfts, "some answers are empty"
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert server.metric(name) == 0


def _ended(server: Running) -> dict[str, float]:
    return {
        reason: server.metric("vllm:request_success_total", f'finished_reason="{reason}"')
        for reason in ("stop", "length", "abort")
    }


@pytest.mark.parametrize("stream", [False, True])
def test_metrics_say_how_requests_ended(stream: bool) -> None:
    """Row 8 of the review: a stop string is a stop, though it aborts the request in the engine."""
    with echoing(step_s=0.002) as (server, _):
        asked: list[tuple[dict[str, Any], str]] = [
            ({"prompt": "abcdef", "max_tokens": 200, "stop": "cd"}, "stop"),
            ({"prompt": "abcdef", "max_tokens": 4, "stop": "cd"}, "stop"),  # the engine ends with the same token
            ({"prompt": [*ids("ab"), EOS], "max_tokens": 9}, "stop"),
            ({"prompt": "abcdef", "max_tokens": 5}, "length"),
        ]
        for body, reason in asked:
            before = _ended(server)
            if stream:
                server.events(COMPLETIONS, body)
            else:
                server.complete(**body)
            assert _ended(server) == before | {reason: before[reason] + 1}
        assert server.metric("vllm:e2e_request_latency_seconds_count") == 4
        assert eventually(lambda: server.metric("vllm:num_requests_running") == 0)
        assert sum(_ended(server).values()) == 4, "the abort in the engine is not counted again"


def test_metrics_of_each_request() -> None:
    """Times as vLLM defines them: queue, prefill to the first token, decode from there on, inference both."""
    step_s = 0.02
    with echoing(step_s) as (server, _):
        server.complete("abcdef", max_tokens=5)
        server.complete("abc", max_tokens=100, stop="bc")
        got = {
            name: (server.metric(f"vllm:request_{name}_count"), server.metric(f"vllm:request_{name}_sum"))
            for name in ("prompt_tokens", "generation_tokens", "params_max_tokens", "prefill_time_seconds",
                         "decode_time_seconds", "inference_time_seconds", "time_per_output_token_seconds")
        }  # fmt: skip
        assert got["prompt_tokens"] == (2, 9)
        assert got["generation_tokens"] == (2, 8)
        assert got["params_max_tokens"] == (2, 105)
        assert got["prefill_time_seconds"][0] == got["decode_time_seconds"][0] == 2
        assert got["prefill_time_seconds"][1] >= 2 * step_s
        assert got["decode_time_seconds"][1] >= (4 + 2) * step_s
        both = got["prefill_time_seconds"][1] + got["decode_time_seconds"][1]
        assert got["inference_time_seconds"] == (2, pytest.approx(both))
        assert got["time_per_output_token_seconds"][1] >= 2 * step_s
        assert server.metric("vllm:iteration_tokens_total_sum") >= 9 + 4 + 2


def test_metrics_tell_used_cached_and_free_blocks_apart() -> None:
    states = ("used", "reserved", "pending", "cached", "free")
    with echoing(step_s=0.01, prefix_caching=True, block_size=16, kv_blocks=64) as (server, _):

        def blocks() -> dict[str, float]:
            return {state: server.metric("cbbench:kv_blocks", f'state="{state}"') for state in states}

        with server.opened(COMPLETIONS, {"prompt": "a" * 40, "max_tokens": 300}) as response:
            assert next(stream_data(response))
            assert blocks()["used"] >= 3
            assert server.metric("vllm:kv_cache_usage_perc") > 0
        assert eventually(lambda: blocks()["used"] == 0)
        after = blocks()
        assert after["cached"] >= 2
        assert sum(after.values()) == 64
        assert server.metric("vllm:kv_cache_usage_perc") == 0, "what can be evicted is as good as free"


def test_metrics_of_the_prefix_cache() -> None:
    """Two full blocks of the first prompt are held when the second comes; its last token is always computed."""
    with echoing(prefix_caching=True, block_size=16) as (server, _):
        for prompt in ("a" * 40, "a" * 33, "b" * 40):
            server.complete(prompt, max_tokens=2)
        assert server.metric("vllm:prefix_cache_queries_total") == 40 + 33 + 40
        assert server.metric("vllm:prefix_cache_hits_total") == 32


def test_the_queue_time_is_the_time_without_a_slot() -> None:
    """One slot, four requests of three steps at least: the first waits for nothing, the last for nine steps."""
    step_s = 0.02
    with echoing(step_s, max_num_seqs=1) as (server, _):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: server.complete("ab", max_tokens=3), range(4)))
        assert server.metric("vllm:request_queue_time_seconds_count") == 4
        assert server.metric("vllm:request_queue_time_seconds_sum") > (0 + 2 + 5 + 8) * step_s
