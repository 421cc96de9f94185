"""ChatTemplate: the model's own Jinja template, which makes of a chat's messages the prompt it was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# For models that come without one, such as random weights.
PLAIN = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class TemplateError(Exception):
    """The template refuses these messages, or is broken."""


class ChatTemplate:
    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        """special: `bos_token`, `eos_token` and the like, which templates name."""
        # As transformers runs them: a template comes with a downloaded file, hence the sandbox.
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
