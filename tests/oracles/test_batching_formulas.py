"""Static and continuous against formulas: sums of maxima, list scheduling, and E[max of B] / mean."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import integrate, stats

from tests.engines.scheduling.driving import config, run_counting
from workloads.plan import RequestPlan

MEAN = 32
DISTRIBUTIONS = {
    "uniform": stats.uniform(0, 2 * MEAN),
    "exponential": stats.expon(scale=MEAN),
    "lognormal 0.5": stats.lognorm(0.5, scale=MEAN / np.exp(0.5**2 / 2)),
    "lognormal 1.0": stats.lognorm(1.0, scale=MEAN / np.exp(0.5)),
}


def _outputs(distribution: str, count: int, seed: int = 1) -> list[int]:
    """Stratified quantiles in random order: the distribution itself, with little sampling noise."""
    rng = np.random.default_rng(seed)
    u = (rng.permutation(count) + 0.5) / count
    return np.maximum(np.rint(DISTRIBUTIONS[distribution].ppf(u)), 1).astype(int).tolist()


def _steps(outputs: Sequence[int], rows: int, mode: str) -> int:
    chosen = config(
        mode=mode, max_num_seqs=rows, max_num_batched_tokens=max(rows, 16), kv_blocks=100_000, max_model_len=100_000
    )
    record = run_counting(RequestPlan.of([1] * len(outputs), outputs), chosen)
    assert all(row.status == "completed" for row in record.rows)
    return len(record.steps)


def _list_scheduling(lengths: Sequence[int], machines: int) -> int:
    """Makespan when each job, in order, goes to the machine that is free first."""
    ends = [0] * machines
    for length in lengths:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends)


@pytest.mark.parametrize("distribution", ["uniform", "lognormal 1.0"])
@pytest.mark.parametrize("rows", [3, 8])
def test_steps_are_exactly_what_the_formulas_say(distribution: str, rows: int) -> None:
    outputs = _outputs(distribution, 101)
    batches = [outputs[i : i + rows] for i in range(0, len(outputs), rows)]
    assert _steps(outputs, rows, "static") == sum(max(batch) for batch in batches)
    assert _steps(outputs, rows, "continuous") == _list_scheduling(outputs, rows)


@pytest.mark.parametrize("rows", [8, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "distribution",
    [
        "uniform",
        "lognormal 1.0",
        *(pytest.param(distribution, marks=pytest.mark.slow) for distribution in ("exponential", "lognormal 0.5")),
    ],
)
def test_ratio_follows_expected_maximum_over_mean(distribution: str, rows: int) -> None:
    """S = E[max of B] / mean = (1/mean) * integral of 1 - F(x)^B, within 10 %, with N = 100 * B."""
    outputs = _outputs(distribution, 100 * rows)
    tail = DISTRIBUTIONS[distribution].ppf(1 - 1e-9)
    expected_max, _ = integrate.quad(lambda x: 1 - DISTRIBUTIONS[distribution].cdf(x) ** rows, 0, tail, limit=500)
    ratio = _steps(outputs, rows, "static") / _steps(outputs, rows, "continuous")
    assert ratio == pytest.approx(expected_max / DISTRIBUTIONS[distribution].mean(), rel=0.10)
