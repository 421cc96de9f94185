"""A gate's checks in the terminal: the verdict first, then what did not pass, then the rest."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.checks import Check, GateResult
from reports.render.words import MISSING, number, verdict

ORDER = ("fail", "inconclusive", "warn", "pass")


def gate_view(result: GateResult) -> RenderableType:
    counts = [(word, sum(one.verdict == word for one in result.checks)) for word in ORDER]
    head = verdict(result.verdict)
    head.append("  " + ", ".join(f"{count} {word}" for word, count in counts if count), style="default")
    parts: list[RenderableType] = [head, Text(), _table(result.checks)]
    parts += [Text(f"note: {note}", style="yellow") for note in result.notes]
    return Group(*parts)


def _table(checks: tuple[Check, ...]) -> Table:
    compared = any(one.kind in ("regression", "machine") for one in checks)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "metric", "value", *(("baseline", "change") if compared else ()), "limit", "why"):
        numeric = name in ("value", "baseline", "change")
        table.add_column(name, justify="right" if numeric else "left", ratio=1 if name == "why" else None)
    scenario = None
    for one in sorted(checks, key=lambda one: one.scenario):
        if one.scenario != scenario:
            scenario = one.scenario
            table.add_row("", Text(scenario, "bold"), *[""] * (len(table.columns) - 2))
        middle = (number(one.baseline), change_text(one)) if compared else ()
        table.add_row(verdict(one.verdict), one.metric, number(one.value), *middle, one.limit, Text(one.reason, "dim"))
    return table


def change_text(one: Check) -> str:
    """+3.1 % (+2.8 to +3.4)"""
    if one.change is None:
        return MISSING
    if one.interval is None:
        return percent(one.change)
    low, high = one.interval
    return f"{percent(one.change)} ({percent(low, unit='')} to {percent(high, unit='')})"


def percent(change: float, unit: str = " %") -> str:
    return f"{100 * change:+.2f}{unit}"
