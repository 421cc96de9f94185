"""ChatTemplate: the model's Jinja template, which renders the messages of a chat into a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# For models without a template, such as random weights.
PLAIN = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class TemplateError(Exception):
    """The messages are invalid, the template refuses them, or the template is broken."""


class ChatTemplate:
    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        """special: the text of `bos_token`, `eos_token` and others, which templates refer to."""
        # As in transformers. The sandbox is needed because a template comes with a downloaded file.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template is broken: {error}") from None
        self._special = {"bos_token": "", "eos_token": ""} | dict(special or {})

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except (jinja2.TemplateError, TypeError) as error:
            raise TemplateError(f"the model's chat template does not take these messages: {error}") from None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)  # Jinja's own filter escapes for HTML


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose content is text, as chat templates want it; parts of a list are joined. TemplateError."""
    if not messages:
        raise TemplateError("messages: want at least one")
    plain = []
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise TemplateError(f"messages[{i}].role: want a string")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(_text_of(part, i) for part in content)
        if not isinstance(content, str):
            raise TemplateError(f"messages[{i}].content: want text")
        plain.append({**message, "content": content})
    return plain


def _text_of(part: Any, i: int) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise TemplateError(f"messages[{i}].content: only parts of type text are supported")
