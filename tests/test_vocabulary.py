"""One word a thing: what docs/vocabulary.md retired is in no name and no text of the project.

The column *not* of its tables is read. A word with a sense in parentheses, as `page (of KV)`, is retired in that sense
only, which no search can see. Names are split at underscores and capitals: `num_seats` and `StepLaw` are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VOCABULARY = ROOT / "docs/vocabulary.md"
ROOMS = ("workloads", "engines", "reports", "cbbench", "docs", "benchmarks", "tests")
KINDS = (".py", ".md", ".toml", ".yml", ".js", ".css")

# Requests, steps and blocks are nobody: a text names them.
FABLE = (
    "nobody", "somebody", "anybody", "everybody", "whoever",
    "who sits", "who sat", "who waits", "who runs", "whom it seats",
    "sits down", "sat down", "gets up", "get up for", "gives way", "give way", "gives up its",
    "gibberish", "parting words", "it cannot be told",
)  # fmt: skip

# (file, word, why it stays): names in files that older versions wrote, and aliases that still read them.
ALLOWED = (
    ("docs/vocabulary.md", "*", "it lists the retired words"),
    ("tests/test_vocabulary.py", "*", "so does this"),
    ("engines/simulated/*.py", "law", "a key of run.json and the schema and file of earlier versions"),
    ("reports/*.py", "law", "the same key"),
    ("cbbench/settings/engine.py", "law", "the setting's old name, read for one release"),
    ("docs/s*.md", "law", "the same key and schema"),
    ("tests/*", "law", "tests of that key, schema and name"),
    ("benchmarks/simulator_world.py", "law", "Little's law"),
    ("tests/oracles/test_transformers.py", "laws", "a prompt"),
    ("tests/workloads/test_tenants.py", "laws", "a tenant's name, which a golden hash covers"),
    ("*/report.js", "promise", "a word of JavaScript"),
    ("tests/reports/browser.py", "promise", "a word of JavaScript"),
)


def retired() -> Iterator[str]:
    for line in VOCABULARY.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[2] not in ("not", "---", ""):
            yield from (word for word in cells[2].split(", ") if "(" not in word)


@cache
def pattern() -> re.Pattern[str]:
    """Every retired word, in any inflection, on text as `spread` gives it."""
    words = sorted({spread(word).strip() for word in (*retired(), *FABLE)}, key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(map(re.escape, words))})(?:s|es|d|ed|ing)?\b")


def spread(text: str) -> str:
    """Names as words: `num_seats` is `num seats`, `StepLaw` is `step law`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ").lower()


def files(room: str) -> Iterator[Path]:
    top = [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml")] if room == "docs" else []
    yield from (*top, *sorted(path for path in (ROOT / room).rglob("*") if path.suffix in KINDS))


def allowed(file: str, word: str) -> bool:
    return any(fnmatch(file, where) and fnmatch(word, what) for where, what, _why in ALLOWED)


def hits(room: str) -> Iterator[str]:
    for path in files(room):
        file = path.relative_to(ROOT).as_posix()
        named = [(0, path.stem)]
        for number, line in (*named, *enumerate(path.read_text(encoding="utf-8").splitlines(), 1)):
            for found in pattern().finditer(spread(line)):
                if not allowed(file, found[0]):
                    yield f"{file}:{number}: {found[0]}"


def test_the_tables_are_read() -> None:
    assert {"seat", "promise", "stretch"} <= set(retired())


@pytest.mark.parametrize("room", ROOMS)
def test_no_retired_word(room: str) -> None:
    found = list(hits(room))
    assert not found, f"{len(found)} retired words, see docs/vocabulary.md:\n" + "\n".join(found)


# A flag, not a CSS variable, an arrow or a comment's rule.
FLAG = re.compile(r"(?<![\w(-])--[a-z][a-z-]*[a-z]\b(?!-*>)")
FLAGS_OF_OTHERS = {
    "reports/tuning/server_flags.py": "those of vLLM and SGLang",
    "engines/reference/model/weights.py": "pip's",
}


@pytest.mark.parametrize("room", ["workloads", "engines", "reports"])
def test_only_the_command_line_spells_flags(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {flag}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in FLAGS_OF_OTHERS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for flag in FLAG.findall(line)
    ]
    assert not found, "name the setting by its field; cbbench/cli makes the flag of it:\n" + "\n".join(found)
