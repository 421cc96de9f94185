"""`cbbench compare A B`: stored runs side by side, and two of them in detail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cbbench.config import UsageError
from cbbench.experiment.report import finished_run
from reports.budgets import parse_budgets
from reports.folder import read_record
from reports.regression import budgets_of, measure_metric
from reports.render.changes import changes_view
from reports.render.terminal import side_by_side
from reports.scenarios import Pair, Scenario
from reports.stored import Stored

# The share is of no account here: everything is shown, nothing judged.
SHOWN = parse_budgets([f"{name}=0%" for name in ("tpot", "p50_tpot_ms", "ttft", "p99_ttft_ms", "e2el", "throughput")])


def compare(folders: Sequence[Path]) -> int:
    """The exit code; it judges nothing (`cbbench gate --baseline` does)."""
    if len(folders) < 2:
        raise UsageError("compare takes two runs or more")
    runs = [finished_run(folder) for folder in folders]
    modes = [run.engine.mode for run in runs]
    different = len(set(modes)) == len(modes)
    labels = [mode or folder.name for mode, folder in zip(modes, folders, strict=True)]
    console = Console()
    console.print(side_by_side(runs, labels if different else [folder.name for folder in folders]))
    if len(folders) == 2:
        sides = [Stored(str(one), run, read_record(one)) for one, run in zip(folders, runs, strict=True)]
        scenario = Scenario("", (Pair(*sides),))
        measured = [measure_metric(scenario, one) for one in budgets_of(scenario, SHOWN)]
        names = (labels[0], labels[1]) if different else ("A", "B")
        console.print(changes_view(scenario.pairs[0], measured, names))
    return 0
