"""Every numbered case has its tests, and every test it names is there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.engines.scheduling.cases import CASES

TESTS = Path(__file__).parents[2]
# 44 to 49 belong to the kernels and from 64 on to disaggregation; these were never given.
NEVER_GIVEN = {2, 24, 39, 53, 55, 60}


@cache
def _tests_in(module: str) -> frozenset[str]:
    """Read, not imported: some modules need torch."""
    tree = ast.parse((TESTS / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_no_number_is_left_out() -> None:
    assert set(CASES) == set(range(1, 64)) - set(range(44, 50)) - NEVER_GIVEN


@pytest.mark.parametrize("number", CASES)
def test_its_tests_exist(number: int) -> None:
    what, tests = CASES[number]
    assert what
    assert tests
    for module, name in tests:
        assert name in _tests_in(module), f"C{number}: no {name} in tests/{module.replace('.', '/')}.py"
