"""Text Generation Inference's own API, /generate_stream."""

from __future__ import annotations

from typing import Any

import msgspec

from engines.remote.answer import StreamedAnswer
from engines.remote.config import RemoteConfig
from engines.remote.openai import RequestSpec
from engines.remote.sse import SseEvent


def body(config: RemoteConfig, asked: RequestSpec) -> bytes:
    """Its defaults are greedy; it refuses a temperature of 0. It cannot be told to go on after an end token.

    Without `details` it counts for nobody: its last event then has no details either (router/src/server.rs).
    """
    parameters: dict[str, Any] = {"max_new_tokens": asked.output_tokens, "details": True}
    if config.temperature > 0:
        parameters |= {"do_sample": True, "temperature": config.temperature}
    if config.top_p < 1:
        parameters["top_p"] = config.top_p
    if config.top_k:
        parameters["top_k"] = config.top_k
    return msgspec.json.encode({"inputs": asked.prompt, "parameters": parameters} | dict(config.extra_body))


class _Details(msgspec.Struct):
    finish_reason: str | None = None
    generated_tokens: int | None = None
    input_length: int | None = None


class _Event(msgspec.Struct):
    token: dict[str, Any] | None = None
    details: _Details | None = None
    generated_text: str | None = None
    error: str | None = None


_decode = msgspec.json.Decoder(_Event).decode


def interpret(answer: StreamedAnswer, event: SseEvent, at_ns: int) -> None:
    """Every event carries one token, text or not; the last one the details."""
    try:
        said = _decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer.fail(f"an event that is not a token: {event.data[:200].decode('utf-8', 'replace')}")
        return
    if said.error is not None:
        answer.fail(said.error)
        return
    if said.token is not None:
        answer.token(at_ns)
    if said.details is not None:
        answer.finish_reason = said.details.finish_reason or answer.finish_reason
        answer.output_tokens = said.details.generated_tokens or answer.output_tokens
        answer.prompt_tokens = said.details.input_length or answer.prompt_tokens
    if said.generated_text is not None:
        answer.finish_reason = answer.finish_reason or "length"
        answer.done = True
