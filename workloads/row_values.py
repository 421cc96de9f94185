"""Whole numbers of a file's column: all at once if they are right, else one by one, to name the line that is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import IntColumn
from workloads.file_lines import refuse_line
from workloads.length_distributions import MAX_TOKENS


def whole_numbers(path: Path, name: str, lines: Sequence[int], values: Sequence[Any], least: int) -> IntColumn:
    """int64[rows], each from `least` to MAX_TOKENS. Raises CbbenchError, which names line and column."""
    kinds = set(map(type, values))
    if kinds <= {int} or (kinds <= {str} and "_" not in "".join(values)):  # int() accepts 1_000
        try:
            numbers = np.array(list(map(int, values)), dtype=np.int64)
        except (ValueError, OverflowError):
            pass
        else:
            if not len(numbers) or (numbers.min() >= least and numbers.max() <= MAX_TOKENS):
                return numbers
    each = (count(path, line, value, name, least) for line, value in zip(lines, values, strict=True))
    return np.fromiter(each, dtype=np.int64, count=len(values))


def count(path: Path, line: int, value: Any, name: str, least: int) -> int:
    """A whole number of at least `least` and at most MAX_TOKENS. Raises CbbenchError, which names line and column."""
    try:
        if isinstance(value, str) and "_" in value:
            raise ValueError(value)
        number = int(value)
        whole = number == value or isinstance(value, str)
    except (TypeError, ValueError, OverflowError):
        number, whole = 0, False
    if not whole or isinstance(value, bool):
        given = "nothing" if value in (None, "") else repr(value)
        refuse_line(path, line, f"{name} must be a whole number, got {given}")
    if not least <= number <= MAX_TOKENS:
        refuse_line(path, line, f"{name} is {number}, must be from {least} to {MAX_TOKENS:,}")
    return number


def numbered(names: Sequence[Any]) -> tuple[IntColumn, tuple[str, ...]]:
    """(index of each row's tenant, their names in order of appearance); a row without one is of `default`."""
    if not any(names):
        return np.zeros(len(names), dtype=np.int64), ("default",)
    known: dict[str, int] = {}
    each = (known.setdefault(str(name or "default"), len(known)) for name in names)
    return np.fromiter(each, dtype=np.int64, count=len(names)), tuple(known)
