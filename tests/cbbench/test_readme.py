"""The README's examples really run, and name only flags that exist.

A ```console block after `<!-- runs -->` is run as it stands. `<!-- runs, in the test with: FLAGS -->` appends FLAGS to
every command of the block, so that a test need not wait for a real model.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from cbbench.cli.options import CONFIG_FILE, DEBUG, run_options
from tests.cbbench.conftest import Outcome

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- runs(?:, in the test with: (?P<extra>.*?))? -->\n```console\n(?P<body>.*?)```", re.S)


def commands(block: re.Match[str]) -> list[list[str]]:
    lines = [line[2:] for line in block["body"].replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [[*shlex.split(line), *shlex.split(block["extra"] or "")] for line in lines]


BLOCKS = [commands(block) for block in BLOCK.finditer(README)]


def test_there_are_examples() -> None:
    assert BLOCKS


def slow_with_servers(block: list[list[str]]) -> ParameterSet:
    """A server per point takes its time; tests/cbbench/test_launch.py has the quick test of it."""
    marks = [pytest.mark.slow] if any("--launch" in command for command in block) else []
    return pytest.param(block, id=" ".join(block[0][:3]), marks=marks)


@pytest.mark.parametrize("block", [slow_with_servers(block) for block in BLOCKS])
def test_block_runs(cbbench: Callable[..., Outcome], block: list[list[str]]) -> None:
    for program, *arguments in block:
        assert program == "cbbench"
        outcome = cbbench(*arguments)
        assert outcome.code == 0, outcome.err


def test_flags_exist() -> None:
    declared = [option.annotation.__metadata__[0] for option in (*run_options(), CONFIG_FILE, DEBUG)]
    known = {name for one in declared for names in (one.default, *one.param_decls) for name in names.split("/")}
    known |= {"--values", "--adaptive", "--repeat", "--port", "--format", "--version", "--help"}
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    assert used - known == set()
