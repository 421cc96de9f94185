"""Results that are already there: shown again, or rebuilt after a crash."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from cbbench.experiment.breakdown import show_breakdown
from cbbench.experiment.run import show
from reports.curves import read_sweep
from reports.folder import read_run, rebuild
from reports.render.sweep import sweep_view
from reports.schema import RunFile


def report(folder: Path, *, json: bool, timeline: bool) -> int:
    """`cbbench report RUN|SWEEP`."""
    if (folder / "sweep.json").exists():
        return _report_sweep(folder, json=json)
    show(finished_run(folder), folder, json=json, with_timeline=timeline)
    if not json:
        show_breakdown(folder)
    return 0


def finished_run(folder: Path) -> RunFile:
    """run.json; rebuilt from the raw files first if the run never came to write it."""
    run = read_run(folder)
    if run.summary is not None:
        return run
    print(f"{folder}: the run did not finish; rebuilding run.json from its raw files", file=sys.stderr)
    return rebuild(folder)


def _report_sweep(folder: Path, *, json: bool) -> int:
    if json:
        sys.stdout.write((folder / "sweep.json").read_text(encoding="utf-8").rstrip() + "\n")
        return 0
    console = Console()
    console.print(sweep_view(read_sweep(folder), width=console.width))
    return 0
