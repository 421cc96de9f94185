"""From the lengths of a source to the numbers of a preset: quantiles by strata, and statistics to compare with.

A preset keeps quantiles only. A prompt and an output that belonged to one request of the source are not kept together.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from workloads.columns import IntColumn
from workloads.length_pairs import BATCHES, correlation, max_over_mean, percentiles
from workloads.presets import Own, Preset
from workloads.sampling import resample

AT = (0.001, 0.005, *(k / 100 for k in range(1, 100)), 0.995, 0.999)
Rows = tuple[tuple[int, ...], ...]


def joint_grid(
    prompts: IntColumn, outputs: IntColumn, strata: int, per_stratum: int, outputs_per_stratum: int
) -> tuple[Rows, Rows]:
    """(prompt_grid, output_grid) of a Preset: the rows sorted by prompt and cut into strata of equal size."""
    parts = np.array_split(np.argsort(prompts, kind="stable"), strata)
    return (
        tuple(tuple(resample(prompts[rows], per_stratum).tolist()) for rows in parts),
        tuple(tuple(resample(np.sort(outputs[rows]), outputs_per_stratum).tolist()) for rows in parts),
    )


def top_quantiles(tokens: IntColumn, grid_cells: int, count: int) -> tuple[int, ...]:
    """`count` quantiles of the largest values, those that the last of `grid_cells` cells stands for."""
    ordered = np.sort(tokens)
    return tuple(resample(ordered[len(ordered) - max(1, len(ordered) // grid_cells) :], count).tolist())


def source_numbers(prompts: IntColumn, outputs: IntColumn, *, paired: bool = True) -> Own:
    """Statistics of a source. paired: row i of both is one request; else they are two marginals."""

    def quantiles(tokens: IntColumn) -> tuple[int, ...]:
        return tuple(int(value) for value in np.quantile(tokens, AT, method="inverted_cdf"))

    def rounded(numbers: dict[str, float]) -> dict[str, float]:
        return {key: round(value, 4) for key, value in numbers.items()}

    related = correlation(prompts, outputs) if paired else {"pearson": None, "spearman": None}
    return Own(
        pairs=len(prompts),
        prompt_tokens=rounded(percentiles(prompts)),
        output_tokens=rounded(percentiles(outputs)),
        correlation={key: None if value is None else round(value, 4) for key, value in related.items()},
        max_over_mean={str(batch): round(max_over_mean(outputs, batch), 4) for batch in BATCHES},
        at=AT,
        prompt_quantiles=quantiles(prompts),
        output_quantiles=quantiles(outputs),
    )


def unit_gaps(arrivals_us: IntColumn | None, most: int | None = None) -> tuple[tuple[int, ...], float]:
    """(gaps in thousandths of the mean gap, requests per second); the first `most` gaps."""
    if arrivals_us is None:
        return (), 0.0
    gaps_us = np.diff(arrivals_us)
    mean_us = float(gaps_us.mean())
    thousandths = np.rint(gaps_us[:most] * (1000 / mean_us)).astype(int)
    return tuple(thousandths.tolist()), round(1e6 / mean_us, 6)


def ks_distance(a: IntColumn, b: IntColumn) -> float:
    """Kolmogorov-Smirnov distance: the largest difference of the two distribution functions."""
    values = np.union1d(a, b)
    cdfs = [np.searchsorted(np.sort(column), values, side="right") / len(column) for column in (a, b)]
    return float(np.abs(cdfs[0] - cdfs[1]).max())


def write_preset(preset: Preset, path: Path) -> None:
    """One line per field of `origin` and `own` and per stratum, so that a person can look at the file."""

    def text(value: object, indent: str = " ") -> str:
        if isinstance(value, dict) and indent == " ":
            rows = [f'"{key}": {text(inner, "")}' for key, inner in value.items()]
            return "{\n  " + ",\n  ".join(rows) + "\n }"
        if isinstance(value, list) and value and isinstance(value[0], list):
            return "[\n  " + ",\n  ".join(text(row, "") for row in value) + "\n ]"
        return msgspec.json.encode(value).decode()

    fields = [f'"{key}": {text(value)}' for key, value in msgspec.json.decode(msgspec.json.encode(preset)).items()]
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("{\n " + ",\n ".join(fields) + "\n}\n", encoding="utf-8")
    partial.replace(path)
