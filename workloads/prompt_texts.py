"""Prompts of a file: their content, and their tokens once a tokenizer has read them.

A file of prompts has one JSON object per line: `prompt`, a string, or `messages`, as in OpenAI's chat API; optional are
`output_tokens` or `max_tokens`, `prompt_tokens`, an arrival time, a tenant and a priority, and fields of the request.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workloads.columns import IntColumn
from workloads.file_lines import refuse_line
from workloads.request_fields import RequestFields

Messages = tuple[dict[str, Any], ...]
Content = str | Messages
Encode = Callable[[Content], Sequence[int]]  # a model's tokenizer; ValueError says why it cannot encode a content
CountedBy = Literal["tokenizer", "file", "server"]
TokenIds = NDArray[np.int32]

BYTES_PER_TOKEN = 4  # about, for English and code; used until a tokenizer or the server counts
DEFAULT_OUTPUT_TOKENS = 256  # of a line that states no output length


@dataclass(frozen=True, eq=False)
class PromptFile:
    """The prompts of a file, one per row.

    lines   int64[rows]: the line of the file that each row was read from
    fields  what else of each row is sent with its request; empty: of no row
    unsent  rows that have a field of this name, which is not sent
    """

    path: str
    contents: tuple[Content, ...]
    lines: IntColumn
    fields: tuple[RequestFields, ...] = ()
    unsent: Mapping[str, int] = field(default_factory=dict)

    def field_counts(self) -> dict[str, int]:
        """Rows by the name of the field that is sent with them."""
        return dict(Counter(chain.from_iterable(self.fields)))

    def taken(self, rows: NDArray[np.intp]) -> PromptFile:
        """These rows of it, in this order."""
        fields = tuple(self.fields[row] for row in rows) if self.fields else ()
        return PromptFile(self.path, tuple(self.contents[row] for row in rows), self.lines[rows], fields, self.unsent)

    def refuse(self, row: int, problem: str) -> None:
        refuse_line(Path(self.path), int(self.lines[row]), f"{field_of(self.contents[row])}: {problem}")


class PromptTokens:
    """Token ids of a file's prompts. Each prompt is tokenised once, when it is first needed; keep it between plans."""

    def __init__(self, file: PromptFile, encode: Encode) -> None:
        self._file = file
        self._encode = encode
        self._ids: dict[int, TokenIds] = {}

    def of(self, row: int) -> TokenIds:
        """int32[tokens of the prompt in `row`]. Raises CbbenchError, naming the line, if it cannot be tokenised."""
        if row not in self._ids:
            try:
                ids = np.array(self._encode(self._file.contents[row]), dtype=np.int32)
            except ValueError as error:
                self._file.refuse(row, str(error))
            if not len(ids):
                self._file.refuse(row, "the tokenizer makes no token of it")
            self._ids[row] = ids
        return self._ids[row]


@dataclass(frozen=True, eq=False)
class PromptTexts:
    """The prompts of a plan's requests.

    rows        int64[n]: the row of the file that request i sends
    counted_by  the source of the plan's prompt_tokens. "server": it has not counted yet, so they are estimates
    ids         token ids by row, if a tokenizer counted them
    """

    file: PromptFile
    rows: IntColumn
    counted_by: CountedBy
    ids: dict[int, TokenIds] | None = None

    @staticmethod
    def of(file: PromptFile, rows: NDArray[np.intp], counted_by: CountedBy, tokens: PromptTokens | None) -> PromptTexts:
        """Texts of one row per request. Raises CbbenchError if a prompt cannot be tokenised."""
        column = rows.astype(np.int64)
        if tokens is None:
            return PromptTexts(file, column, counted_by)
        return PromptTexts(file, column, "tokenizer", {row: tokens.of(row) for row in np.unique(column).tolist()})

    @property
    def lengths(self) -> IntColumn | None:
        """Tokens of each request's prompt; None if no tokenizer counted them."""
        if self.ids is None:
            return None
        return np.array([len(self.ids[row]) for row in self.rows.tolist()], dtype=np.int64)

    def content(self, index: int) -> Content:
        return self.file.contents[int(self.rows[index])]

    def fields(self, index: int) -> RequestFields:
        """What else is sent with request `index`."""
        return self.file.fields[int(self.rows[index])] if self.file.fields else {}

    def tokens(self, index: int) -> TokenIds:
        """int32[prompt_tokens of request `index`]. Raises ValueError if no tokenizer has read the prompts."""
        if self.ids is None:
            raise ValueError(f"{self.file.path}: no tokenizer has read its prompts")
        return self.ids[int(self.rows[index])]

    def line(self, index: int) -> int:
        return int(self.file.lines[int(self.rows[index])])

    @cached_property
    def num_prompts(self) -> int:
        """Different prompts of the file that the plan uses."""
        return len(np.unique(self.rows))

    @cached_property
    def sha256(self) -> str:
        """Identity of the contents, request by request; the plan's own hash covers lengths and arrivals only."""
        each = {row: hashlib.sha256(self._whole(row)).digest() for row in np.unique(self.rows).tolist()}
        digest = hashlib.sha256()
        for row in self.rows.tolist():
            digest.update(each[row])
        return digest.hexdigest()

    def _whole(self, row: int) -> bytes:
        fields = self.file.fields[row] if self.file.fields else {}
        return canonical(self.file.contents[row]) + (canonical(fields) if fields else b"")


def canonical(content: Content | RequestFields) -> bytes:
    """The content as canonical JSON. Raises UnicodeEncodeError for a lone surrogate, which no server accepts, and
    ValueError for NaN or Infinity, which JSON cannot hold."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def field_of(content: Content) -> str:
    return "prompt" if isinstance(content, str) else "messages"


def estimated_tokens(content: Content) -> int:
    """Tokens of the text at BYTES_PER_TOKEN, without a chat template."""
    text = content if isinstance(content, str) else "".join(_text_of(message) for message in content)
    return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def content_of(path: Path, line: int, row: dict[str, Any]) -> Content:
    """The prompt of a line. Raises CbbenchError, which names the line and the key."""
    if ("prompt" in row) == ("messages" in row):
        both = "prompt and messages: want one of the two" if "prompt" in row else "want prompt or messages"
        refuse_line(path, line, both)
    content = _prompt(path, line, row["prompt"]) if "prompt" in row else _messages(path, line, row["messages"])
    try:
        canonical(content)
    except UnicodeEncodeError:
        refuse_line(path, line, f"{field_of(content)}: half of a surrogate pair, which is not a character")
    except ValueError:
        refuse_line(path, line, f"{field_of(content)}: NaN or Infinity, which JSON cannot hold")
    return content


def _prompt(path: Path, line: int, value: object) -> str:
    if not isinstance(value, str):
        refuse_line(path, line, f"prompt must be a string, got {_kind(value)}")
    if not value:
        refuse_line(path, line, "prompt is empty")
    return value


def _messages(path: Path, line: int, value: object) -> Messages:
    if not isinstance(value, list) or not value:
        refuse_line(path, line, f"messages must be a list of messages, got {_kind(value)}")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            refuse_line(path, line, f'messages[{number}] must be an object like {{"role": "user", "content": "..."}}')
        if not isinstance(message.get("content"), str | list | None):
            refuse_line(path, line, f"messages[{number}].content must be a string or a list of parts")
    return tuple(value)


def _kind(value: object) -> str:
    """The type of a JSON value, in words."""
    if value == []:
        return "an empty list"
    words = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return "nothing" if value is None else words.get(type(value), "an object")
