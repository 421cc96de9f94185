"""Numbers, shares, verdicts, rates and counts as a reader sees them."""

from __future__ import annotations

from rich.text import Text

from reports.schema import RunFile
from reports.summary_schema import Requests

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
    """1,234 · 12.34 · 0.1234; a dash for None, what was not measured."""
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


def rates_text(run: RunFile) -> str:
    """ "12 requests/s offered, 11.4 arrived, 7.6 completed"; in closed loop "7.6 requests/s"."""
    speed = run.summary.throughput if run.summary is not None else None
    done = number(speed.request_per_s if speed is not None else None)
    asked, mean = run.workload.asked_per_s, " on average" if run.workload.pacing.rate_schedule else ""
    if asked is None:
        return f"{done} requests/s"
    arrived = f", {number(speed.arrivals_per_s)} arrived" if speed is not None and speed.arrivals_per_s else ""
    return f"{number(asked)} requests/s offered{mean}{arrived}, {done} completed"


def counts_text(counts: Requests) -> str:
    """ "64 of 64 requests completed"; where some were never sent, "24 of 64 requests sent: 24 completed"."""
    if counts.sent < counts.planned:
        return f"{counts.sent:,} of {counts.planned:,} requests sent: {counts.completed:,} completed"
    return f"{counts.completed:,} of {counts.planned:,} requests completed"
