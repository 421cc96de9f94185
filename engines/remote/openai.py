"""The OpenAI API: its request bodies, and the events of its streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engines.remote import templates
from engines.remote.answer import StreamedAnswer
from engines.remote.config import RemoteConfig
from engines.remote.sse import SseEvent

# Finish reasons of requests that the server gave up, however long their answers are.
ABANDONED = ("error", "abort")
MOST_REASON_CHARS = 64


class RequestSpec(msgspec.Struct, frozen=True):
    """One request, independent of the API. prompt: token ids, or text; messages: those of a chat instead."""

    prompt: Sequence[int] | str
    output_tokens: int
    messages: Sequence[dict[str, Any]] | None = None
    tenant: str | None = None
    priority: int = 0
    fields: Mapping[str, Any] = {}  # of a recorded request; they replace cbbench's own
    index: int = 0  # in the plan


def completion_body(config: RemoteConfig, model: str, spec: RequestSpec) -> bytes:
    return _encode({"model": model, "prompt": spec.prompt}, config, spec)


def chat_body(config: RemoteConfig, model: str, spec: RequestSpec) -> bytes:
    messages = spec.messages or [{"role": "user", "content": spec.prompt}]
    return _encode({"model": model, "messages": messages}, config, spec)


def _encode(body: dict[str, Any], config: RemoteConfig, spec: RequestSpec) -> bytes:
    body |= {
        "max_tokens": spec.output_tokens,
        "temperature": config.temperature,
        "stream": config.stream,
    }
    if config.stream:
        body["stream_options"] = {"include_usage": True}
    # Strict servers refuse unknown fields, so those with a default value are left out.
    if config.ignore_eos:
        body |= {"ignore_eos": True, "min_tokens": spec.output_tokens}
    if config.top_p < 1:
        body["top_p"] = config.top_p
    if config.top_k:
        body["top_k"] = config.top_k
    if spec.tenant is not None:
        body["user"] = spec.tenant
    if spec.priority:
        body["priority"] = spec.priority
    body |= spec.fields
    for old, new in config.renamed:
        body[new] = body.pop(old)
    for name in config.omit:
        body.pop(name, None)
    return msgspec.json.encode(body | extra_body(config, spec))


def extra_body(config: RemoteConfig, spec: RequestSpec) -> dict[str, Any]:
    """What the user adds to the body, with the values of this request."""
    if not config.extra_body_varies:
        return dict(config.extra_body)
    values = {"i": spec.index, "tenant": spec.tenant or "default", "output_tokens": spec.output_tokens}
    filled: dict[str, Any] = templates.filled(config.extra_body, values)
    return filled


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    completion_tokens_details: Any = None
    prompt_tokens_details: Any = None
    prompt_cache_hit_tokens: Any = None  # DeepSeek's name of prompt_tokens_details.cached_tokens


class _Delta(msgspec.Struct, gc=False):
    """A chat's delta. Any: servers put null, "", [] and text in all of these."""

    role: Any = None
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct, gc=False):
    text: Any = None
    delta: _Delta | None = None
    message: _Delta | None = None  # of a chat that comes whole
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


def interpret(answer: StreamedAnswer, event: SseEvent, at_ns: int) -> None:
    """One event of a completion's or a chat's stream."""
    data = event.data
    if len(data) < 16 and data.strip() in (b"[DONE]", b""):
        answer.done = bool(data.strip())  # no data: keeps the connection alive
        return
    try:
        chunk = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if event.type in (b"message", b"error"):  # other types may hold anything
            answer.fail(f"an event that is not a chunk: {data[:200].decode('utf-8', 'replace')}")
        return
    if chunk.error is not None or event.type == b"error" or chunk.object == "error":
        answer.fail(_message(chunk.error if chunk.error is not None else chunk.message))
        return
    grew = False
    if chunk.usage is not None:
        before = answer.output_tokens
        _count(answer, chunk.usage)
        # The total that comes with the closing chunk, or after it, has not grown by that chunk.
        closing = answer.finish_reason or (chunk.choices[0].finish_reason if chunk.choices else None)
        grew = (answer.output_tokens or 0) > (before or 0) and (before is not None or not closing)
    if chunk.choices:
        _choice(answer, chunk.choices[0], at_ns, grew)


def _choice(answer: StreamedAnswer, choice: _Choice, at_ns: int, grew: bool) -> None:
    """grew: the server's count of tokens grew with this event, so that it has a token even without text."""
    delta = choice.delta or choice.message
    if choice.text or (
        delta is not None and (delta.content or delta.tool_calls or delta.function_call or delta.refusal)
    ):
        answer.token(at_ns)
    elif delta is not None and (delta.reasoning_content or delta.reasoning):
        answer.token(at_ns, reasoning=True)
    elif delta is None or not delta.role:  # the chunk that only opens the message comes before any token
        if grew:
            answer.token(at_ns)
        elif choice.finish_reason and answer.finish_reason is None:
            answer.closing_ns = at_ns
        elif answer.finish_reason is None:
            answer.empty_ns.append(at_ns)
    if choice.finish_reason:
        answer.finish_reason = str(choice.finish_reason)[:MOST_REASON_CHARS]
        if answer.finish_reason in ABANDONED:
            answer.fail(f"finish_reason: {answer.finish_reason}")


def _count(answer: StreamedAnswer, usage: _Usage) -> None:
    if _is_count(usage.prompt_tokens):
        answer.prompt_tokens = usage.prompt_tokens
    if _is_count(usage.completion_tokens):
        answer.output_tokens = usage.completion_tokens
    details = usage.completion_tokens_details
    if isinstance(details, dict) and _is_count(details.get("reasoning_tokens")):
        answer.reasoning_tokens = details["reasoning_tokens"]
    prompt = usage.prompt_tokens_details
    cached = prompt.get("cached_tokens") if isinstance(prompt, dict) else usage.prompt_cache_hit_tokens
    if type(cached) is int and cached >= 0:
        answer.cached_tokens = cached


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _message(error: Any) -> str:
    """The message of an error object, or all of one in an unknown shape."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()
