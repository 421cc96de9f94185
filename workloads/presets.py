"""Presets: named workloads. Each is a JSON file in presets/ with its data, its source and its licence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from workloads.arrivals import TraceGaps
from workloads.errors import CbbenchError
from workloads.length_distributions import LengthDistribution, parse_distribution
from workloads.length_pairs import DrawnLengths, IndependentLengths, JointGrid, LengthPairs, ListedLengths
from workloads.sampling import CELLS


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
    """One preset: a joint grid (length_pairs.JointGrid), quantiles of each side, or rows to repeat.

    lacks     what its source does not have
    suggests  default settings of a run of it, by field name; what the user gives takes precedence
    """

    name: str
    description: str
    origin: Origin | None = None
    own: Own | None = None
    lacks: tuple[str, ...] = ()
    suggests: dict[str, Any] = {}
    rows: tuple[tuple[int, int], ...] = ()  # (prompt_tokens, output_tokens)
    trace_rate_per_s: float = 0.0
    prompt_grid: tuple[tuple[int, ...], ...] = ()
    prompt_tail: tuple[int, ...] = ()  # quantiles of the top cell of prompt_grid
    output_grid: tuple[tuple[int, ...], ...] = ()
    prompt_marginal: tuple[int, ...] = ()  # quantiles, where the source has no pairs
    output_marginal: tuple[int, ...] = ()
    prompt_distribution: str = ""  # as in a SPEC, where the preset was fitted to few requests
    output_distribution: str = ""
    trace_gaps: tuple[int, ...] = ()  # between consecutive requests, in thousandths of the mean gap

    @cached_property
    def lengths(self) -> LengthPairs:
        if self.rows:
            return ListedLengths.of([prompt for prompt, _ in self.rows], [output for _, output in self.rows])
        return self.drawn

    @cached_property
    def drawn(self) -> DrawnLengths:
        """The distribution that lengths are drawn from; not for one of rows."""
        if self.prompt_distribution:
            prompt, output = self.prompt_distribution, self.output_distribution
            return IndependentLengths(parse_distribution(prompt), parse_distribution(output))
        if self.prompt_marginal:
            return IndependentLengths(_distribution(self.prompt_marginal), _distribution(self.output_marginal))
        prompts, outputs, tail = (
            np.array(values, dtype=np.int64) for values in (self.prompt_grid, self.output_grid, self.prompt_tail)
        )
        return JointGrid(prompts, outputs, tail)

    @property
    def gaps(self) -> TraceGaps | None:
        """The source's arrivals; None if it has no arrival times."""
        if not self.trace_gaps:
            return None
        return TraceGaps(np.array(self.trace_gaps, dtype=np.int64), self.trace_rate_per_s, random_start=True)


def _distribution(quantiles: tuple[int, ...]) -> LengthDistribution:
    values = np.array(quantiles, dtype=np.int64)
    return LengthDistribution("quantiles", np.repeat(values, CELLS // len(values)))


class _Presets(Mapping[str, Preset]):
    """By name, in alphabetical order. A file is read when its preset is asked for."""

    def __init__(self) -> None:
        folder = resources.files("workloads") / "presets"
        self._names = tuple(sorted(file.name.removesuffix(".json") for file in folder.iterdir() if _is_json(file.name)))
        self._folder = folder
        self._read: dict[str, Preset] = {}

    def __getitem__(self, name: str) -> Preset:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = read_preset((self._folder / f"{name}.json").read_bytes())
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _is_json(name: str) -> bool:
    return name.endswith(".json")


def read_preset(data: bytes) -> Preset:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=Preset)


def read_preset_file(path: Path) -> Preset:
    """A preset that `cbbench workload fit` has written. Raises CbbenchError."""
    try:
        preset = read_preset(path.read_bytes())
        _check(preset)
    except FileNotFoundError:
        raise CbbenchError("workload", f"{path}: no such file") from None
    except (OSError, msgspec.DecodeError, ValueError, OverflowError) as error:
        raise CbbenchError("workload", f"{path}: not a preset of `cbbench workload fit` ({error})") from None
    return preset


def _check(preset: Preset) -> None:
    """Raises ValueError for what `fit` does not write, and CbbenchError for a distribution that cannot be read."""
    if preset.own is None or preset.suggests or preset.rows:
        raise ValueError("it has no statistics of its file, or settings or rows, which a fit has not")
    drawn = preset.drawn
    if isinstance(drawn, IndependentLengths):
        if not preset.prompt_distribution:
            raise ValueError("no prompt_distribution and no prompt_grid")
        return
    sizes = (*drawn.prompts.shape, *drawn.outputs.shape)
    if len(sizes) != 4 or any(size < 1 or size & (size - 1) for size in sizes) or sizes[0] != sizes[2]:
        raise ValueError(f"prompt_grid and output_grid want the same strata, and powers of two, not {sizes}")
    if len(drawn.tail) or min(drawn.prompts.min(), drawn.outputs.min()) < 1:
        raise ValueError("lengths in a grid are whole numbers from 1")


PRESETS: Mapping[str, Preset] = _Presets()
