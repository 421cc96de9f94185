"""What a workload is, in numbers: its own, those of a sample of it, and those of all presets."""

from __future__ import annotations

from typing import Any

from workloads.columns import IntColumn
from workloads.length_pairs import BATCHES, IndependentLengths, ListedLengths, correlation, max_over_mean, percentiles
from workloads.plan import RequestPlan
from workloads.presets import PRESETS
from workloads.spec import Workload, open_workload


def presets() -> list[dict[str, Any]]:
    """What they are and where they come from, for JSON."""
    rows: list[dict[str, Any]] = []
    for name in PRESETS:
        workload = open_workload(name)
        own = own_numbers(workload)
        means = {side: own[side]["mean"] for side in ("prompt_tokens", "output_tokens")}
        rows.append({"name": name, "mean": means, "suggests": workload.suggests, "arrivals": workload.gaps is not None})
        rows[-1] |= {"description": "", "licence": ""} | workload.provenance
    return rows


def description(workload: Workload, plan: RequestPlan, max_model_len: int | None) -> dict[str, Any]:
    """Where a workload comes from, and a sample's numbers beside its own, for JSON. plan: the sample."""
    sample = {
        "pairs": len(plan),
        "seed": plan.seed,
        "max_model_len": max_model_len,
        "outside_context": plan.outside_context,
    }
    return {
        "spec": workload.spec,
        "kind": workload.kind,
        "notes": workload.provenance,
        "suggests": workload.suggests,
        "arrivals": arrivals_of(workload),
        "own": own_numbers(workload),
        "sample": sample | numbers_of(plan.prompt_tokens, plan.output_tokens),
    }


def own_numbers(workload: Workload) -> dict[str, Any]:
    """The workload's own numbers: those of the trace behind a preset, of the two distributions, or of all rows."""
    lengths, preset = workload.lengths, workload.preset
    if preset is not None and preset.own is not None:
        own = preset.own
        numbers: dict[str, Any] = {"prompt_tokens": own.prompt_tokens, "output_tokens": own.output_tokens}
        return numbers | {"correlation": own.correlation, "max_over_mean": own.max_over_mean}
    if isinstance(lengths, ListedLengths):
        return numbers_of(lengths.prompt_tokens, lengths.output_tokens)
    assert isinstance(lengths, IndependentLengths)
    independent = {"pearson": 0.0, "spearman": 0.0}
    return numbers_of(lengths.prompt.grid, lengths.output.grid) | {"correlation": independent}


def numbers_of(prompt_tokens: IntColumn, output_tokens: IntColumn) -> dict[str, Any]:
    return {
        "prompt_tokens": percentiles(prompt_tokens),
        "output_tokens": percentiles(output_tokens),
        "correlation": correlation(prompt_tokens, output_tokens),
        "max_over_mean": {str(batch): max_over_mean(output_tokens, batch) for batch in BATCHES},
    }


def arrivals_of(workload: Workload) -> dict[str, float] | None:
    """Mean rate and coefficient of variation of the workload's own gaps; None where it has none."""
    gaps = workload.gaps
    return {"rate_per_s": gaps.rate_per_s, "gap_cv": gaps.cv} if gaps is not None and gaps.rate_per_s else None
