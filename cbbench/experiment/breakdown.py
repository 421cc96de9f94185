"""Where the time of a run's requests went, on stdout."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from reports.breakdown import breakdown
from reports.folder import load, read_run
from reports.render.breakdown import breakdown_view, worst_table
from reports.worst import worst

SHOWN = 5  # of the worst requests; the first few say what the others would


def show_breakdown(folder: Path) -> None:
    """The parts of TTFT and E2EL, and the requests that waited longest, which only the raw files tell. Nothing where no
    request completed."""
    run, (record, notes) = read_run(folder), load(folder)
    parts = breakdown(record)
    summary = parts.summary() or (run.summary.breakdown if run.summary else None)
    if summary is None:
        return
    console = Console()
    for note in notes:
        if note not in run.notes:  # those have been shown
            console.print("", Text(f"note: {note}", "yellow"), sep="\n")
    console.print("", breakdown_view(summary, width=console.width), sep="\n")
    if len(record):
        console.print("", worst_table(worst(record, parts, "ttft", SHOWN), "worst TTFT"), sep="\n")
