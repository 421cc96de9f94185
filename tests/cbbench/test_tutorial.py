"""Documents say what their commands print: every line under a command stands in its output, in that order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbbench.conftest import Outcome

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```console\n(.*?)```", re.S)
MAY_MISS = (0, 3, 5)  # exit codes: points of its sweeps miss their SLA, or are too short to tell


def examples(document: str) -> list[tuple[list[str], list[str]]]:
    """(arguments, lines expected) of every command."""
    text = (DOCS / document).read_text(encoding="utf-8")
    found: list[tuple[list[str], list[str]]] = []
    for body in BLOCK.findall(text):
        for line in body.replace("\\\n", " ").splitlines():
            if line.startswith("$ cbbench "):
                found.append((shlex.split(line)[2:], []))
            else:
                found[-1][1].append(plain(line))
    return found


def plain(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.slow
@pytest.mark.parametrize("document", ["tuning.md", "disaggregation.md"])
def test_commands_print_what_it_says(
    cbbench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, document: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert len(examples(document)) > 5
    for arguments, expected in examples(document):
        outcome = cbbench(*arguments)
        assert outcome.code in MAY_MISS, outcome.err
        printed = iter(plain(line) for line in outcome.out.splitlines())
        for line in expected:
            assert line in printed, f"{' '.join(arguments)}: does not print, after the line before it: {line}"
