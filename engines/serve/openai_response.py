"""ApiResponse: the response objects of the OpenAI API, whole or as the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> Json:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


@dataclass(frozen=True)
class ApiResponse:
    """Builds the objects of one response of one endpoint."""

    api: Literal["completions", "chat"]
    model: str
    include_usage: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, finish_reason: str, used: Json) -> Json:
        chat = self.api == "chat"
        content: Json = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        response = self._object("chat.completion" if chat else "text_completion", _choice(content, finish_reason))
        return response | {"usage": used}

    def opening(self) -> bytes:
        """The first chunk of a chat stream names the role."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}) if self.api == "chat" else b""

    def piece(self, text: str) -> bytes:
        return self._chunk({"delta": {"content": text}} if self.api == "chat" else {"text": text})

    def finish(self, finish_reason: str) -> bytes:
        return self._chunk({"delta": {}} if self.api == "chat" else {"text": ""}, finish_reason)

    def closing(self, used: Json) -> bytes:
        """The end of a stream: the usage, if requested, and [DONE]."""
        chunk = self._object(self._chunk_kind) | {"usage": used}
        return event(chunk) + DONE if self.include_usage else DONE

    def _chunk(self, content: Json, finish_reason: str | None = None) -> bytes:
        chunk = self._object(self._chunk_kind, _choice(content, finish_reason))
        return event(chunk | {"usage": None} if self.include_usage else chunk)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.api == "chat" else "text_completion"

    def _object(self, kind: str, *choices: Json) -> Json:
        prefix = "chatcmpl" if self.api == "chat" else "cmpl"
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _choice(content: Json, finish_reason: str | None) -> Json:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
