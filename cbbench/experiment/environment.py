"""Where a run was made: enough to judge whether two runs may be compared."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from cbbench import __version__
from engines.remote.headers import HIDDEN

if TYPE_CHECKING:
    from engines.telemetry import Gpu

HEADER = "--header"


def environment(gpu: Gpu | None = None) -> dict[str, Any]:
    """`gpu`: the one that is watched during the run."""
    return {
        "cbbench": __version__,
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "numpy": _version("numpy"),
        "torch": _version("torch"),
        "gpu": msgspec.to_builtins(gpu.info()) if gpu is not None else None,
        "command": shlex.join(["cbbench", *without_values(sys.argv[1:])]),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def usable_cores() -> int | None:
    """Cores that this process may run on, of those of the machine."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()


@cache
def cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


@cache  # a sweep asks at each of its points
def git_commit() -> str | None:
    """Of cbbench's own checkout; None when it runs from an installed wheel."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def without_values(words: Sequence[str]) -> list[str]:
    """The words of a command line, with the names alone of its --header options. Also inside a word that is itself a
    command line, as those of `compare --ab` are."""
    kept: list[str] = []
    for word in words:
        flag, equals, given = word.partition("=")
        if kept and kept[-1] == HEADER:
            kept.append(_name_alone(word))
        elif flag == HEADER and equals:
            kept.append(f"{HEADER}={_name_alone(given)}")
        elif HEADER in word:
            kept.append(_of_one_word(word))
        else:
            kept.append(word)
    return kept


def _of_one_word(word: str) -> str:
    try:
        words = shlex.split(word)
    except ValueError:  # an open quotation: where the value ends is unknown
        return HIDDEN
    return word if words == [word] else shlex.join(without_values(words))


def _name_alone(text: str) -> str:
    name, colon, _ = text.partition(":")
    return f"{name}: {HIDDEN}" if colon else HIDDEN
