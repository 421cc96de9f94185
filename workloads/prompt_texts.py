"""Texts: what the prompts of a plan say, where they come from a file and not from a seed.

A file of prompts has one JSON object per line: `prompt`, a string, or `messages`, as in OpenAI's chats; and if you like
`output_tokens` or `max_tokens`, `prompt_tokens`, a time of arrival, a tenant and a priority.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workloads.file_lines import refuse

Messages = tuple[dict[str, Any], ...]
Content = str | Messages
Encode = Callable[[Content], Sequence[int]]  # a model's tokenizer; ValueError says why it takes no such content
CountedBy = Literal["tokenizer", "file", "server"]

BYTES_PER_TOKEN = 4  # of English and code, about; where nobody has counted
DEFAULT_OUTPUT_TOKENS = 256  # of a line that asks for none


@dataclass(frozen=True, eq=False)
class PromptFile:
    """The prompts of a file, one per line. lines: int64[n], which line of it each was."""

    path: str
    contents: tuple[Content, ...]
    lines: NDArray[np.int64]

    def encoded(self, rows: Sequence[int], encode: Encode) -> dict[int, NDArray[np.int32]]:
        """The tokens of these rows. Raises WorkloadError with the line that the tokenizer cannot make any of."""
        ids: dict[int, NDArray[np.int32]] = {}
        for row in rows:
            content = self.contents[row]
            try:
                ids[row] = np.array(encode(content), dtype=np.int32)
            except ValueError as error:
                self.refuse(row, f"{field_of(content)}: {error}")
            if not len(ids[row]):
                self.refuse(row, f"{field_of(content)}: the tokenizer makes no token of it")
        return ids

    def refuse(self, row: int, problem: str) -> None:
        refuse(Path(self.path), int(self.lines[row]), problem)


@dataclass(frozen=True, eq=False)
class PromptTexts:
    """What the requests of a plan say.

    which       int64[n]: the row of the script that request i asks
    counted_by  whose count the plan's prompt_tokens are. "server": nobody's yet, so that they are guesses
    ids         the tokens of a row, where a tokenizer counted them
    """

    script: PromptFile
    which: NDArray[np.int64]
    counted_by: CountedBy
    ids: dict[int, NDArray[np.int32]] | None = None

    @staticmethod
    def of(script: PromptFile, rows: NDArray[np.intp], counted_by: CountedBy, encode: Encode | None) -> PromptTexts:
        """Of these rows of a script, one for each request. Raises WorkloadError where `encode` refuses one of them."""
        which = rows.astype(np.int64)
        if encode is None:
            return PromptTexts(script, which, counted_by)
        return PromptTexts(script, which, "tokenizer", script.encoded(np.unique(which).tolist(), encode))

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Tokens of each request's prompt, where a tokenizer counted them."""
        if self.ids is None:
            return None
        return np.array([len(self.ids[row]) for row in self.which.tolist()], dtype=np.int64)

    def content(self, index: int) -> Content:
        return self.script.contents[int(self.which[index])]

    def tokens(self, index: int) -> NDArray[np.int32]:
        """int32[prompt_tokens of request `index`]. Raises ValueError where nobody has made tokens of them."""
        if self.ids is None:
            raise ValueError(f"{self.script.path}: no tokenizer has read its prompts")
        return self.ids[int(self.which[index])]

    def line(self, index: int) -> int:
        return int(self.script.lines[int(self.which[index])])

    @cached_property
    def num_prompts(self) -> int:
        """Of the file, that are asked."""
        return len(np.unique(self.which))

    @cached_property
    def sha256(self) -> str:
        """Identity of what is said, request by request; the plan's own hash covers lengths and arrivals alone."""
        each = {row: hashlib.sha256(canonical(self.script.contents[row])).digest() for row in np.unique(self.which)}
        digest = hashlib.sha256()
        for row in self.which:
            digest.update(each[row])
        return digest.hexdigest()


def canonical(content: Content) -> bytes:
    """One spelling of it. Raises UnicodeEncodeError for half a character, which JSON can hold and no server takes, and
    ValueError for a number that Python reads and JSON cannot hold."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def field_of(content: Content) -> str:
    return "prompt" if isinstance(content, str) else "messages"


def guessed_tokens(content: Content) -> int:
    """At BYTES_PER_TOKEN; of a chat without its template."""
    said = content if isinstance(content, str) else "".join(_said(message) for message in content)
    return max(1, -(-len(said.encode()) // BYTES_PER_TOKEN))


def _said(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def content_of(path: Path, line: int, row: dict[str, Any]) -> Content:
    """What a line asks. Raises WorkloadError, which names the line and the field."""
    if ("prompt" in row) == ("messages" in row):
        both = "prompt and messages: want one of the two" if "prompt" in row else "want prompt or messages"
        refuse(path, line, both)
    content = _prompt(path, line, row["prompt"]) if "prompt" in row else _messages(path, line, row["messages"])
    try:
        canonical(content)
    except UnicodeEncodeError:
        refuse(path, line, f"{field_of(content)}: half of a surrogate pair, which is no character")
    except ValueError:
        refuse(path, line, f"{field_of(content)}: NaN or Infinity, which are no JSON")
    return content


def _prompt(path: Path, line: int, value: object) -> str:
    if not isinstance(value, str):
        refuse(path, line, f"prompt must be a string, got {_kind(value)}")
    if not value:
        refuse(path, line, "prompt is empty")
    return value


def _messages(path: Path, line: int, value: object) -> Messages:
    if not isinstance(value, list) or not value:
        refuse(path, line, f"messages must be a list of messages, got {_kind(value)}")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            refuse(path, line, f'messages[{number}] must be an object like {{"role": "user", "content": "..."}}')
        if not isinstance(message.get("content"), str | list | None):
            refuse(path, line, f"messages[{number}].content must be a string or a list of parts")
    return tuple(value)


def _kind(value: object) -> str:
    """For a message."""
    if value == []:
        return "an empty list"
    words = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return "nothing" if value is None else words.get(type(value), "an object")
