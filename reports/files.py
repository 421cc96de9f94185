"""Files that are whole or not there, and files that are read as far as they are whole."""

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

from workloads.errors import CbbenchError

T = TypeVar("T")
BLOCK_BYTES = 1 << 21


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """An OSError in here comes out as a CbbenchError of one line: `PATH: No space left on device`."""
    try:
        yield
    except OSError as error:
        code = 1 if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else 2
        raise CbbenchError(None, f"{path}: {error.strerror or error}", exit_code=code) from error


def json_bytes(content: object) -> bytes:
    """Indented, as all our JSON, with a line's end."""
    return msgspec.json.format(msgspec.json.encode(content, enc_hook=_plain), indent=2) + b"\n"


def write_atomic(path: Path, content: object) -> None:
    """JSON for people to read, replaced at once: whoever reads sees the old file or the new one."""
    write_whole(path, json_bytes(content))


def write_whole(path: Path, data: bytes) -> None:
    """The file as it was or with all of `data`, never in between. CbbenchError when the disk will not take it.

    A pipe or a device, and what a link stands for, are written to where they are: /dev/stdout must not become a file.
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
    """What libraries put in place of plain values: torch's version is a str, NumPy's scalars have item()."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a {type(value).__name__} cannot be written as JSON")


def read_json(path: Path, kind: type[T], schema: str | None = None) -> T:
    """A typed file. CbbenchError names what is missing or wrong in it, and a `schema` other than the wanted one."""
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
    """One value per line. A torn last line and corrupt ones are left out, and a note says how many."""
    return [value for block in read_blocks(path, kind, notes) for value in block]


def read_blocks(path: Path, kind: type[T], notes: list[str]) -> Iterator[list[T]]:
    """The same, some thousand lines at a time, so that a long file is not in memory whole. Notes come at the end."""
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
    """Values of a fixed size, as many as are whole; they are mapped into memory, and read when they are looked at."""
    if not path.exists():
        return np.empty(0, dtype)
    with disk(path):
        size = path.stat().st_size
        count = size // dtype.itemsize
        if count * dtype.itemsize < size:
            notes.append(f"{path.name}: the last value was torn and is left out")
        if not count:  # which cannot be mapped
            return np.empty(0, dtype)
        return np.asarray(np.memmap(path, dtype, mode="r", shape=(count,)))
