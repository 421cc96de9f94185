"""A report as Markdown, for a step summary or a comment: texts, numbers and tables, without the charts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reports.document import Block, Figures, Report, Section, Table, Text


def report_markdown(report: Report) -> str:
    """The texts, numbers and tables of a report, without its charts. Sections that do not lead are folded."""
    lines = [f"## {_text(report.title)}: {_text(report.word)}", "", _text(report.subtitle)]
    for section in report.sections:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section) -> list[str]:
    body = [line for block in section.blocks for line in _block(block)]
    if not any(isinstance(block, Table | Figures) or section.leads for block in section.blocks) or not body:
        return []
    if section.leads:
        return ["", f"### {_text(section.title)}", *body]
    return ["", f"<details><summary>{_text(section.title)}</summary>", *body, "", "</details>"]


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        text = _text(block.text)
        return ["", f"**{text}**" if block.lead else text]
    if isinstance(block, Figures):
        shown = [(one.label, f"{one.value} {one.unit}".strip(), one.detail) for one in block.figures]
        return ["", "| | | |", "| --- | ---: | --- |", *(_line(one) for one in shown)]
    if isinstance(block, Table):
        marks = ["---" if at == 0 or at in block.texts else "---:" for at in range(len(block.columns))]
        rows = [_line([f"→ {row[0]}", *row[1:]] if at == block.marked else row) for at, row in enumerate(block.rows)]
        return [
            "",
            _line(block.columns),
            f"| {' | '.join(marks)} |",
            *rows,
            *(["", _text(block.caption)] if block.caption else []),
        ]
    return []


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_text(one).replace("|", "\\|") for one in cells) + " |"


def _text(text: str) -> str:
    """Escaped: no HTML, link, emphasis or mention of a user."""
    escaped = re.sub(r"([\\`*\[\]~])", r"\\\1", text.replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;"))
    return re.sub(r"(?<!\w)(_)|(_)(?!\w)", r"\\_", escaped).replace("@", "@\u200b")
