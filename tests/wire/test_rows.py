"""The table of rows names tests that exist, and leaves no row out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.wire.rows import ROWS

TESTS = Path(__file__).parents[1]
NOT_HERE = {8, 18, 24, 37, 40, 42, 44, 52, 57, 62, 71, 72, 73, 74, 75, 84}  # unused numbers, and what is no client's
LINES = [line for line in ROWS.splitlines() if line]


def test_every_row_is_there() -> None:
    named = {int(number) for line in LINES for number in re.findall(r"\d+", line[:10])}
    assert named == set(range(1, 89)) - NOT_HERE


@pytest.mark.parametrize("line", [line for line in LINES if " none: " not in line])
def test_the_test_is_there(line: str) -> None:
    file, name = line.split()[-2:]
    tree = ast.parse((TESTS / f"{file}.py").read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
