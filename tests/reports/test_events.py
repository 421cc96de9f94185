"""Gaps that are only counted, against all of them spelled out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.base import RunRecord
from engines.request_table import RequestTable
from engines.step_runs import StepRuns
from reports import events
from reports.counted_values import CountedValues
from reports.events import Events
from reports.quantiles import counted_distribution, quantile, quantile_interval
from tests.reports.factory import MS, all_values, ledger, record, row

VALUES = st.lists(st.integers(0, 40).map(float), min_size=1, max_size=200)


@given(VALUES, st.floats(0, 1))
def test_a_percentile_of_counted_values_is_numpys(values: list[float], p: float) -> None:
    tally = CountedValues.of(np.array(values), np.ones(len(values), np.int64))
    assert quantile(tally, p) == pytest.approx(float(np.percentile(values, 100 * p)), rel=1e-12, abs=1e-12)
    assert all_values(tally).tolist() == sorted(values)
    assert [tally[rank] for rank in range(-len(values), len(values))] == 2 * sorted(values)


@given(VALUES, st.integers(0, 40))
def test_moments_and_counts_of_counted_values(values: list[float], bound: int) -> None:
    tally = CountedValues.of(np.array(values), np.ones(len(values), np.int64))
    assert tally.mean() == pytest.approx(np.mean(values))
    assert tally.std() == pytest.approx(np.std(values), abs=1e-9)
    assert tally.above(bound) == sum(value > bound for value in values)
    assert len(tally.with_infinite(3)) == len(values) + 3
    assert all_values(tally.with_infinite(3).finite()).tolist() == sorted(values)


def test_an_interval_of_counted_values_is_that_of_the_sorted_ones() -> None:
    values = np.floor(np.random.default_rng(0).exponential(20, 5000))
    tally = CountedValues.of(values, np.ones(5000, np.int64))
    assert quantile_interval(tally, 0.99, 4000) == quantile_interval(np.sort(values), 0.99, 4000)
    with pytest.raises(IndexError, match="rank 5000 of 5000"):
        tally[5000]
    assert counted_distribution(CountedValues.of(np.empty(0), np.empty(0, np.int64)), 0).count == 0


@st.composite
def runs(draw: Callable[..., object]) -> RunRecord:
    """Requests whose events are step numbers, or gaps in µs; each batch of events read holds only a few."""
    unit = draw(st.sampled_from(["step", "us"]))
    made = []
    for i in range(draw(st.integers(1, 8))):
        steps = sorted(draw(st.sets(st.integers(1, 30), max_size=12)))
        gaps = draw(st.lists(st.integers(0, 9), min_size=len(steps), max_size=len(steps)))
        far = draw(st.sampled_from([0, 0, 5000]))  # ms, beyond the last bin
        at_ms = [step * 10.0 for step in steps] if unit == "step" else (7 + far * np.arange(len(gaps)) + gaps).tolist()
        status = draw(st.sampled_from(["completed", "completed", "failed"]))
        one, values = row(i, sorted(at_ms), status=status)
        made.append((one, np.array(steps, np.uint32) if unit == "step" else values))
    more = {"steps": ledger([1] * 30, [0] * 30, 1)} if unit == "step" else {}
    found = record(made, event_unit=unit, **more)
    others = [record(made[::-1], event_unit=unit, **more)]
    if unit == "step":
        kept_as_runs = StepRuns()
        for _, values in made:
            kept_as_runs.append([(step, 1) for step in values.tolist()])
        others.append(replace(found, event_values=kept_as_runs))
    return draw(st.sampled_from([found, *others]))


@given(runs())
@settings(deadline=None, max_examples=60)
def test_counted_gaps_are_those_between_the_events(made: RunRecord) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "AT_ONCE", 16)
        found = Events(made)
        event_ns = made.event_times_ns()
        completed = made.where("status", "completed")
        wanted, ended_ns = [], []
        for one in np.array(made.rows, dtype=object)[completed]:
            own = event_ns[one.events_at : one.events_at + one.events].tolist()
            wanted += [(after - before) / 1e6 for before, after in pairwise(own)]
            ended_ns += own[1:]
        assert all_values(found.gaps_ms(completed)).tolist() == sorted(wanted)
        in_time = np.array(wanted)[np.argsort(ended_ns, kind="stable")] if wanted else np.empty(0)
        assert sorted(found.gaps_in_time_ms(completed, 10**6)) == sorted(in_time)
        begin, end = 95 * MS, 205 * MS
        inside = [
            sum(begin < t <= end for t in event_ns[one.events_at : one.events_at + one.events]) for one in made.rows
        ]
        assert found.within(begin, end).tolist() == inside


def test_a_part_from_the_middle_is_in_order_of_time() -> None:
    """Ten requests one after the other, the gaps of request i being i ms."""
    made = record([row(i, [1000 * i + i * k for k in range(1, 6)]) for i in range(1, 11)])
    middle = Events(made).gaps_in_time_ms(made.where("status", "completed"), 8)
    assert middle.tolist() == [5.0] * 4 + [6.0] * 4


def test_of_requests_far_apart_only_their_own_events_are_spelled_out() -> None:
    """In memory the events are runs: a slice from the first to the last of those wanted could be the whole run."""
    sliced: list[int] = []

    class Watched(StepRuns):
        def __getitem__(self, part: slice) -> np.ndarray:
            sliced.append(part.stop - part.start)
            return super().__getitem__(part)

    made, values = [], Watched()
    for i in range(100):
        values.append([(1 + i, 3)])
        made.append(msgspec.structs.replace(row(i)[0], events_at=3 * i, events=3))
    ends = np.array([i in (0, 99) for i in range(100)])
    (batch,) = Events(RunRecord(100, RequestTable.of(made), values, "step")).batches(ends)
    assert batch.values.tolist() == [1, 2, 3, 100, 101, 102]
    assert sliced == [3, 3]
