"""ApiKeys: which clients may use the API. A key comes from the environment or a file, and is kept as a digest alone."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from workloads.errors import CbbenchError

FIELD = "api_key"


class ApiKeys:
    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def allow(self, authorization: str | None) -> bool:
        """Whether an Authorization header has one of the keys, in a time that tells nothing about them."""
        scheme, _, given = (authorization or "").partition(" ")
        digest = sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        same = [hmac.compare_digest(digest, one) for one in self._digests]
        return scheme.lower() == "bearer" and any(same)


def read_api_keys(source: str) -> ApiKeys:
    """Of "env:NAME" or "file:PATH", where each line is a key. Raises CbbenchError, which never shows a key."""
    kind, _, name = source.partition(":")
    if kind == "env" and name:
        keys = _keys_in(os.environ.get(name, ""))
        problem = f"the environment variable {name} is not set, or empty"
    elif kind == "file" and name:
        keys = _keys_in(_text_of(name))
        problem = f"{name} is empty"
    else:  # it may be a key, so it is not shown
        raise CbbenchError(FIELD, "want env:NAME or file:PATH; the command line itself can be read by all users")
    if not keys:
        raise CbbenchError(FIELD, f"{problem}; without `{FIELD}` the server takes every request")
    if any(not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise CbbenchError(FIELD, f"a key in {name} has a space or a character that a header cannot hold")
    return ApiKeys(keys)


def _keys_in(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise CbbenchError(FIELD, f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CbbenchError(FIELD, f"{path}: is not text") from None
