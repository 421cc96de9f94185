"""A workload file fitted: a preset with its statistics and none of its requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workloads.columns import IntColumn
from workloads.derivation import joint_grid, ks_distance, source_numbers
from workloads.errors import CbbenchError
from workloads.fit_lengths import Fitted, fit_lengths
from workloads.length_pairs import draw_fitting
from workloads.presets import Preset
from workloads.workload_files import WorkloadFile

LengthFit = Literal["grid", "distributions"]
LEAST_ROWS = 16
GRID_ROWS = 512  # below it a grid would hardly be fewer numbers than the rows
SAMPLE = 50_000
QUANTILES = (0.5, 0.9, 0.95, 0.99)
WINDOWS_S = (1.0, 10.0, 60.0)
_LEAST_WINDOWS = 20
_POISSON = 0.05  # a CV as near to 1 as this


@dataclass(frozen=True)
class ArrivalFit:
    """Arrivals by their statistics.

    arrival     the setting that has their CV: poisson or gamma:CV
    dispersion  variance over mean of the number of arrivals in windows, by length in seconds: 1 of a Poisson process
    """

    rate_per_s: float
    gap_cv: float
    dispersion: dict[float, float]
    arrival: str


@dataclass(frozen=True)
class SideFit:
    """How far a sample of the preset is from one side of the file. errors: sample over file - 1, by quantile."""

    ks: float
    errors: dict[float, float]
    families: tuple[Fitted, ...] = ()  # those tried, the best first; empty for a grid


@dataclass(frozen=True)
class WorkloadFit:
    preset: Preset
    lengths: LengthFit
    prompt: SideFit
    output: SideFit
    arrivals: ArrivalFit | None
    estimated: bool  # prompts are text whose lengths only a tokenizer or a server would know


def fit_workload(file: WorkloadFile, name: str, lengths: LengthFit | None = None) -> WorkloadFit:
    """lengths None: a joint grid from 512 rows on, else distributions. Raises CbbenchError below 16 rows."""
    prompts, outputs = file.lengths.prompt_tokens, file.lengths.output_tokens
    rows = len(prompts)
    if rows < LEAST_ROWS:
        raise CbbenchError("workload", f"{rows} requests are too few to fit; want at least {LEAST_ROWS}")
    if lengths == "grid" and rows < GRID_ROWS:
        raise CbbenchError(
            "lengths", f"grid needs at least {GRID_ROWS} requests, and there are {rows}; use distributions"
        )
    chosen: LengthFit = lengths or ("grid" if rows >= GRID_ROWS else "distributions")
    arrivals = fit_arrivals(file.arrivals_us)
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", name) or "fitted"
    description = f"Fitted to {rows:,} requests{_said(arrivals)}"
    own = source_numbers(prompts, outputs)
    tried: tuple[list[Fitted], list[Fitted]] = ([], [])
    if chosen == "grid":
        # At most every fourth prompt of a stratum is a quantile that is kept, and every second output.
        # Few strata where rows are few: each loses the top of its outputs, which together are the far tail.
        strata = max(8, _power_of_two(rows // 512, 64))
        prompt_cells, output_cells = _power_of_two(rows // strata // 4, 32), _power_of_two(rows // strata // 2, 256)
        prompt_grid, output_grid = joint_grid(prompts, outputs, strata, prompt_cells, output_cells)
        preset = Preset(name, description, own=own, prompt_grid=prompt_grid, output_grid=output_grid)
    else:
        tried = fit_lengths(prompts), fit_lengths(outputs)
        texts = tried[0][0].text, tried[1][0].text
        lacks = ("which output belongs to which prompt: both sides are drawn independently",)
        preset = Preset(
            name, description, own=own, lacks=lacks, prompt_distribution=texts[0], output_distribution=texts[1]
        )
    drawn = preset.drawn
    assert drawn is not None
    sample = draw_fitting(drawn, SAMPLE, 0, None, name)
    return WorkloadFit(
        preset,
        chosen,
        _side(sample[0], prompts, tried[0]),
        _side(sample[1], outputs, tried[1]),
        arrivals,
        estimated=file.counted_by == "server",
    )


def _side(sample: IntColumn, source: IntColumn, tried: list[Fitted]) -> SideFit:
    got, want = (np.quantile(tokens, QUANTILES) for tokens in (sample, source))
    errors = dict(zip(QUANTILES, (got / want - 1).tolist(), strict=True))
    return SideFit(ks_distance(sample, source), errors, tuple(tried))


def fit_arrivals(arrivals_us: IntColumn | None) -> ArrivalFit | None:
    """None without arrival times, and if all are the same."""
    if arrivals_us is None or arrivals_us[0] == arrivals_us[-1]:
        return None
    gaps = np.diff(arrivals_us)
    mean_us = float(gaps.mean())
    cv = float(gaps.std()) / mean_us
    span_s = float(arrivals_us[-1] - arrivals_us[0]) / 1e6
    since_s = (arrivals_us - arrivals_us[0]) / 1e6
    dispersion = {}
    for window_s in WINDOWS_S:
        if (windows := int(span_s / window_s)) >= _LEAST_WINDOWS:
            counts = np.bincount((since_s[since_s < windows * window_s] / window_s).astype(int), minlength=windows)
            dispersion[window_s] = float(counts.var() / counts.mean())
    arrival = "poisson" if abs(cv - 1) <= _POISSON else f"gamma:{min(max(cv, 0.01), 10.0):.3g}"
    return ArrivalFit(1e6 / mean_us, cv, dispersion, arrival)


def _said(arrivals: ArrivalFit | None) -> str:
    if arrivals is None:
        return ", without arrival times"
    return f" that arrived at {arrivals.rate_per_s:.3g} per second, {arrivals.arrival}"


def _power_of_two(at_most: int, cap: int) -> int:
    return 1 << (max(1, min(at_most, cap)).bit_length() - 1)
