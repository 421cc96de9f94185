"""Results that are already there: shown again, or rebuilt after a crash."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cbbench.experiment.compare import compare, percentiles_of
from cbbench.experiment.run import show
from cbbench.experiment.tune import show as show_tune
from reports.breakdown import breakdown
from reports.curves import SWEEP, read_sweep
from reports.files import json_bytes, write_atomic
from reports.folder import RUN, load, read_run, rebuilt
from reports.interop import is_result, read_results
from reports.render.breakdown import breakdown_view, worst_table
from reports.render.run import run_view
from reports.render.sweep import sweep_view
from reports.schema import RunFile
from reports.slowest import slowest_requests
from reports.tuning.tune_file import TUNE, read_tune
from workloads.errors import CbbenchError

WORST_SHOWN = 5  # requests; the first few say what the others would


def report(
    folders: Sequence[Path],
    output: Path | None,
    *,
    json: bool,
    timeline: bool,
    asked: Sequence[float] | None = None,
    charts: bool = True,
) -> int:
    """`cbbench report RUN|SWEEP|TUNE`, and RUN RUN, in the terminal. `asked`: percentiles to show of runs; `charts`:
    a sweep's curves too."""
    if output is not None:
        raise CbbenchError("output", "needs `format`: html, md, csv, png, svg or vllm-json")
    if len(folders) > 1:
        if json or timeline:
            raise CbbenchError("json" if json else "timeline", "takes one run")
        return compare(folders, asked)
    folder = folders[0]
    if is_result(folder):
        return _report_result(folder, json=json, timeline=timeline, asked=asked)
    if asked is not None:
        refuse_percentiles(folder)
    if (folder / TUNE).exists():
        show_tune(read_tune(folder), folder, json=json)
        return 0
    if is_sweep(folder):
        return _report_sweep(folder, json=json, charts=charts)
    run = finished_run(folder)
    show(run, folder, json=json, with_timeline=timeline, asked=asked)
    if not json:
        show_breakdown(folder, run)
    return 0


def refuse_percentiles(folder: Path) -> None:
    """CbbenchError for what is not a run: a point of a sweep keeps two percentiles of each latency."""
    if (folder / TUNE).exists() or is_sweep(folder):
        raise CbbenchError("percentiles", f"takes runs, and {folder} is none; ask for those of one run inside it")


def _report_result(path: Path, *, json: bool, timeline: bool, asked: Sequence[float] | None) -> int:
    """What another tool measured, in our words; the the timeline of slots cannot be shown."""
    if timeline:
        raise CbbenchError("timeline", f"{path} is another tool's, which does not see slots")
    found = read_results(path)
    if json and asked is not None:
        raise CbbenchError("percentiles", f"with `json` for a run of cbbench, and {path} is another tool's")
    if json:
        runs = [one.run for one in found]
        sys.stdout.write(json_bytes(runs[0] if len(runs) == 1 else runs).decode())
        return 0
    console = Console()
    for one in found:
        chosen = None if asked is None else percentiles_of(one, asked)
        console.print(
            Text(one.name, "bold"), run_view(one.run, chosen), *(Text(note, "yellow") for note in one.notes), sep="\n"
        )
    return 0


def is_sweep(folder: Path) -> bool:
    """CbbenchError where there is neither a run nor a sweep."""
    sweep = (folder / SWEEP).exists()
    if not sweep and not (folder / RUN).exists():
        what = "holds no run, no sweep and no tuning" if folder.exists() else "no such folder"
        raise CbbenchError(None, f"{folder}: {what}")
    return sweep


def finished_run(folder: Path) -> RunFile:
    """run.json; rebuilt from the raw files first if the run never came to write it. It is shown also where it cannot be
    written, as in the folder of another user."""
    run = read_run(folder)
    if run.summary is not None:
        return run
    print(f"{folder}: the run did not finish; rebuilding run.json from its raw files", file=sys.stderr)
    run = rebuilt(folder)
    try:
        write_atomic(folder / RUN, run)
    except CbbenchError as error:
        print(f"note: run.json stays as it was ({error.message})", file=sys.stderr)
    return run


def _report_sweep(folder: Path, *, json: bool, charts: bool) -> int:
    if json:
        sys.stdout.write((folder / "sweep.json").read_text(encoding="utf-8").rstrip() + "\n")
        return 0
    console = Console()
    console.print(sweep_view(read_sweep(folder), width=console.width, charts=charts))
    return 0


def show_breakdown(folder: Path, run: RunFile) -> None:
    """The parts of TTFT and E2EL, and the requests that waited longest, read from the raw files. Nothing if no request
    completed."""
    record, notes = load(folder)
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
        console.print("", worst_table(slowest_requests(record, parts, "ttft", WORST_SHOWN), "worst TTFT"), sep="\n")
