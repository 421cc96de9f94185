"""The percentiles that a reader asks for: read from a summary, or worked out of the requests."""

from __future__ import annotations

import numpy as np
import pytest

from reports.metrics import LATENCIES, request_times
from reports.percentiles import MOST, STORED, Percentiles, parse_percentiles, percentiles
from reports.summary import completed_run
from tests.reports.factory import header, record, row
from workloads.errors import CbbenchError


def requests() -> object:
    values = np.random.default_rng(3).uniform(10, 900, 500)
    made = [row(i, [i * 10 + v, i * 10 + v + 20, i * 10 + v + 50], scheduled_ms=i * 10) for i, v in enumerate(values)]
    return record([*made, row(500, scheduled_ms=5000, status="failed", finish_reason="error")])


def test_any_percentile_is_that_of_numpy_and_the_stored_ones_are_those_of_the_summary() -> None:
    made = requests()
    run = completed_run(made, header())  # type: ignore[arg-type]
    times = request_times(made)  # type: ignore[arg-type]
    assert run.summary is not None
    asked = (1.0, 33.3, 50.0, 99.9, 99.95)
    found = percentiles(run.summary, times, asked)
    assert found.names == ["p1", "p33.3", "p50", "p99.9", "p99.95"]
    ttft = times.ttft_ms[~np.isnan(times.ttft_ms)]
    assert found.values["ttft_ms"] == pytest.approx(np.percentile(ttft, asked).tolist())
    assert set(found.values) == set(LATENCIES)
    kept = tuple(STORED)
    assert percentiles(run.summary, times, kept).values == percentiles(run.summary, None, kept).values
    for name in LATENCIES:
        worked_out = percentiles(run.summary, times, (*kept, 42.0)).values[name][: len(kept)]
        assert worked_out == pytest.approx(percentiles(run.summary, None, kept).values[name]), name


def test_none_is_called_the_hundredth() -> None:
    assert Percentiles(parse_percentiles("99.9999999,99.99999999,0.00001"), {}).names == [
        "p0.00001",
        "p99.9999999",
        "p99.99999999",
    ]


def test_a_summary_alone_has_no_others() -> None:
    summary = completed_run(requests(), header()).summary  # type: ignore[arg-type]
    assert summary is not None
    found = percentiles(summary, None, (50.0, 75.0))
    assert found.values["e2el_ms"][0] is not None
    assert found.values["e2el_ms"][1] is None


def test_nothing_measured_has_no_percentile() -> None:
    made = record([row(0, [50])])
    summary = completed_run(made, header()).summary
    assert summary is not None
    assert percentiles(summary, request_times(made), (75.0,)).values["tpot_ms"] == [None]
    assert percentiles(summary, request_times(made), (75.0,)).values["itl_ms"] == [None]


def test_they_are_read_in_order_and_once() -> None:
    assert parse_percentiles("99.9, 50,50.0") == (50.0, 99.9)


@pytest.mark.parametrize(
    "text", ["", "p50", "0", "100", "-1", "nan", "inf", "50,,90", ",".join(map(str, range(1, MOST + 2)))]
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(CbbenchError, match=r"must be numbers between 0 and 100|at most 8 fit"):
        parse_percentiles(text)
