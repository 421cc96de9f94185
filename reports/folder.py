"""A run is a folder. It is written during the run, so that a crash at any moment leaves a readable part.

run.json        the header at the start, everything at the end; always replaced at once
requests.jsonl  one line per request, as it ends
tokens.bin      its token events (uint32), written before its line
steps.bin       the ledger, appended in chunks; steps.json has its dtype
signals.jsonl   samples
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import ClientReport, RunRecord, Signal
from engines.ledger import LEDGER, StepArray
from engines.request_table import RequestRow, RequestTable
from reports.files import disk, read_array, read_blocks, read_json, read_lines, write_atomic
from reports.schema import RUN_SCHEMA, Criteria, RunFile
from reports.sla import parse_all
from reports.summary import completed_run
from workloads.errors import CbbenchError

RUN, REQUESTS, TOKENS, STEPS, STEPS_DTYPE, SIGNALS = (
    "run.json",
    "requests.jsonl",
    "tokens.bin",
    "steps.bin",
    "steps.json",
    "signals.jsonl",
)
TOKEN_DTYPE = np.dtype("<u4")


class Loaded(NamedTuple):
    record: RunRecord
    notes: tuple[str, ...]  # which torn or corrupt parts are left out


class RunWriter:
    """An Observer that writes everything to disk. Makes `folder`, which must be new or empty; else CbbenchError.
    A bad SLA expression in the header is an error before anything is written.

    Every write is flushed, not synced: the operating system keeps what a killed process has flushed. A full disk is a
    CbbenchError with exit code 1.
    """

    stopping = False

    def __init__(self, folder: Path, header: RunFile) -> None:
        self.folder = folder
        self.header = header
        self._events = 0
        self._files: dict[str, BinaryIO] = {}
        self._paths = {name: folder / name for name in (REQUESTS, TOKENS, STEPS, SIGNALS)}
        self._encode = msgspec.json.Encoder().encode
        parse_all(header.criteria.sla)
        self._made = [one for one in (folder, *folder.parents) if not one.exists()]
        _claim(folder)
        write_atomic(folder / RUN, header)
        write_atomic(folder / STEPS_DTYPE, {"dtype": LEDGER.descr})
        with disk(folder):
            for name, path in self._paths.items():
                self._files[name] = open(path, "xb")  # noqa: SIM115

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        # The offset is that in the file, which may differ from the engine's.
        if row.events_at != self._events or row.events != events.shape[0]:
            row = msgspec.structs.replace(row, events_at=self._events, events=events.shape[0])
        if events.shape[0]:
            self._append(TOKENS, events.astype(TOKEN_DTYPE, copy=False).tobytes())
            self._events += events.shape[0]
        self._append(REQUESTS, self._encode(row) + b"\n")

    def steps_recorded(self, steps: StepArray) -> None:
        self._append(STEPS, steps.tobytes())

    def sampled(self, signal: Signal) -> None:
        self._append(SIGNALS, self._encode(signal) + b"\n")

    def finish(self, record: RunRecord, client: ClientReport | None = None) -> RunFile:
        """Close the raw files, write the complete run.json and return it."""
        self.close()
        run = completed_run(record, msgspec.structs.replace(self.header, client=client))
        write_atomic(self.folder / RUN, run)
        return run

    def withdraw(self) -> None:
        """Delete the files if no request has ended, so that the folder of a refused run can be used again."""
        if (self.folder / REQUESTS).stat().st_size:
            return
        self.close()
        with disk(self.folder):
            for name in (RUN, REQUESTS, TOKENS, STEPS, STEPS_DTYPE, SIGNALS):
                (self.folder / name).unlink()
            for one in self._made:  # only if nothing else was put into it
                if not any(one.iterdir()):
                    one.rmdir()

    def close(self) -> None:
        """Close the raw files; run.json stays the header. No effect after finish()."""
        files, self._files = self._files, {}
        failed: OSError | None = None
        for file in files.values():
            try:
                file.close()
            except OSError as error:  # close the others, then raise
                failed = error
        with disk(self.folder):
            if failed is not None:
                raise failed

    def _append(self, name: str, data: bytes) -> None:
        file = self._files[name]
        with disk(self._paths[name]):  # made once: there may be millions of lines
            file.write(data)
            file.flush()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_run(folder: Path) -> RunFile:
    """run.json, typed; a header alone has no summary. CbbenchError if it is missing, broken or of another schema."""
    run = read_json(folder / RUN, RunFile, RUN_SCHEMA)
    try:
        parse_all(run.criteria.sla)
    except CbbenchError as error:
        raise CbbenchError(None, f"{folder / RUN}: criteria: SLA {error.message}") from None
    return run


def read_record(folder: Path) -> RunRecord:
    """The raw events of a run, without torn tails. CbbenchError if there is no run."""
    return load(folder).record


def load(folder: Path) -> Loaded:
    """The raw events of a run, and notes on what is left out. CbbenchError if there is no run."""
    run = read_run(folder)
    notes: list[str] = []
    rows = _read_rows(folder, notes)
    ended = 0 if run.summary is None else run.summary.requests.ended
    if len(rows) < ended and not notes:
        notes.append(f"{REQUESTS}: {ended - len(rows):,} of the {ended:,} requests that ended are not in it")
    values = read_array(folder / TOKENS, TOKEN_DTYPE, notes)
    steps = _read_steps(folder, notes)
    rows = _with_events(rows, values, steps.shape[0] if run.event_unit == "step" else None, notes)
    used = int((rows.column("events_at") + rows.column("events")).max(initial=0))
    values = values[:used]  # the rest belongs to requests whose lines were not written
    if run.event_unit == "step" and notes and steps.shape[0]:
        values = np.minimum(values, steps.shape[0])  # values that no request refers to must be valid step numbers too
    record = RunRecord(
        planned=run.workload.num_requests,
        rows=rows,
        event_values=values.astype(np.uint32, copy=False),
        event_unit=run.event_unit,
        steps=steps,
        signals=read_lines(folder / SIGNALS, Signal, notes),
        interrupted=run.interrupted or run.summary is None,
    )
    return Loaded(record, tuple(notes))


def rebuild(folder: Path, criteria: Criteria | None = None) -> RunFile:
    """Compute run.json again and write it; see rebuilt()."""
    run = rebuilt(folder, criteria)
    write_atomic(folder / RUN, run)
    return run


def rebuilt(folder: Path, criteria: Criteria | None = None) -> RunFile:
    """run.json from the raw files and its header. A run without a summary crashed and is marked interrupted.
    criteria: judge it by other SLAs than its own."""
    header = read_run(folder)
    if criteria is not None:
        header = msgspec.structs.replace(header, criteria=criteria)
    record, notes = load(folder)
    if header.summary is None and header.client is None and header.engine.kind == "openai":
        notes = (*notes, "the run was killed, so that whether the load client kept up is not known")
    return completed_run(record, header, notes)


def discard(folder: Path) -> None:
    """Delete an unfinished run. CbbenchError for a folder with other files, which is left as it is."""
    ours = {RUN, REQUESTS, TOKENS, STEPS, STEPS_DTYPE, SIGNALS, f"{RUN}.tmp", f"{STEPS_DTYPE}.tmp"}
    with disk(folder):
        if not (folder / RUN).exists() and (others := sorted({one.name for one in folder.iterdir()} - ours)):
            raise CbbenchError(None, f"{folder} holds {others[0]} and no run; move it away: a run goes there")
        shutil.rmtree(folder)


def _claim(folder: Path) -> None:
    """Make the folder, or take it if it is empty."""
    with disk(folder):
        if folder.is_dir():
            if (folder / RUN).exists():
                raise CbbenchError(None, f"{folder} already holds a run; choose another folder")
            if any(folder.iterdir()):
                raise CbbenchError(None, f"{folder} is not empty; choose a new or an empty folder")
        elif folder.exists():
            raise CbbenchError(None, f"{folder} is a file; choose a folder")
        folder.mkdir(parents=True, exist_ok=True)


class _StepsFile(msgspec.Struct):
    dtype: list[tuple[str, str]]


def _read_steps(folder: Path, notes: list[str]) -> StepArray:
    """The ledger in the current columns; columns that an older version did not write are 0."""
    if not (folder / STEPS).exists():
        return np.empty(0, LEDGER)
    written = np.dtype(read_json(folder / STEPS_DTYPE, _StepsFile).dtype)
    raw = read_array(folder / STEPS, written, notes)
    if written == LEDGER:
        return raw
    ours, theirs = LEDGER.names or (), written.names or ()
    steps = np.zeros(raw.shape[0], LEDGER)
    for name in set(ours) & set(theirs):
        steps[name] = raw[name]
    missing = sorted(set(ours) - set(theirs))
    if missing:
        notes.append(f"{STEPS}: another version wrote it; taken as 0: {', '.join(missing)}")
    return steps


def _read_rows(folder: Path, notes: list[str]) -> RequestTable:
    """requests.jsonl; of several lines with one index the first, as a request ends once."""
    rows = RequestTable()
    for block in read_blocks(folder / REQUESTS, RequestRow, notes):
        rows.extend(block)
    index = rows.column("i")
    firsts = np.unique(index, return_index=True)[1]
    if firsts.shape[0] == len(rows):
        return rows
    repeated = np.delete(index, firsts)
    notes.append(
        f"{REQUESTS}: {repeated.shape[0]} lines repeat the index of an earlier request and are left out, "
        f"the first of them {repeated[0]}"
    )
    return RequestTable.of(rows[at] for at in np.sort(firsts).tolist())


def _with_events(rows: RequestTable, values: NDArray[np.uint32], steps: int | None, notes: list[str]) -> RequestTable:
    """The rows, with events only as far as they are in the file. steps: length of the ledger where events are step
    numbers: a crash loses the last chunk of steps, whose events are the last of their requests."""
    at, count = rows.column("events_at"), rows.column("events")
    there = np.clip(values.shape[0] - at, 0, count)
    if (missing := np.count_nonzero(there < count)) > 0:
        notes.append(
            f"{TOKENS} ends after {values.shape[0]:,} events: the later ones of {missing:,} requests are missing"
        )
    if steps is not None:
        known = there.copy()
        some = np.flatnonzero(there)
        for row in some[values[at[some] + there[some] - 1] > steps].tolist():
            known[row] = np.searchsorted(values[at[row] : at[row] + there[row]], steps, side="right")
        if (beyond := np.count_nonzero(known < there)) > 0:
            notes.append(f"{STEPS} ends at step {steps:,}: later token events of {beyond:,} requests were left out")
        there = known
    if (there == count).all():
        return rows
    events = there.tolist()
    return RequestTable.of(msgspec.structs.replace(row, events=events[at]) for at, row in enumerate(rows))
