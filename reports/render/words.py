"""Numbers and verdicts as people read them."""

from __future__ import annotations

from rich.text import Text

STYLES = {
    "pass": "bold green",
    "ok": "bold green",
    "fail": "bold red",
    "invalid": "bold red",
    "inconclusive": "bold yellow",
    "overloaded": "bold yellow",
    "client_limited": "bold yellow",
}
MISSING = "–"


def number(value: float | None, digits: int = 4) -> str:
    """1,234 · 12.34 · 0.1234; a dash for what was not measured."""
    if value is None:
        return MISSING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def share(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1%}"


def verdict(word: str) -> Text:
    return Text(word.upper().replace("_", " "), style=STYLES.get(word, "bold"))


def stacked(param: str) -> str:
    """A long name over several lines, so that the column stays narrow."""
    lines = [""]
    for word in param.replace("-", "- ").split():
        if lines[-1] and len(lines[-1]) + len(word) > len("max-num-seqs"):
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)
