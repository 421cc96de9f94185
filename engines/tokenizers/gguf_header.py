"""The metadata of a GGUF file. The gguf package reads it too, but takes seconds for a vocabulary.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from workloads.errors import CbbenchError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_header(path: Path) -> dict[str, Any]:
    """All keys and values of the file's header. CbbenchError where it is not a GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).header()
    except OSError as error:
        raise CbbenchError("model", f"{path}: {error.strerror or 'cannot be read'}") from None
    except (struct.error, ValueError, KeyError):
        raise CbbenchError("model", f"{path}: broken or truncated GGUF file") from None


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> dict[str, Any]:
        magic, version = self._bytes(4), self._number("I")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("not GGUF")
        self._number("Q")  # tensors
        keys = self._number("Q")
        return {self._string(): self._value(self._number("I")) for _ in range(keys)}

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_NUMBERS[kind])
        kind, count = self._number("I"), self._number("Q")
        if kind in _NUMBERS:
            form = f"<{count}{_NUMBERS[kind]}"
            return list(struct.unpack(form, self._bytes(struct.calcsize(form))))
        return [self._value(kind) for _ in range(count)]

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._bytes(struct.calcsize(f"<{form}")))[0]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        got = self._data[self._at - count : self._at]
        if len(got) < count:
            raise ValueError("truncated")
        return got
