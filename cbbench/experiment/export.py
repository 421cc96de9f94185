"""`cbbench report` into a format: a result as files to send."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path

import msgspec

from cbbench.experiment.report import finished_run, is_sweep, refuse_percentiles
from engines.base import RunRecord
from reports.curves import label_of, read_sweep
from reports.document import Report
from reports.files import disk, json_bytes, write_whole
from reports.folder import load
from reports.interop import as_vllm_json, is_result, read_results
from reports.pages.comparison import comparison_report, labels_of
from reports.pages.run import run_report
from reports.pages.sweep import sweep_report
from reports.percentiles import SHOWN
from reports.render.csv import points_csv, requests_csv
from reports.render.markdown import report_markdown
from reports.reported_run import ReportedRun, reported_run
from reports.schema import RunFile
from reports.sweep_schema import SweepFile
from reports.tuning.tune_file import TUNE
from workloads.errors import CbbenchError

FORMATS = ("html", "md", "csv", "png", "svg", "vllm-json")
PICTURES = {"png", "svg"}
PAGES = {"html", "md"}
STDOUT = Path("-")


@dataclass(frozen=True)
class Wanted:
    """What a page shall show. None: its default."""

    percentiles: Sequence[float] | None = None
    title: str | None = None
    charts: bool = True


def export(
    folders: Sequence[Path],
    formats_text: str,
    output: Path | None,
    *,
    terminal_only: bool,
    wanted: Wanted = Wanted(),
) -> int:
    """The exit code. Options are checked before anything is read, and all is read before anything is written."""
    formats = parse_formats(formats_text)
    if terminal_only:
        raise CbbenchError("format", "makes files, and `json` and `timeline` belong to the terminal; leave out one")
    if output == STDOUT and (len(formats) > 1 or formats[0] in PICTURES):
        raise CbbenchError("output", "- takes one of html, md, csv and vllm-json")
    check_wanted(wanted, formats)
    source = source_of(folders, wanted)
    files = {path: make for one in formats for path, make in places(source, one, formats, output).items()}
    ready = [(path, make()) for path, make in files.items()]
    for path, data in ready:
        if path == STDOUT:
            sys.stdout.write(data.decode())
            continue
        with disk(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    told = [path for path, _ in ready if path != STDOUT]
    if told:
        print(f"report in {told[0] if len(told) == 1 else told[0].parent}", file=sys.stderr)
    return 0


def check_wanted(wanted: Wanted, formats: Sequence[str]) -> None:
    """CbbenchError for what no format asked for can show."""
    if wanted.percentiles is not None and not set(formats) & PAGES:
        raise CbbenchError("percentiles", f"{', '.join(formats)} has no table of them; html and md have")
    if wanted.title is not None and not set(formats) & PAGES:
        raise CbbenchError("title", f"{', '.join(formats)} has none; html and md have")
    if wanted.title is not None and not wanted.title.strip():
        raise CbbenchError("title", "want some words, got none")
    if not wanted.charts and set(formats) & PICTURES:
        raise CbbenchError("no_charts", "png and svg are nothing else; leave one of them out")


def parse_formats(text: str) -> list[str]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    unknown = [word for word in words if word not in FORMATS]
    if unknown:
        raise CbbenchError("format", f"{unknown[0]!r} is none of {', '.join(FORMATS)}")
    return words


@dataclass(frozen=True)
class Source:
    """What is reported_run on: a sweep, a run, or two."""

    sweep: SweepFile | None
    runs: tuple[ReportedRun, ...]  # of a sweep the one that is shown as evidence, if any is left
    folder: Path  # where its files go unless told otherwise
    wanted: Wanted = Wanted()

    @cached_property
    def page(self) -> Report:
        made = self._page()
        made = made if self.wanted.charts else made.without_charts()
        return made if self.wanted.title is None else made.titled(self.wanted.title.strip())

    def _page(self) -> Report:
        if self.sweep is not None:
            return sweep_report(self.sweep, self.runs[0] if self.runs else None)
        if len(self.runs) == 2:
            return comparison_report(*self.runs)
        return run_report(self.runs[0])

    def csv(self) -> str:
        return requests_csv(self.runs) if self.sweep is None else points_csv(self.sweep)

    def vllm_json(self) -> bytes:
        return json_bytes(as_vllm_json(self.runs[0].run, self.runs[0].record))


def source_of(folders: Sequence[Path], wanted: Wanted = Wanted()) -> Source:
    """CbbenchError for what cannot be reported on together."""
    if len(folders) > 2:
        raise CbbenchError(None, f"report takes one run or sweep, or two runs, got {len(folders)} folders")
    if tunings := [one for one in folders if (one / TUNE).exists()]:
        raise CbbenchError("format", f"{tunings[0]} is a tuning, which cbbench report shows in the terminal alone")
    sweeps = [one for one in folders if not is_result(one) and is_sweep(one)]
    if sweeps and len(folders) > 1:
        raise CbbenchError(None, f"report takes two runs, but {sweeps[0]} is a sweep")
    if sweeps and wanted.percentiles is not None:
        refuse_percentiles(sweeps[0])
    if sweeps:
        sweep = read_sweep(folders[0])
        return Source(sweep, evidence_of(folders[0], sweep), folders[0], wanted)
    runs, records = zip(*map(_measured, folders), strict=True)
    short = [one.resolve().name for one in folders]
    asked = wanted.percentiles or SHOWN
    if len(runs) == 1:
        folder = folders[0].parent if folders[0].is_file() else folders[0]
        return Source(None, (reported_run("", runs[0], records[0], asked),), folder, wanted)
    names = labels_of(runs[0], runs[1], (short[0], short[1]))
    both = tuple(map(reported_run, names, runs, records, repeat(asked)))
    return Source(None, both, Path(f"report-{short[0]}-{short[1]}"), wanted)


def _measured(path: Path) -> tuple[RunFile, RunRecord]:
    """A run of ours, or another tool's result with single requests, which charts are drawn of."""
    if not is_result(path):
        return noted(path)
    found = read_results(path)
    if len(found) > 1:
        raise CbbenchError(None, f"{path}: {len(found)} results in one file: cbbench compare shows them side by side")
    for note in found[0].notes:
        print(f"note: {note}", file=sys.stderr)
    if found[0].record is None:
        raise CbbenchError(
            None, f"{path}: no single requests to draw; cbbench report without `format` shows what there is"
        )
    return found[0].run, found[0].record


def noted(folder: Path) -> tuple[RunFile, RunRecord]:
    """A run, with what its raw files lack by now among its notes: charts and tables of requests are drawn from them."""
    run = finished_run(folder)
    record, notes = load(folder)
    for note in notes:
        print(f"note: {folder}: {note}", file=sys.stderr)
    return msgspec.structs.replace(run, notes=tuple(dict.fromkeys((*run.notes, *notes)))), record


def evidence_of(folder: Path, sweep: SweepFile) -> tuple[ReportedRun, ...]:
    """The first run of the recommended setting, or else of any, that is still there."""
    chosen = sweep.recommendation.values if sweep.recommendation else None
    ran = [one for one in sweep.points if one.error is None]
    for point in sorted(ran, key=lambda one: one.values != chosen):
        try:
            return (reported_run(label_of(sweep.params, point.values), *noted(folder / point.folder)),)
        except CbbenchError:  # it was moved away; the sweep itself has the numbers
            continue
    return ()


def places(source: Source, kind: str, formats: Sequence[str], output: Path | None) -> dict[Path, Callable[[], bytes]]:
    """Each file of a format, and what makes it."""
    if kind in PICTURES:
        return pictures(source, kind, formats, output)
    if kind == "vllm-json" and (source.sweep is not None or len(source.runs) > 1):
        raise CbbenchError("format", "vllm-json takes one run")
    name = {
        "html": "report.html",
        "md": "report.md",
        "csv": "points.csv" if source.sweep else "requests.csv",
        "vllm-json": "vllm.json",
    }[kind]
    if output is None:
        path = STDOUT if len(formats) == 1 and kind != "html" else source.folder / name
    else:
        path = output / name if len(formats) > 1 or output.is_dir() else output

    def make() -> bytes:
        if kind == "vllm-json":
            return source.vllm_json()
        if kind == "csv":
            return source.csv().encode()
        if kind == "md":
            return report_markdown(source.page).encode()
        from reports.render.html import html

        return html(source.page).encode()

    return {path: make}


def pictures(source: Source, kind: str, formats: Sequence[str], output: Path | None) -> dict[Path, Callable[[], bytes]]:
    from reports.render.charts.vega import png, svg

    draw: dict[str, Callable[..., bytes]] = {"png": png, "svg": lambda chart: svg(chart).encode()}
    found = source.page.charts()
    if not found:
        raise CbbenchError("format", f"there is nothing to draw in {source.folder}")
    if output is not None and len(formats) == 1 and output.suffix == f".{kind}":
        return {output: lambda: draw[kind](found[0])}
    folder = source.folder / "charts" if output is None else output
    return {folder / f"{one.name}.{kind}": lambda one=one: draw[kind](one) for one in found}  # type: ignore[misc]
