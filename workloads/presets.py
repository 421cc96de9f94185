"""Presets: named workloads. Each is a JSON file in presets/ with its data, its source and its licence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from workloads.arrivals import TraceGaps
from workloads.length_pairs import JointGrid, LengthPairs, ListedLengths


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Source of a preset's numbers."""

    url: str
    file: str
    commit: str
    licence: str
    citation: str
    transformations: tuple[str, ...]


class Own(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics of the source itself, to compare a sample with. Quantiles are order statistics at probability `at`."""

    pairs: int
    prompt_tokens: dict[str, float]  # mean, p1 ... p99.9, max
    output_tokens: dict[str, float]
    correlation: dict[str, float | None]
    max_over_mean: dict[str, float]  # of the outputs, by batch size
    at: tuple[float, ...]
    prompt_quantiles: tuple[int, ...]
    output_quantiles: tuple[int, ...]


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """One preset: either a joint grid (length_pairs.JointGrid) or rows to repeat.

    suggests  default settings of a run of it, by field name; what the user gives takes precedence
    """

    name: str
    description: str
    origin: Origin | None = None
    own: Own | None = None
    suggests: dict[str, Any] = {}
    rows: tuple[tuple[int, int], ...] = ()  # (prompt_tokens, output_tokens)
    trace_rate_per_s: float = 0.0
    prompt_grid: tuple[tuple[int, ...], ...] = ()
    output_grid: tuple[tuple[int, ...], ...] = ()
    trace_gaps: tuple[int, ...] = ()  # between consecutive requests, in thousandths of the mean gap

    @cached_property
    def lengths(self) -> LengthPairs:
        if self.rows:
            return ListedLengths.of([prompt for prompt, _ in self.rows], [output for _, output in self.rows])
        return JointGrid(np.array(self.prompt_grid, dtype=np.int64), np.array(self.output_grid, dtype=np.int64))

    @property
    def gaps(self) -> TraceGaps | None:
        """The source's arrivals; None if it has no arrival times."""
        if not self.trace_gaps:
            return None
        return TraceGaps(np.array(self.trace_gaps, dtype=np.int64), self.trace_rate_per_s, random_start=True)


def _load() -> Mapping[str, Preset]:
    files = (resources.files("workloads") / "presets").iterdir()
    presets = [msgspec.json.decode(file.read_bytes(), type=Preset) for file in files if file.name.endswith(".json")]
    return MappingProxyType({preset.name: preset for preset in sorted(presets, key=lambda preset: preset.name)})


PRESETS = _load()
