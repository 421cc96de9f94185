"""Fields that a server of the OpenAI API may not take: recognized in its refusal, and then left out or renamed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from engines.remote.config import RemoteConfig
from engines.remote.paths import Api

# What it means to leave a field out.
_SHORTER = "answers may be shorter than planned"
_LEFT_OUT = {
    "ignore_eos": _SHORTER,
    "min_tokens": _SHORTER,
    "stream_options": "it may not report its token counts, so that events are counted",
    "temperature": "it samples at a temperature of its own",
    "top_p": "it samples by a top_p of its own",
    "top_k": "it samples by a top_k of its own",
}
_RENAMED = {"max_tokens": "max_completion_tokens"}


def adapted(config: RemoteConfig, sent: frozenset[str], error: str) -> tuple[RemoteConfig, tuple[str, ...]] | None:
    """(the configuration without what the server refuses, a note each); None if it names no field that can be spared.

    sent: fields of the body that cbbench chose. error: as in a row, "HTTP 400: " and the start of the body.
    """
    if config.api == "tgi" or not error.startswith(("HTTP 400", "HTTP 422")):
        return None
    said = " ".join(_texts(error))
    notes = []
    for old, new in _RENAMED.items():
        if old in sent and _names(said, old) and _names(said, new):
            config = replace(config, renamed=(*config.renamed, (old, new)))
            notes.append(f"the server does not take {old}; sent as {new}")
    for name, consequence in _LEFT_OUT.items():
        if name in sent and _names(said, name):
            config = replace(config, omit=(*config.omit, name))
            notes.append(f"the server does not take {name}; left out, so {consequence}")
    return (config, tuple(notes)) if notes else None


def own_fields(body: bytes, config: RemoteConfig) -> frozenset[str]:
    """The fields of a body that cbbench chose, without those of `extra_body`, which the user wants sent."""
    return frozenset(msgspec.json.decode(body)) - frozenset(config.extra_body)


def omittable(api: Api) -> tuple[str, ...]:
    """What `omit` may name."""
    if api == "tgi":
        return ("details", "temperature", "do_sample", "top_p", "top_k")
    return ("model", "max_tokens", *_LEFT_OUT, "user", "priority")


OMITTABLE = tuple(dict.fromkeys((*omittable("chat"), *omittable("tgi"))))


def _names(said: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){name}(?!\w)", said) is not None


def _texts(error: str) -> Iterator[str]:
    """What a refusal says of fields. A validation error may repeat the whole body, which says nothing."""
    text = error.partition(": ")[2]
    try:
        said = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):  # plain text, or cut
        yield re.split(r"[\"']input[\"']\s*:", text)[0]
        return
    yield from _messages(said)


def _messages(said: Any) -> Iterator[str]:
    if isinstance(said, str):
        yield said
    elif isinstance(said, list):
        for one in said:
            yield from _messages(one)
    elif isinstance(said, dict):
        for key in ("error", "message", "msg", "detail", "details", "param", "loc"):
            yield from _messages(said.get(key))
