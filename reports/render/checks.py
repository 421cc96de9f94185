"""The checks of a gate, in the terminal and as Markdown: the verdict first, then a table, and the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from reports.checks import Check, CheckSummary, failed_and_open_checks
from reports.render.formatting import MISSING, number, verdict
from reports.render.table import Table

ORDER = ("fail", "inconclusive", "warn", "pass")


def checks_view(result: CheckSummary) -> RenderableType:
    counts = [(word, sum(one.verdict == word for one in result.checks)) for word in ORDER]
    head = verdict(result.verdict)
    head.append("  " + ", ".join(f"{count} {word}" for word, count in counts if count), style="default")
    parts: list[RenderableType] = [head]
    if (mixed := failed_and_open_checks(result)) is not None:
        parts.append(Text(mixed, "bold"))
    ordered = sorted(result.checks, key=lambda one: one.scenario)
    for scenario, group in groupby(ordered, key=lambda one: one.scenario):
        checks = list(group)
        parts += [Text(), Text(scenario, "bold"), _checks_table(checks)]
        parts += _reasons([one for one in checks if one.kind == "sla" or one.verdict != "pass"])
    parts += [Text()] if result.notes else []
    parts += [Text(f"note: {note}", style="yellow") for note in result.notes]
    return Group(*parts)


def _checks_table(checks: Sequence[Check]) -> Table:
    compared = any(one.baseline is not None or one.change is not None for one in checks)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "metric", "value", *(("baseline", "change") if compared else ()), "limit"):
        numeric = name in ("value", "baseline", "change")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name not in ("change", "limit"))
    for one in checks:
        middle = (number(one.baseline), change_text(one)) if compared else ()
        table.add_row(verdict(one.verdict), Text(one.metric), number(one.value), *middle, one.limit)
    return table


def _reasons(checks: Sequence[Check]) -> list[Text]:
    """Each reason once, after the metrics it applies to; then each line of context likewise."""
    of_reason: dict[str, list[Check]] = {}
    of_context: dict[str, list[Check]] = {}
    for one in checks:
        of_reason.setdefault(one.reason, []).append(one)
        for words in one.context:
            of_context.setdefault(words, []).append(one)
    return [_reason(same, text) for found in (of_reason, of_context) for text, same in found.items()]


def _reason(checks: Sequence[Check], words: str) -> Text:
    style = "bold" if any(one.verdict != "pass" for one in checks) else "dim"
    return Text.assemble((f"{', '.join(one.metric for one in checks)}: ", style), (words, "dim"))


def check_sentence(one: Check) -> str:
    """The change, or without one the value, and the reason: a check by itself, as CI shows it."""
    change = change_text(one)
    if change == MISSING and one.kind == "sla" and one.value is not None:
        change = number(one.value)
    return one.told if change == MISSING else f"{change}: {one.told}"


def change_text(one: Check) -> str:
    """ "+3.10 % (+2.80 to +3.40)": the change and its interval; a dash without a change."""
    if one.change is None:
        return MISSING
    if one.interval is None:
        return percent(one.change)
    low, high = one.interval
    return f"{percent(one.change)} ({percent(low, unit='')} to {percent(high, unit='')})"


def percent(change: float, unit: str = " %") -> str:
    return f"{100 * change:+.2f}{unit}"


MARKS = {"pass": "✅ pass", "warn": "⚠️ warn", "fail": "❌ fail", "inconclusive": "❔ inconclusive"}


def checks_markdown(result: CheckSummary) -> str:
    lines = [
        f"### cbbench gate: {MARKS[result.verdict]}",
        "",
        *([_cell(mixed), ""] if (mixed := failed_and_open_checks(result)) is not None else []),
        "| | scenario | metric | value | baseline | change | limit | why |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    lines += [_row(one) for one in sorted(result.checks, key=lambda one: ORDER.index(one.verdict))]
    lines += ["", *(f"- {_cell(note)}" for note in result.notes)] if result.notes else []
    return "\n".join(lines) + "\n"


def _row(one: Check) -> str:
    cells = (
        MARKS[one.verdict], one.scenario, f"`{one.metric}`", number(one.value), number(one.baseline), change_text(one),
        one.limit, one.told,
    )  # fmt: skip
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    """Escaped: a bar or a line break would end the cell, and < may begin HTML."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
