"""The stages of a rate that changes in a report: what each shows, and through which an SLA holds."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from rich.console import Console

from reports.document import Chart, Lines, Rule, Table
from reports.metrics import request_times
from reports.pages.evidence import over_time_charts
from reports.pages.splits import group_section
from reports.render.charts.vega import spec
from reports.render.run import run_view
from reports.render.splits import stage_columns, stage_rows, stage_sentences
from reports.reported_run import ReportedRun
from reports.schema import RunFile
from reports.sla_scope import Scope
from reports.stages import Stages
from reports.summary import completed_run
from reports.summary_schema import StageGroup, Summary, first_failed_stage
from tests.reports.factory import header, record, row
from tests.reports.test_sla_scope import STEPS, stepped, stepped_run
from workloads.plan import UGAP
from workloads.rates import NS, RateSchedule


def by_stage(run: RunFile) -> dict[str, StageGroup]:
    assert run.summary is not None
    return run.summary.by_stage


def test_each_stage_is_judged_as_an_sla_on_it_is() -> None:
    run = stepped_run("p99_ttft_ms<=500", "p99_ttft_ms[stage=1]<=500", "attainment>=0.5", "request_per_s>=15")
    first, second = by_stage(run).values()
    assert [one.expr for one in first.sla] == ["p99_ttft_ms<=500", "p99_ttft_ms[stage=1]<=500", "attainment>=0.5"]
    assert [one.expr for one in second.sla] == ["p99_ttft_ms<=500", "attainment>=0.5"]
    assert first.sla[0].reason == first.sla[1].reason == run.sla[1].reason
    assert [one.verdict for one in (*first.sla, *second.sla)] == ["pass", "pass", "pass", "fail", "fail"]
    assert (first.goodput.attainment, second.goodput.attainment) == (1.0, 0.0)
    assert first.goodput.request_per_s == pytest.approx(10)
    assert msgspec.json.decode(msgspec.json.encode(run.summary), type=Summary) == run.summary


def test_a_sentence_says_through_which_stage_it_holds() -> None:
    stages = by_stage(stepped_run("p99_ttft_ms<=500"))
    assert first_failed_stage(stages) == "2: 20 for 20s"
    assert stage_sentences(stages) == [
        "p99_ttft_ms<=500 holds through stage 1 (10 requests/s); stage 2 (20 requests/s) exceeds it first, with 906"
    ]
    assert stage_sentences(by_stage(stepped_run("p99_ttft_ms<=5"))) == [
        "p99_ttft_ms<=5: stage 1 (10 requests/s) exceeds it first, with 56"
    ]
    assert stage_sentences(by_stage(stepped_run("p99_ttft_ms<=1000"))) == ["p99_ttft_ms<=1000 holds in every stage"]
    assert stage_sentences(by_stage(stepped_run("p99_ttft_ms[stage=1]<=500", "request_per_s>=1"))) == []


def test_a_sentence_claims_no_more_than_the_sample_does() -> None:
    (said,) = stage_sentences(by_stage(stepped_run("p999_ttft_ms<=500")))
    assert said.startswith(
        "p999_ttft_ms<=500 is not exceeded through stage 1 (10 requests/s); stage 2 (20 requests/s) exceeds it first"
    )
    assert "Unproven in stage 1: none of 400 requests of stage 1 beyond it" in said
    (open_in_all,) = stage_sentences(by_stage(stepped_run("p999_ttft_ms<=1000")))
    assert open_in_all.startswith(
        "p999_ttft_ms<=1000 is not exceeded in any stage. Unproven in stages 1, 2: in stage 2 none"
    )


def test_the_queue_of_a_stage_that_only_grows_is_not_held_against_one_that_does_not() -> None:
    """The run is overloaded, as its second stage is; the first was not, and has its verdict."""
    made = []
    for i in range(1200):
        at = 100.0 * i if i < 400 else 40_000 + 20.0 * (i - 400)
        first = at + (50 + 2 * i % 7 if i < 400 else 50 + 30.0 * (i - 400))
        made.append(row(i, [first, first + 20], scheduled_ms=at))
    run = completed_run(
        record(made), header(sla=["p99_ttft_ms<=1e6"], rate_per_s=20, rate_schedule="10 for 40s, 50 for 16s")
    )
    assert run.validity is not None
    assert run.validity.verdict == "overloaded"
    assert [one.sla[0].verdict for one in by_stage(run).values()] == ["pass", "inconclusive"]
    assert "Unproven in stage 2: overloaded, so the value" in stage_sentences(by_stage(run))[0]


def test_the_table_has_asked_and_done_and_marks_the_first_beyond() -> None:
    stages = by_stage(stepped_run("p99_ttft_ms<=500"))
    first, second = (dict(zip(stage_columns(stages), cells, strict=True)) for cells in stage_rows(stages, True))
    assert (first["offered/s"], first["done/s"], first["SLA"], first["within SLA"]) == ("10", "10", "pass", "100.0%")
    assert (second["offered/s"], second["requests"], second["SLA"], second["within SLA"]) == (
        "20",
        "400",
        "fail ◄",
        "0.0%",
    )
    assert second["TTFT p99"] == "906"
    unjudged = by_stage(stepped_run())
    assert stage_columns(unjudged)[-1] == "TPOT p99"
    assert all(len(cells) == len(stage_columns(unjudged)) for cells in stage_rows(unjudged, True))


def test_terminal_and_page_show_it() -> None:
    run = stepped_run("p99_ttft_ms<=500")
    console = Console(width=160)
    with console.capture() as capture:
        console.print(run_view(run))
    told = capture.get()
    assert "holds through stage 1 (10 requests/s); stage 2" in told
    assert "fail ◄" in told
    assert "service" not in told, "a stage is not a tenant"
    made = stepped()
    (table,) = group_section([ReportedRun("", run, made, request_times(made))]).blocks
    assert isinstance(table, Table)
    assert (table.columns[0], table.marked) == ("stage", 1)


def test_a_ramp_is_cut_into_parts_of_one_length_named_by_their_rates() -> None:
    stages = Stages.of("4..24 for 5m, 0 for 10s, 10..2 for 10s, 2")
    assert stages is not None
    assert [one.name for one in stages.rows] == [
        "1.1: 4–6.5", "1.2: 6.5–9", "1.3: 9–11.5", "1.4: 11.5–14", "1.5: 14–16.5", "1.6: 16.5–19", "1.7: 19–21.5",
        "1.8: 21.5–24", "2: 0 for 10s", "3.1: 10–6", "3.2: 6–2", "4: 2",
    ]  # fmt: skip
    assert [one.start_s for one in stages.rows[:3]] == [0, 37.5, 75]
    at_ns = np.sort(np.random.default_rng(0).integers(0, 400 * NS, 5000))
    held = [one.holds(at_ns) for one in stages.rows]
    assert np.array_equal(sum(one.astype(int) for one in held), np.ones(5000)), "each time is in one of them"
    whole, part = stages.find("1"), stages.find("1.2")
    assert whole is not None
    assert part is not None
    assert (whole.start_s, whole.end_s, part.start_s, part.end_s) == (0, 300, 37.5, 75)
    small = Stages.of("1..3 for 20s")
    assert small is not None
    assert [one.name for one in small.rows] == ["1: 1..3 for 20s", "then 3"], "40 requests are too few for two parts"


def test_the_rate_at_which_a_ramp_breaks_is_read_off_its_parts() -> None:
    """From 2 to 18 per second in 80 s; from the 50th second on, at 12 per second, every request waits 900 ms."""
    stages = Stages.of("2..18 for 80s")
    assert stages is not None
    due_ms = (stages.due_ns(np.arange(1, 801, dtype=np.int64) * UGAP) / 1e6).tolist()
    waits_ms = [(900 if at >= 50_000 else 50) + 2 * i % 7 for i, at in enumerate(due_ms)]
    pairs = zip(due_ms, waits_ms, strict=True)
    made = record([row(i, [at + wait, at + wait + 20], scheduled_ms=at) for i, (at, wait) in enumerate(pairs)])
    sla = [
        "p50_ttft_ms<=500",
        "p50_ttft_ms[stage=1.5]<=500",
        "p50_ttft_ms[stage=1.6]<=500",
        "p50_ttft_ms[stage=1]<=500",
    ]
    run = completed_run(made, header(sla=sla, rate_per_s=10.0, rate_schedule="2..18 for 80s"))
    found = by_stage(run)
    assert list(found)[4:6] == ["1.5: 10–12", "1.6: 12–14"]
    assert [one.verdict for one in run.sla[1:]] == ["pass", "fail", "inconclusive"], "the whole ramp has one change"
    assert run.sla[3].n == sum(one.requests for one in found.values() if one.key != "then")
    assert first_failed_stage(found) == "1.6: 12–14"
    assert stage_sentences(found)[0] == (
        "p50_ttft_ms<=500 holds through stage 1.5 (10 to 12 requests/s); stage 1.6 (12 to 14 requests/s) exceeds it "
        "first, with 903"
    )
    asked = [one.asked_request_per_s for one in found.values() if one.key != "then"]
    assert asked == pytest.approx([3, 5, 7, 9, 11, 13, 15, 17], abs=0.2)


def test_a_part_that_is_not_there_is_told_with_those_that_are() -> None:
    missing = Scope("stage", "1.9").missing_in(stepped(), Stages.of("4..24 for 5m"))
    assert missing == "no such stage; there are 1 (4..24 for 300s, in parts 1.1 to 1.8), then (24)"


def marks(runs: Sequence[ReportedRun]) -> list[list[Rule]]:
    """Of each chart over time."""
    charts = [one for one in over_time_charts(runs) if isinstance(one, Chart)]
    return [list(one.plot.rules) for one in charts if isinstance(one.plot, Lines)]


def test_charts_over_time_have_a_mark_where_each_stage_begins() -> None:
    made = stepped()
    one = ReportedRun("", stepped_run(), made, request_times(made))
    found = marks([one])
    assert len(found) == 3, "requests, TTFT and TPOT; without a ledger no signals"
    assert all(
        [(rule.value, rule.label, rule.along, rule.quiet) for rule in rules]
        == [(0, "10/s", "x", True), (40, "20/s", "x", True), (60, "", "x", True)]
        for rules in found
    )
    short = stepped_run()
    pacing = msgspec.structs.replace(short.workload.pacing, rate_schedule="10 for 40s, 20 for 1s, 15 for 19s")
    short = msgspec.structs.replace(short, workload=msgspec.structs.replace(short.workload, pacing=pacing))
    labels = [rule.label for rule in marks([one._replace(run=short)])[0]]
    assert labels == ["10/s", "", "15/s", ""], "one second of 61 has no room for a label"
    steady = ReportedRun("", completed_run(made, header(rate_per_s=13.0)), made, one.times)
    assert not any(marks([steady])), "no stages"
    assert not any(marks([one, steady])), "not the same"
    assert all(map(marks, [[one, one]]))


def test_the_chart_has_the_marks() -> None:
    made = stepped()
    chart = over_time_charts([ReportedRun("", stepped_run(), made, request_times(made))])[0]
    assert isinstance(chart, Chart)
    made_of = spec(chart)
    kinds = [layer["mark"]["type"] for layer in made_of["layer"] if layer["mark"].get("color") == "var(--muted)"]
    assert kinds == ["rule", "text", "rule", "text", "rule"]
    assert all(f'"{rate}"' in json.dumps(made_of["datasets"]) for rate in ("10/s", "20/s"))


def test_runs_from_before_stages_were_judged_can_be_read() -> None:
    run = completed_run(stepped(), header(rate_per_s=13.0, rate_schedule=STEPS))
    old = msgspec.to_builtins(run)
    for one in old["summary"]["by_stage"].values():
        for name in ("key", "from_per_s", "to_per_s", "asked_request_per_s", "goodput", "sla"):
            del one[name]
    console = Console(width=160)
    with console.capture() as capture:
        console.print(run_view(msgspec.convert(old, RunFile)))
    assert "2: 20 for 20s" in capture.get()


def test_ramps_have_parts_unless_they_are_many() -> None:
    assert len(Stages(RateSchedule.parse("2..20 for 2m")).rows) == 8 + 1
    assert len(Stages(RateSchedule.parse("2~20 every 10m for 10m")).rows) == 12 + 1
