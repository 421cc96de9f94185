"""Headers of one's own for every request, and how to keep what is secret in them out of files and logs.

A gateway in front of the servers wants a key, a tenant or a route in a header. Values are not for anybody's eyes:
run.json has the names alone.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

Headers = tuple[tuple[str, str], ...]

HIDDEN = "***"
FLAG = "--header"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # a tab may stand in a value
_OURS = (  # how a request is framed and its answer read: with others, what is measured would be something else
    "content-length", "transfer-encoding", "connection", "proxy-connection", "keep-alive", "te", "trailer", "upgrade",
    "expect", "accept", "accept-encoding", "content-type", "content-encoding",
)  # fmt: skip
_CREDENTIAL = re.compile(r"authorization|cookie|key|token|secret|password|signature", re.IGNORECASE)
_LEAST_HIDDEN = 6  # characters: what is shorter may stand anywhere in a text, and says nothing


def parse_headers(texts: Sequence[str]) -> Headers:
    """(name, value) of each "Name: value". Raises ValueError in one line that never shows a value."""
    headers: list[tuple[str, str]] = []
    for number, text in enumerate(texts, start=1):
        name, colon, value = text.partition(":")
        value = value.strip(" \t")
        if not colon:  # perhaps a value alone, so it is not shown
            raise ValueError(f"want 'Name: value', but there is no colon in the {_ordinal(number)} one")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is no header's name: want letters, digits and - before the colon")
        if name.lower() in _OURS:
            raise ValueError(f"{name} is for cbbench to set: the measurement depends on it")
        if name.lower() in (other.lower() for other, _ in headers):
            raise ValueError(f"{name} is there twice; want each name once")
        headers.append((name, checked_value(name, value)))
    return tuple(headers)


def checked_value(name: str, value: str) -> str:
    """Raises ValueError in one line that never shows it."""
    if not value:
        raise ValueError(f"{name} has no value; want 'Name: value'")
    if _CONTROL.search(value):
        raise ValueError(f"the value of {name} has a line break or another control character in it")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the value of {name} has a character at position {error.start + 1} that is not latin-1, all that HTTP has"
        ) from None
    return value


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def merged(ours: Mapping[str, str], theirs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Both; of two with one name, theirs, in the place of ours."""
    headers = {name.lower(): (name, value) for name, value in ours.items()}
    headers |= {name.lower(): (name, value) for name, value in theirs}
    return dict(headers.values())


def is_credential(name: str) -> bool:
    """Whether a header says who asks, rather than what for."""
    return _CREDENTIAL.search(name) is not None


def hide(text: str, headers: Iterable[tuple[str, str]]) -> str:
    """A server's words without the values that it was sent: gateways repeat what they refuse."""
    for _, value in headers:
        for secret in (value, value.partition(" ")[2]):  # a key may stand behind its kind, as in "Bearer KEY"
            if len(secret) >= _LEAST_HIDDEN:
                for spelling in (secret, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(secret)[1:-1]):
                    text = _without_beginning(text.replace(spelling, HIDDEN), spelling)
    return text


def _without_beginning(text: str, secret: str) -> str:
    """Of a text that is cut somewhere, which may be within the secret."""
    for length in range(min(len(secret) - 1, len(text)), _LEAST_HIDDEN - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + HIDDEN
    return text


def without_values(words: Sequence[str]) -> list[str]:
    """The words of a command line, of its --header options the names alone; also of a command line in one word, as
    `compare --ab` takes two of."""
    kept: list[str] = []
    for word in words:
        flag, equals, given = word.partition("=")
        if kept and kept[-1] == FLAG:
            kept.append(_name_alone(word))
        elif flag == FLAG and equals:
            kept.append(f"{FLAG}={_name_alone(given)}")
        elif FLAG in word:
            kept.append(_of_one_word(word))
        else:
            kept.append(word)
    return kept


def _of_one_word(word: str) -> str:
    try:
        words = shlex.split(word)
    except ValueError:  # a quotation without an end: who knows where a value ends
        return HIDDEN
    return word if words == [word] else shlex.join(without_values(words))


def _name_alone(text: str) -> str:
    name, colon, _ = text.partition(":")
    return f"{name}: {HIDDEN}" if colon else HIDDEN
