"""A run is a folder, written while it runs so that a crash at any moment leaves something readable.

run.json        header first, the whole thing at the end; always replaced at once
requests.jsonl  one line per request, as it ends
tokens.bin      its token events (uint32), written before its line
steps.bin       the ledger, appended in chunks; steps.json has its dtype
signals.jsonl   samples
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.base import RequestRow, RunRecord, Signal
from engines.scheduling.ledger import StepArray
from reports.schema import Criteria, RunFile


class FolderError(Exception):
    """A folder that cannot be read or written, in one line. `exit_code`: 2 a user's mistake, 1 the disk."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Loaded(NamedTuple):
    record: RunRecord
    notes: tuple[str, ...]  # what was torn or corrupt and left out


class RunWriter:
    """An Observer that keeps everything on disk. Makes `folder`, which must be new or empty; else FolderError.

    OSErrors (a full disk) come out as FolderError with exit code 1.
    """

    stopping = False

    def __init__(self, folder: Path, header: RunFile) -> None:
        raise NotImplementedError

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        raise NotImplementedError

    def steps_recorded(self, steps: StepArray) -> None:
        raise NotImplementedError

    def sampled(self, signal: Signal) -> None:
        raise NotImplementedError

    def finish(self, record: RunRecord) -> RunFile:
        """Close the raw files, write the whole run.json and return it."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the raw files; run.json stays the header. Harmless after finish()."""
        raise NotImplementedError

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_run(folder: Path) -> RunFile:
    """run.json, typed. FolderError if it is missing, broken or of another schema."""
    raise NotImplementedError


def read_record(folder: Path) -> RunRecord:
    """The raw events of a run, torn tails left out. FolderError if there is no run."""
    return load(folder).record


def load(folder: Path) -> Loaded:
    """The raw events of a run, and what had to be left out of them."""
    raise NotImplementedError


def rebuild(folder: Path, criteria: Criteria | None = None) -> RunFile:
    """Compute run.json anew from the raw files, keeping the header, and write it. A run without a summary crashed, so
    it is marked interrupted. `criteria` judges it by other SLAs than its own."""
    raise NotImplementedError
