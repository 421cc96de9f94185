"""A gate as a Markdown table, for a step summary or a comment."""

from __future__ import annotations

from reports.checks import Check, GateResult
from reports.render.gate import ORDER, change_text
from reports.render.words import number

MARKS = {"pass": "✅ pass", "warn": "⚠️ warn", "fail": "❌ fail", "inconclusive": "❔ inconclusive"}


def markdown(result: GateResult) -> str:
    lines = [
        f"### cbbench gate: {MARKS[result.verdict]}",
        "",
        "| | scenario | metric | value | baseline | change | limit | why |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    lines += [_row(one) for one in sorted(result.checks, key=lambda one: ORDER.index(one.verdict))]
    lines += ["", *(f"- {_cell(note)}" for note in result.notes)] if result.notes else []
    return "\n".join(lines) + "\n"


def _row(one: Check) -> str:
    cells = (
        MARKS[one.verdict], one.scenario, f"`{one.metric}`", number(one.value), number(one.baseline), change_text(one),
        one.limit, one.reason,
    )  # fmt: skip
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    """A bar or a line break would end the cell, and < may begin HTML."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
