"""`cbbench compare A B`: stored runs side by side, and two of them in detail."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from reports.budgets import parse_budgets
from reports.interop import read_any
from reports.metrics import request_times
from reports.percentiles import Percentiles, percentiles
from reports.regression import budgets_of, measure_metric
from reports.render.compare import changes_view, side_by_side
from reports.scenarios import ComparedRuns, Scenario
from reports.stored_runs import StoredRun
from workloads.errors import CbbenchError

# The share is of no account here: everything is shown, nothing judged.
SHOWN = parse_budgets([f"{name}=0%" for name in ("tpot", "p50_tpot_ms", "ttft", "p99_ttft_ms", "e2el", "throughput")])


def compare(paths: Sequence[Path], asked: Sequence[float] | None = None) -> int:
    """The exit code; it judges nothing (`cbbench gate` does). `asked`: percentiles to show."""
    runs = read_any(paths)
    if len(runs) < 2:
        raise CbbenchError(None, "compare takes two runs or more")
    for note in dict.fromkeys(note for one in runs for note in one.notes):
        print(f"note: {note}", file=sys.stderr)
    labels = _labels(runs)
    console = Console()
    chosen = None if asked is None else [percentiles_of(one, asked) for one in runs]
    console.print(side_by_side([one.run for one in runs], labels, chosen))
    if len(runs) == 2:
        scenario = Scenario("", (ComparedRuns(*runs),))
        measured = [measure_metric(scenario, one) for one in budgets_of(scenario, SHOWN)]
        names = (labels[0], labels[1]) if _by_mode(runs) else ("A", "B")
        console.print(changes_view(scenario.pairs[0], measured, names))
    return 0


def percentiles_of(one: StoredRun, asked: Sequence[float]) -> Percentiles:
    assert one.run.summary is not None  # every stored run has one
    return percentiles(one.run.summary, None if one.record is None else request_times(one.record), asked)


def _labels(runs: Sequence[StoredRun]) -> list[str]:
    if _by_mode(runs):
        return [one.run.engine.mode or Path(one.name).name for one in runs]
    short = [Path(one.name).name for one in runs]
    return short if len(set(short)) == len(short) else [one.name for one in runs]


def _by_mode(runs: Sequence[StoredRun]) -> bool:
    """Whether every run has a mode of its own."""
    modes = [one.run.engine.mode for one in runs]
    return None not in modes and len(set(modes)) == len(modes)
