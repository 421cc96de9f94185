"""The report on variants: which would be faster, which are wrong, and which do not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.variants.choice import SHIPPED

Rows = dict[str, dict[str, Any]]


def variants_table(report: dict[str, Any]) -> list[str]:
    """The lines of a finished report; none where no variant was measured."""
    lines = [line for stage in ("products", "tuning") for line in _lines(report, stage)]
    return ["", *lines] if lines else []


def _lines(report: dict[str, Any], stage: str) -> Iterator[str]:
    rows: Rows = report["stages"].get(stage, {}).get("rows", {})
    overall = rows.get("decode attention")
    if overall is not None and overall["best"] != SHIPPED:
        yield f"faster        decode attention in all cells, {overall['best']}: {overall['gain']:.1%}"
    yield from ways_table(rows)


def ways_table(rows: Rows) -> Iterator[str]:
    """The gain of each variant, largest first; those that were wrong or did not run, and how many were not measured."""
    gains = {name: one for name, one in rows.items() if one.get("gain") and "us" in one}
    for name, one in sorted(gains.items(), key=lambda item: -item[1]["gain"]):
        change = f"{one['us']:.1f} to {one['best_us']:.1f} µs"
        yield f"faster        {name}, {one['best']}: {change}, {one['gain']:.1%} (noise {one['noise']:.1%})"
    for name, one in rows.items():
        for way, error in one.get("wrong", {}).items():
            yield f"wrong way     {name}, {way}: {'no number' if error is None else f'off by {error:.2g}'}"
        for way, problem in one.get("failed", {}).items():
            yield f"failed way    {name}, {way}: {problem}"
        if one.get("not_tried"):
            yield f"not tried     {name}: {one['not_tried']} ways, its time was over"
