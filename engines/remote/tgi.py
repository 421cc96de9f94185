"""The API of Text Generation Inference, /generate_stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engines.remote.answer import StreamedAnswer
from engines.remote.config import RemoteConfig
from engines.remote.openai import RequestSpec, extra_body
from engines.remote.sse import SseEvent

# Fields of a recorded request that are parameters of TGI too. No other one is sent.
RECORDED = ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "repetition_penalty", "stop")


def body(config: RemoteConfig, spec: RequestSpec) -> bytes:
    """Greedy by default; a temperature of 0 is refused. There is no way to continue after an end token.

    `details` asks for token counts, which the last event has (router/src/server.rs).
    """
    parameters: dict[str, Any] = {"max_new_tokens": spec.output_tokens, "details": True}
    if config.temperature > 0:
        parameters |= {"do_sample": True, "temperature": config.temperature}
    if config.top_p < 1:
        parameters["top_p"] = config.top_p
    if config.top_k:
        parameters["top_k"] = config.top_k
    parameters |= _recorded(spec.fields)
    for name in config.omit:
        parameters.pop(name, None)
    return msgspec.json.encode({"inputs": spec.prompt, "parameters": parameters} | extra_body(config, spec))


def _recorded(fields: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {name: fields[name] for name in RECORDED if name in fields}
    if isinstance(parameters.get("stop"), str):
        parameters["stop"] = [parameters["stop"]]
    if not parameters.get("temperature", 1):  # TGI refuses 0; without the field it takes the likeliest token
        del parameters["temperature"]
    elif "temperature" in parameters:
        parameters["do_sample"] = True
    return parameters


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
        decoded = _decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer.fail(f"an event that is not a token: {event.data[:200].decode('utf-8', 'replace')}")
        return
    if decoded.error is not None:
        answer.fail(decoded.error)
        return
    if decoded.token is not None:
        answer.token(at_ns)
    if decoded.details is not None:
        answer.finish_reason = decoded.details.finish_reason or answer.finish_reason
        answer.output_tokens = decoded.details.generated_tokens or answer.output_tokens
        answer.prompt_tokens = decoded.details.input_length or answer.prompt_tokens
    if decoded.generated_text is not None:
        answer.finish_reason = answer.finish_reason or "length"
        answer.done = True
