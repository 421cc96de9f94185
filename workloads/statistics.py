"""Numbers that describe lengths: percentiles, how prompt and output go together, what static batching wastes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.plan import IntColumn, RequestPlan

PERCENTS = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
BATCHES = (8, 32)


def realised(plan: RequestPlan) -> dict[str, Any]:
    """What a plan really asks, for `workload.realised` of run.json. Token counts; outside_context is a share.

    prompt_tokens is None where only the server counts them.
    """
    names, counts = np.unique(plan.tenant, return_counts=True)
    return {
        "prompt_tokens": _summary(plan.prompt_tokens) if plan.prompts_counted else None,
        "output_tokens": _summary(plan.output_tokens),
        "outside_context": plan.outside_context,
        "tenants": {plan.tenants[name]: int(count) for name, count in zip(names, counts, strict=True)},
    }


def _summary(tokens: IntColumn) -> dict[str, float]:
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99)).tolist()
    return {"mean": float(tokens.mean()), "p50": p50, "p90": p90, "p99": p99, "max": int(tokens.max())}


def percentiles(tokens: IntColumn) -> dict[str, float]:
    """mean, p1 ... p99.9 (linear interpolation) and max."""
    values = np.percentile(tokens, PERCENTS).tolist()
    named = {f"p{percent:g}": value for percent, value in zip(PERCENTS, values, strict=True)}
    return {"mean": float(tokens.mean())} | named | {"max": float(tokens.max())}


def max_over_mean(tokens: IntColumn, batch: int) -> float:
    """E[max of `batch` independent draws] / mean, from a sample.

    With a saturated queue and a constant step time it is what continuous batching gains over static batching of that
    size: a static batch lasts as long as its longest output. E[max] = Σ x_(i) ((i/n)^B - ((i-1)/n)^B), sorted x.
    """
    powers = (np.arange(len(tokens) + 1) / len(tokens)) ** batch
    return float((np.sort(tokens) * np.diff(powers)).sum() / tokens.mean())


def correlation(prompt_tokens: IntColumn, output_tokens: IntColumn) -> dict[str, float | None]:
    """Pearson's and Spearman's coefficients; None where one side does not vary."""
    return {
        "pearson": _pearson(prompt_tokens.astype(np.float64), output_tokens.astype(np.float64)),
        "spearman": _pearson(_ranks(prompt_tokens), _ranks(output_tokens)),
    }


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale else None


def _ranks(values: IntColumn) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[which.reshape(-1)])
