"""A run's rows and token events as columns read like the lists they stand for."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.base import RunRecord
from engines.request_table import MISSING, RequestRow, RequestTable, StintRow
from engines.step_runs import StepRuns

times = st.none() | st.integers(0, 10**15)
rows = st.builds(
    lambda i, numbered, **fields: RequestRow(i=i, request_id=f"run-{i}" if numbered else None, **fields),
    numbered=st.booleans(),
    cached_tokens=st.none() | st.integers(0, 99),
    i=st.integers(0, 10**6),
    submitted=times,
    sent=times,
    first_byte=times,
    first=times,
    last=times,
    first_answer=times,
    status=st.sampled_from(["completed", "failed", "cancelled"]),
    finish_reason=st.none() | st.sampled_from(["length", "rejected"]),
    error=st.none() | st.text(max_size=3),
    tenant=st.sampled_from(["a", "b", ""]),
    stints=st.lists(st.builds(StintRow, *[st.integers(0, 9)] * 4), max_size=3).map(tuple),
    **{name: st.integers(0, 2**40) for name in ("scheduled", "end", "prompt_tokens", "output_tokens", "events_at")},
    **{name: st.integers(0, 99) for name in ("priority", "preemptions", "events")},
    token_source=st.just("engine"),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(rows, max_size=8))
def test_the_table_gives_back_what_went_in(made: list[RequestRow]) -> None:
    table = RequestTable()
    for row in made:
        table.append(row)
    record = RunRecord(len(made), table, np.empty(0, np.uint32), "step")
    assert list(table) == made
    assert [table[-1 - i] for i in range(len(made))] == made[::-1]
    assert table[1:] == made[1:]
    assert msgspec.json.encode(list(table)) == msgspec.json.encode(made)
    for name in ("scheduled", "first", "first_answer", "sent"):
        times_ns = [getattr(row, name) for row in made]
        assert record.column_ns(name).tolist() == [MISSING if at_ns is None else at_ns for at_ns in times_ns]
    for name in ("events", "priority"):
        assert record.column(name).tolist() == [getattr(row, name) for row in made]
    for name in ("tenant", "error", "finish_reason"):
        texts, codes = record.labels(name)
        assert [texts[code] for code in codes.tolist()] == [getattr(row, name) for row in made]
        assert record.where(name, "a").tolist() == [getattr(row, name) == "a" for row in made]
    assert record.first_steps().tolist() == [row.stints[0].admitted if row.stints else 0 for row in made]
    of_row, numbers = record.stints()
    stints = [(i, stint) for i, row in enumerate(made) for stint in row.stints]
    assert of_row.tolist() == [i for i, _ in stints]
    assert [StintRow(*four) for four in numbers.tolist()] == [stint for _, stint in stints]


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, max_size=8), st.integers(0, 8))
def test_many_rows_at_once_are_as_one_after_the_other(made: list[RequestRow], first: int) -> None:
    table = RequestTable()
    table.extend(made[:first])
    table.extend(made[first:])
    assert list(table) == made


def test_a_row_that_is_not_there() -> None:
    with pytest.raises(IndexError, match="row 0 of 0"):
        RequestTable()[0]


def test_the_table_grows() -> None:
    table = RequestTable()
    made = [
        RequestRow(
            i=i, scheduled=i, submitted=None, sent=None, first_byte=None, first=None, last=None, end=i, prompt_tokens=1,
            output_tokens=0, status="failed", finish_reason="rejected", error=f"{i}", token_source="engine",
            tenant="default", priority=0, preemptions=0, events_at=0, events=0,
        )
        for i in range(1000)
    ]  # fmt: skip
    for row in made:
        table.append(row)
    assert list(table) == made
    assert (table.column("first") == MISSING).all()


runs = st.lists(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 5)), max_size=3), max_size=6)


@settings(max_examples=50, deadline=None)
@given(runs, st.integers(0, 60), st.integers(0, 60))
def test_runs_of_steps_are_the_steps(requests: list[list[tuple[int, int]]], begin: int, end: int) -> None:
    events, spelled = StepRuns(), []
    for request in requests:
        events.append(request)
        spelled += [step for first, count in request for step in range(first, first + count)]
    assert len(events) == events.shape[0] == len(spelled)
    assert events.tolist() == np.asarray(events).tolist() == spelled
    assert events[begin:end].tolist() == spelled[begin:end]
    assert events[begin:].dtype == np.uint32


def test_a_run_of_more_steps_than_fit_one_count() -> None:
    events = StepRuns()
    events.append([(7, 200_000)])
    assert events.tolist() == list(range(7, 200_007))
    assert events.count.sum() == 200_000


@pytest.mark.parametrize("unit", ["step", "us"])
def test_times_of_some_requests_are_those_of_all(unit: str) -> None:
    steps = np.zeros(9, RunRecord(0, RequestTable(), np.empty(0, np.uint32), "step").steps.dtype)
    steps["end_ns"] = np.arange(1, 10) * 5000
    made = [
        RequestRow(
            i=i, scheduled=0, submitted=0, sent=0, first_byte=1, first=1000 * (i + 1), last=9, end=9, prompt_tokens=1,
            output_tokens=3, status="completed", finish_reason="length", error=None, token_source="engine",
            tenant="default", priority=0, preemptions=0, events_at=3 * i, events=3,
        )
        for i in range(3)
    ]  # fmt: skip
    values = np.array([0, 1, 2, 0, 3, 1, 0, 5, 6], np.uint32) if unit == "us" else np.arange(1, 10, dtype=np.uint32)
    record = RunRecord(3, RequestTable.of(made), values, unit, steps)  # type: ignore[arg-type]
    whole = record.event_times_ns()
    assert record.event_times_ns(3, 6).tolist() == whole[3:6].tolist()
    assert whole[3:6].tolist() == ([2000, 5000, 6000] if unit == "us" else [20_000, 25_000, 30_000])
