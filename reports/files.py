"""Files that are written as a whole or not at all, and files that are read as far as they are intact."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from workloads.errors import CbbenchError, ExitCode

T = TypeVar("T")
BLOCK_BYTES = 1 << 21


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn an OSError into a CbbenchError of one line: `PATH: No space left on device`."""
    try:
        yield
    except OSError as error:
        full_or_broken = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
        code = ExitCode.ERROR if full_or_broken else ExitCode.USAGE
        raise CbbenchError(None, f"{path}: {error.strerror or error}", exit_code=code) from error


def json_bytes(content: object) -> bytes:
    """JSON, indented, with a line end."""
    return msgspec.json.format(msgspec.json.encode(content, enc_hook=_plain), indent=2) + b"\n"


def write_atomic(path: Path, content: object) -> None:
    """Replace a JSON file at once: a reader sees the old file or the new one."""
    write_whole(path, json_bytes(content))


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file at once: it has its old content or all of `data`. CbbenchError where the disk refuses.

    A pipe, a device or the target of a link is written in place: /dev/stdout must not become a file.
    """
    temporary = path.with_name(path.name + ".tmp")
    with disk(path):
        if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
            path.write_bytes(data)
            return
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # else a power cut may leave the new name with nothing in it
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _plain(value: object) -> object:
    """Plain values of library types: torch's version is a subclass of str, NumPy scalars have item()."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a {type(value).__name__} cannot be written as JSON")


def read_json(path: Path, kind: type[T], schema: str | None = None) -> T:
    """A typed file. CbbenchError names what is missing or wrong in it, or a schema other than `schema`."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CbbenchError(None, f"{path}: no such file") from None
    except OSError as error:
        raise CbbenchError(None, f"{path}: {error.strerror}") from error
    try:
        if schema is not None:
            found = msgspec.json.decode(data, type=dict[str, Any]).get("schema")
            if found != schema:
                raise CbbenchError(None, f'{path}: its schema is "{found}", not "{schema}"')
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CbbenchError(None, f"{path}: {error}") from None


def read_lines(path: Path, kind: type[T], notes: list[str]) -> list[T]:
    """One value per line. A torn last line and corrupt lines are left out, and a note says how many."""
    return [value for block in read_blocks(path, kind, notes) for value in block]


def read_blocks(path: Path, kind: type[T], notes: list[str]) -> Iterator[list[T]]:
    """As read_lines, some thousand lines at a time, for files larger than memory. Notes are added at the end."""
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    rest, corrupt = b"", 0
    with disk(path), open(path, "rb") as file:
        while data := file.read(BLOCK_BYTES):
            data = rest + data
            whole = data[: data.rfind(b"\n") + 1]
            rest = data[len(whole) :]
            values, left_out = _decoded(decoder, whole)
            corrupt += left_out
            yield values
    if rest:
        notes.append(f"{path.name}: the last line was torn and is left out")
    if corrupt:
        notes.append(f"{path.name}: {corrupt} corrupt lines are left out")


def _decoded(decoder: msgspec.json.Decoder[T], lines: bytes) -> tuple[list[T], int]:
    """(the values, how many lines were corrupt)."""
    try:
        return decoder.decode_lines(lines), 0
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    values, corrupt = [], 0
    for line in lines.splitlines():
        try:
            values.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            corrupt += 1
    return values, corrupt


def read_array(path: Path, dtype: np.dtype[Any], notes: list[str]) -> NDArray[Any]:
    """The complete values of a binary file, mapped into memory and read on access."""
    if not path.exists():
        return np.empty(0, dtype)
    with disk(path):
        size = path.stat().st_size
        count = size // dtype.itemsize
        if count * dtype.itemsize < size:
            notes.append(f"{path.name}: the last value was torn and is left out")
        if not count:  # an empty file cannot be mapped
            return np.empty(0, dtype)
        return np.asarray(np.memmap(path, dtype, mode="r", shape=(count,)))
