"""Headers that a user adds to every request, and how their secret values are kept out of files and logs.

A gateway in front of the servers may want a key, a tenant or a route in a header. run.json has the names alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime

Headers = tuple[tuple[str, str], ...]

HIDDEN = "***"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # a tab may stand in a value
_RESERVED = (  # they decide how a request is framed and its answer read, so the measurement depends on them
    "content-length", "transfer-encoding", "connection", "proxy-connection", "keep-alive", "te", "trailer", "upgrade",
    "expect", "accept", "accept-encoding", "content-type", "content-encoding",
)  # fmt: skip
_CREDENTIAL = re.compile(r"authorization|cookie|key|token|secret|password|signature", re.IGNORECASE)
_MIN_HIDDEN = 6  # characters: a shorter value may occur in any text by chance


def parse_headers(texts: Sequence[str]) -> Headers:
    """(name, value) of each "Name: value". Raises ValueError in one line that never shows a value."""
    headers: list[tuple[str, str]] = []
    for number, text in enumerate(texts, start=1):
        name, colon, value = text.partition(":")
        value = value.strip(" \t")
        if not colon:  # it may be a value alone, so it is not shown
            raise ValueError(f"want 'Name: value', but there is no colon in the {_ordinal(number)} one")
        if not is_name(name):
            raise ValueError(f"{name[:40]!r} is not a header name; want letters, digits and - before the colon")
        if name.lower() in _RESERVED and (name.lower(), value.lower()) != ("connection", "close"):
            else_close = ", but for Connection: close" if name.lower() == "connection" else ""
            raise ValueError(f"{name} is set by cbbench, as the measurement depends on it{else_close}")
        if name.lower() in (other.lower() for other, _ in headers):
            raise ValueError(f"duplicate {name}; want each name once")
        headers.append((name, checked_value(name, value)))
    return tuple(headers)


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_reserved(name: str) -> bool:
    """Whether cbbench sets the header itself, as the measurement depends on it."""
    return name.lower() in _RESERVED


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
    """Both; of two with one name, theirs in the place of ours."""
    headers = {name.lower(): (name, value) for name, value in ours.items()}
    headers |= {name.lower(): (name, value) for name, value in theirs}
    return dict(headers.values())


def is_credential(name: str) -> bool:
    """Whether a header identifies the caller, by its name."""
    return _CREDENTIAL.search(name) is not None


def hide(text: str, headers: Iterable[tuple[str, str]]) -> str:
    """A text of the server's without the values that it was sent: gateways repeat what they refuse."""
    for _, value in headers:
        for secret in (value, value.partition(" ")[2]):  # the key in "Bearer KEY"
            if len(secret) >= _MIN_HIDDEN:
                for spelling in (secret, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(secret)[1:-1]):
                    text = _without_beginning(text.replace(spelling, HIDDEN), spelling)
    return text


def _without_beginning(text: str, secret: str) -> str:
    """Without the beginning of the secret at the end of a text that was cut there."""
    for length in range(min(len(secret) - 1, len(text)), _MIN_HIDDEN - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + HIDDEN
    return text


def request_id(prefix: str | None, index: int) -> str | None:
    """X-Request-Id of request `index`; None without a prefix."""
    return None if prefix is None else f"{prefix}-{index}"


def retry_after_s(value: str) -> float | None:
    """Seconds from now in a Retry-After header: a number, or a date (RFC 9110, 10.2.3). None for anything else."""
    value = value.strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        at = parsedate_to_datetime(value)
        return max(0.0, at.timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None
