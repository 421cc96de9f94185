"""MSER-5: the formula, series with and without a start-up transient, and what a run says of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engines.base import RunRecord
from reports.metrics import request_times
from reports.summary import completed_run
from reports.warmup import mser5, warmup
from tests.reports.factory import header, record, row
from tests.reports.test_quantiles import ar1


@given(st.lists(st.integers(-50, 50), min_size=10, max_size=120))
def test_the_cut_minimises_the_formula(values: list[int]) -> None:
    whole = len(values) // 5
    means = np.array(values[len(values) - 5 * whole :], dtype=float).reshape(whole, 5).mean(axis=1)

    def error(d: int) -> float:
        rest = means[d:]
        return float(((rest - rest.mean()) ** 2).sum() / len(rest) ** 2)

    cut = mser5(np.array(values, dtype=float))
    d = whole - (len(values) - cut) // 5
    assert 0 <= d <= whole // 2
    assert error(d) <= min(error(other) for other in range(whole // 2 + 1)) + 1e-9


def test_a_transient_is_found() -> None:
    """An AR(1) series that starts ten standard deviations high and comes down with a time constant of 100."""
    rng = np.random.default_rng(5)
    decay = 10 * np.exp(-np.arange(2000) / 100)
    cuts = np.array([mser5(ar1(0.5, 2000, rng) * np.sqrt(0.75) + decay) for _ in range(50)])
    assert (decay[cuts] < 2).all()  # what remains is lost in the noise
    assert (cuts < 500).all()


def test_little_is_cut_from_a_stationary_series() -> None:
    rng = np.random.default_rng(6)
    for phi in (0.0, 0.5, 0.8):
        cuts = np.array([mser5(ar1(phi, 2000, rng)) for _ in range(100)])
        assert np.median(cuts) <= 5
        assert np.percentile(cuts, 90) <= 60  # 3 %


def run_with(e2el_ms: np.ndarray, interval_ms: float = 10.0) -> RunRecord:
    at = np.arange(len(e2el_ms)) * interval_ms
    return record(
        [row(i, [t + 1, t + 1 + e], scheduled_ms=t) for i, (t, e) in enumerate(zip(at, e2el_ms, strict=True))]
    )


def test_a_slow_start_is_said_and_nothing_is_left_out() -> None:
    rng = np.random.default_rng(7)
    slow = np.where(np.arange(600) < 100, 300.0, 0.0) + rng.exponential(20, 600) + 50
    run = completed_run(run_with(slow), header(rate_per_s=100.0))
    assert run.summary is not None
    assert run.validity is not None
    found = run.summary.throughput.warmup
    assert found is not None
    assert (found.requests, found.settled) == (100, True)
    assert found.until_s == 1.0
    assert "the first 100 requests (17%, until 1 s) differ from the rest" in run.validity.reasons[-1]
    assert run.validity.verdict == "ok"
    assert run.summary.latency.e2el_ms.count == 600


def test_a_run_that_only_gets_slower_has_not_settled() -> None:
    rng = np.random.default_rng(8)
    found = warmup(request_times(run_with(np.arange(600.0) + rng.exponential(20, 600))))
    assert found is not None
    assert not found.settled


def test_no_verdict_on_few_requests_or_on_a_single_burst() -> None:
    steady = 50 + np.random.default_rng(9).exponential(20, 600)
    few = completed_run(run_with(steady[:499]), header(rate_per_s=100.0))
    burst = completed_run(run_with(steady), header())
    quiet = completed_run(run_with(steady), header(rate_per_s=100.0))
    assert few.summary is not None
    assert burst.summary is not None
    assert few.summary.throughput.warmup is None
    assert burst.summary.throughput.warmup is None
    assert quiet.validity is not None
    assert quiet.validity.reasons == ()


def test_an_overloaded_run_passes_no_latency() -> None:
    """One server, 10 ms apart, 12 ms of service: the bound is so loose that this run is still within it."""
    free, made = 0.0, []
    for i in range(600):
        begin = max(free, i * 10.0)
        free = begin + 12
        made.append(row(i, [begin + 1, free], scheduled_ms=i * 10))
    slas = ("p50_ttft_ms<=900000", "max_ttft_ms<=900000", "p99_ttft_ms<=1", "request_per_s>=1", "failure_rate<=0.5")
    run = completed_run(record(made), header(rate_per_s=100.0, sla=slas))
    assert run.validity is not None
    assert run.validity.verdict == "overloaded"
    assert [one.verdict for one in run.sla] == ["inconclusive", "inconclusive", "fail", "pass", "pass"]
    for one in run.sla[:2]:
        assert one.reason.startswith("overloaded, so the value depends on the length of the run")
        assert one.value is not None
        assert one.needed is None
