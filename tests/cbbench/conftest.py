"""Two ways to run the command line: in this process (quick), and as a real one (signals, stdout and stderr apart)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cbbench.cli.app import invoke

TINY = ("--model", "tiny", "--device", "cpu", "--workload", "prompt=uniform(4,24);output=uniform(4,24)")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line of the error; there must be exactly one, and no traceback."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The tiny model's steps are too short to share among cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cbbench(one_thread: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = invoke([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return call


def start(*arguments: object) -> subprocess.Popen[str]:
    """A real process, in the current folder."""
    command = [sys.executable, "-c", "from cbbench.cli.app import main; main()", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def spawn(*arguments: object) -> subprocess.Popen[str]:
        processes.append(start(*arguments))
        return processes[-1]

    yield spawn
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
