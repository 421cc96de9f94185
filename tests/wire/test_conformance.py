"""The streams of the servers that people run, as their sources and documents have them: what is read of each.

Replayed, not recorded. docs/servers.md has the table, and which servers were loaded for real.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.wire.driving import load
from tests.wire.fake import HEAD, Call, FakeServer, event

END = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Server:
    """A stream of three tokens, the second of them without text, and what is to be read of it."""

    name: str
    api: str
    stream: tuple[bytes, ...]  # an event each, or a comment
    tokens_at: tuple[int, ...]  # events of the stream that are tokens
    finish_reason: str
    cached_tokens: int | None = None
    config: dict[str, Any] = field(default_factory=dict)


def chat(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
    if delta is not None:
        choice["delta"] = delta
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]} | more)


def counts(**more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11} | more


def closing(usage: dict[str, Any]) -> bytes:
    """The chunk that the OpenAI API ends with under `include_usage`."""
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage})


def text(piece: str, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": piece, "logprobs": None, "finish_reason": finish}
    return event({"id": "c", "object": "text_completion", "choices": [choice]} | more)


def tgi(number: int, piece: str, last: bool = False) -> bytes:
    """router/src/server.rs and lib.rs (StreamResponse): no space after `data:`."""
    token = {"id": number, "text": piece, "logprob": -0.5, "special": False}
    details = {"finish_reason": "length", "generated_tokens": 3, "seed": None, "input_length": 8} if last else None
    whole = {"index": number, "token": token, "generated_text": "a b" if last else None, "details": details}
    return b"data:" + json.dumps(whole).encode() + b"\n\n"


SERVERS = [
    # vllm/entrypoints/openai/chat_completion/serving.py: a chunk with the role first, the usage in one of its own.
    Server(
        "vLLM", "chat",
        (
            chat({"role": "assistant", "content": ""}), chat({"content": "a"}), chat({"content": ""}),
            chat({"content": " b"}, "length", stop_reason=None),
            closing(counts(prompt_tokens_details={"cached_tokens": 4})), END,
        ),
        (1, 2, 3), "length", cached_tokens=4,
    ),
    Server(
        "vLLM", "completions",
        (text("a"), text(""), text(" b", "length"), closing(counts()), END), (0, 1, 2), "length",
    ),
    # python/sglang/srt/entrypoints/openai/serving_chat.py: the reason comes in a chunk without content.
    Server(
        "SGLang", "chat",
        (
            chat({"role": "assistant", "content": ""}), chat({"content": "a"}), chat({"content": ""}),
            chat({"content": " b"}), chat({"content": None}, "length", matched_stop=None),
            closing(counts(prompt_tokens_details=None)), END,
        ),
        (1, 2, 3), "length",
    ),
    Server(
        "TGI", "tgi",
        (tgi(1, "a"), tgi(2, ""), tgi(3, " b", last=True)), (0, 1, 2), "length", config={"model": "m"},
    ),
    # tools/server/server-task.cpp: the role with null content, the reason with an empty delta, `timings` at the end.
    Server(
        "llama.cpp", "chat",
        (
            chat({"role": "assistant", "content": None}), chat({"content": "a"}), chat({"content": "c"}),
            chat({"content": " b"}), chat({}, "length", timings={"cache_n": 4, "predicted_n": 3}),
            closing(counts(prompt_tokens_details={"cached_tokens": 4})), END,
        ),
        (1, 2, 3), "length", cached_tokens=4,
    ),
    # tensorrt_llm/serve/postprocess_handlers.py: null fields are left out.
    Server(
        "TensorRT-LLM", "chat",
        (
            event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "model": "m"}),
            event({"choices": [{"index": 0, "delta": {"content": "a"}}], "model": "m"}),
            event({"choices": [{"index": 0, "delta": {"content": "c"}}], "model": "m"}),
            event({"choices": [{"index": 0, "delta": {"content": " b"}, "finish_reason": "length"}], "model": "m"}),
            closing(counts(prompt_tokens_details={"cached_tokens": 0})), END,
        ),
        (1, 2, 3), "length", cached_tokens=0,
    ),
    # BerriAI/litellm#28735: the usage comes in a chunk that has a choice with an empty delta.
    Server(
        "LiteLLM", "chat",
        (
            chat({"role": "assistant", "content": "a"}), chat({"content": "c"}), chat({"content": " b"}),
            chat({}, "length"), chat({}, None, usage=counts(prompt_tokens_details={"cached_tokens": 4})), END,
        ),
        (0, 1, 2), "length", cached_tokens=4,
    ),
    # openai/openai.go: every delta has the role; the last one is empty and has the reason.
    Server(
        "Ollama", "chat",
        (
            chat({"role": "assistant", "content": "a"}), chat({"role": "assistant", "content": "c"}),
            chat({"role": "assistant", "content": " b"}), chat({"role": "assistant", "content": ""}, "length"),
            closing(counts()), END,
        ),
        (0, 1, 2), "length",
    ),
    # Azure OpenAI: filter results before the answer and, with the asynchronous filter, in chunks without a delta.
    Server(
        "Azure OpenAI", "chat",
        (
            event({"choices": [], "created": 0, "id": "", "model": "", "prompt_filter_results": [{"prompt_index": 0}]}),
            chat({"role": "assistant", "content": "", "refusal": None}), chat({"content": "a"}),
            chat({"content": "c"}), chat({"content": " b"}), chat({}, "stop"),
            chat(None, None, content_filter_offsets={"check_offset": 44}),
            closing(counts(prompt_tokens_details={"cached_tokens": 0, "audio_tokens": 0})), END,
        ),
        (2, 3, 4), "stop", cached_tokens=0,
    ),
    # OpenRouter (openrouter.ai/docs, "Streaming"): comments while the request waits.
    Server(
        "OpenRouter", "chat",
        (
            b": OPENROUTER PROCESSING\n\n", b": OPENROUTER PROCESSING\n\n", chat({"role": "assistant", "content": "a"}),
            chat({"role": "assistant", "content": "c"}), chat({"role": "assistant", "content": " b"}),
            chat({"role": "assistant", "content": ""}, "length", native_finish_reason="length"),
            chat({"role": "assistant", "content": ""}, None, usage=counts()), END,
        ),
        (2, 3, 4), "length",
    ),
]  # fmt: skip
GAP_S = 0.01


@pytest.mark.parametrize("server", SERVERS, ids=lambda one: f"{one.name} {one.api}")
def test_the_stream_of(server: Server) -> None:
    """Each event in a read of its own, so that the gaps say which of them were taken for tokens."""

    async def replay(call: Call) -> None:
        await call.send(HEAD.replace(b"Transfer-Encoding: chunked", b"Connection: close"), *server.stream, gap_s=GAP_S)
        call.close()

    with FakeServer(replay) as fake:
        ran = load(fake, output_tokens=3, api=server.api, **server.config)
    row = ran.row
    assert (row.status, row.error) == ("completed", None)
    assert (row.output_tokens, row.token_source, row.prompt_tokens) == (3, "usage", 8)
    assert (row.finish_reason, row.cached_tokens) == (server.finish_reason, server.cached_tokens)
    assert row.events == len(server.tokens_at)
    assert row.first is not None
    assert row.first_byte is not None
    # The head is sent one gap before the first event.
    assert (row.first - row.first_byte) / 1e9 >= (server.tokens_at[0] + 0.5) * GAP_S
    assert ran.report.usage_below_events_share == 0
