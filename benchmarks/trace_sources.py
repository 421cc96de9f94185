"""The public traces that the presets come from, as columns. Needs the files: see the origins in derive_presets.py."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.columns import IntColumn
from workloads.workload_files import read_workload_file

TICK_US = 3_000_000  # of the clock of Mooncake's conversation trace
SPREAD_SEED = 0


@dataclass(frozen=True)
class Source:
    """paired: row i of both columns is one request; else two marginals. arrivals_us: None if it has no times."""

    prompts: IntColumn
    outputs: IntColumn
    arrivals_us: IntColumn | None = None
    paired: bool = True


def read_source(name: str, path: Path) -> Source:
    """The source of the preset `name`."""
    if name == "deepseek-r1":
        return _servegen(path)
    if name == "claude-code":
        calls = [call for session in claude_code_sessions(path) for call in session]
        return Source(_column([call["in"] for call in calls]), _column([call["out"] for call in calls]))
    file = read_workload_file(path)
    arrivals = file.arrivals_us
    if name == "mooncake-conversation":  # the reader spreads ticks too; the preset was made with another generator
        ticks = _column([round(row["timestamp"] * 1000) for row in _json_lines(path)])
        arrivals = np.sort(ticks + np.random.default_rng(SPREAD_SEED).integers(0, TICK_US, len(ticks)))
    return Source(file.lengths.prompt_tokens, file.lengths.output_tokens, arrivals)


def _servegen(path: Path) -> Source:
    """Histograms of all clients and windows, counted together."""
    sides: dict[str, dict[int, int]] = {"input_tokens": {}, "output_tokens": {}}
    for client in _json_lines(path):
        for window in client["dataset"].values():
            for side, counts in sides.items():
                for tokens, count in zip(*window[side], strict=True):
                    counts[tokens] = counts.get(tokens, 0) + count
    prompts, outputs = (
        np.repeat(np.array([*counts], dtype=np.int64), np.array([*counts.values()], dtype=np.int64))
        for counts in sides.values()
    )
    return Source(prompts[prompts > 0], outputs[outputs > 0], paired=False)


def claude_code_sessions(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Calls of each session in order; a sub-agent is a session of its own. Sessions whose first three calls equal
    those of an earlier one are copies or forks of it and left out, and so are calls without output."""
    seen: set[tuple[tuple[int, int], ...]] = set()
    for recorded in _json_lines(path):
        own = [call for call in recorded["requests"] if "requests" not in call]
        begins = tuple((call["in"], call["out"]) for call in own[:3])
        if begins in seen:
            continue
        seen.add(begins)
        for calls in (own, *(call["requests"] for call in recorded["requests"] if "requests" in call)):
            if kept := [call for call in calls if call["in"] > 0 and call["out"] > 0]:
                yield kept


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _column(values: list[int]) -> IntColumn:
    return np.array(values, dtype=np.int64)
