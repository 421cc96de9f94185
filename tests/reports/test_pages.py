"""Reports as documents, and as HTML, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from engines.base import RunRecord, Signal
from reports.curves import point_of
from reports.document import Chart, Curve, Figures, Lines, Report, SlotTimeline, Table
from reports.over_time import distribution_curve, latency_over_time, requests_over_time, signals_over_time
from reports.pages.comparison import comparison_report, labels_of
from reports.pages.evidence import over_time_charts
from reports.pages.run import run_report
from reports.pages.slots import slot_charts
from reports.pages.sweep import sweep_report
from reports.recommend import recommend
from reports.render.axis_limits import fitted, log_ticks
from reports.render.charts.labels import SIDES, place
from reports.render.csv import points_csv, requests_csv
from reports.render.html import html
from reports.render.markdown import report_markdown
from reports.reported_run import ReportedRun, reported_run
from reports.schema import Validity
from reports.summary import completed_run
from reports.sweep_schema import Point, SweepFile, Value
from tests.reports.factory import MS, bus_stop, header, ledger, record, row, row_in_slot

EVIL = "<script>alert(1)</script>|`x`"


def one_run(made: RunRecord | None = None, label: str = "", **fields: object) -> ReportedRun:
    made = made or bus_stop()
    return reported_run(label, completed_run(made, header(event_unit="step", **fields)), made)  # type: ignore[arg-type]


def bus_pair() -> tuple[ReportedRun, ReportedRun]:
    static = one_run(bus_stop(), "static", mode="static", config={"max_num_seqs": 3})
    return static, one_run(bus_stop(mode="compact"), "continuous", config={"max_num_seqs": 3})


def a_sweep(repeats: int = 1) -> SweepFile:
    points = []
    for slots, speed in ((1, 10.0), (4, 4.0), (16, 3.0), (32, 2.9)):
        for repeat in range(repeats):
            events = [[i * 5 + slots * 2 + k * speed + repeat for k in range(6)] for i in range(10)]
            made = record([row(i, one, scheduled_ms=i * 5) for i, one in enumerate(events)])
            run = completed_run(made, header(rate_per_s=100.0, sla=["p99_tpot_ms<=5"]))
            points.append(point_of((slots,), f"max-num-seqs-{slots}", run, repeat=repeat))
    points.append(Point(values=(64,), folder="64", error="out of memory\nand more"))
    advice = recommend(("max-num-seqs",), points, ("p99_tpot_ms<=5",))
    return SweepFile(
        params=("max-num-seqs",),
        settings=tuple((slots,) for slots in (1, 4, 16, 32, 64)),
        repeats=repeats,
        points=tuple(points),
        recommendation=advice,
        sla=("p99_tpot_ms<=5",),
    )


def a_grid(firsts: Sequence[Value], params: tuple[str, str] = ("max-num-seqs", "max-num-batched-tokens")) -> SweepFile:
    """Every first value with three second ones, all at 8 requests/s unless the rate is one of the two."""
    seconds = (2, 4, 8) if params[1] == "rate" else (512, 2048, 8192)
    points = [
        Point(
            values=(first, second), folder="x", rate_per_s=float(second) if params[1] == "rate" else 8.0,
            output_token_per_s=1200.0 + at + second / 100, p99_ttft_ms=100.0 + at, p99_tpot_ms=7.0 + second / 1000,
            p50_tpot_ms=6.0, p99_e2el_ms=900.0 + second, tokens_per_s_per_user=150.0 + at, validity=Validity("ok"),
        )
        for at, first in enumerate(firsts)
        for second in seconds
    ]  # fmt: skip
    return SweepFile(
        params=params,
        settings=tuple(one.values for one in points),
        points=tuple(points),
        recommendation=recommend(params, points, ()),
    )


@cache
def page(kind: str) -> Report:
    if kind == "grid":
        return sweep_report(a_grid((8, 16, 32)), None)
    if kind == "run":
        return run_report(one_run())
    return comparison_report(*bus_pair()) if kind == "pair" else sweep_report(a_sweep(), one_run())


def texts(report: Report) -> str:
    return report_markdown(report)


def chart(report: Report, name: str) -> Chart:
    return next(one for one in report.charts() if one.name == name)


# What stands in it


@pytest.mark.parametrize("kind", ["run", "pair", "sweep"])
def test_the_verdict_leads_and_definitions_come_last(kind: str) -> None:
    titles = [section.title for section in page(kind).sections]
    assert titles[0] == ("Recommendation" if kind == "sweep" else "Result")
    assert titles[-3:] == ["Configuration", "Environment", "Definitions"][-3:] or titles[-1] == "Definitions"
    assert page(kind).sections[0].leads
    assert all(section.blocks for section in page(kind).sections)
    names = [one.name for one in page(kind).charts()]
    assert len(set(names)) == len(names)


def test_a_run_shows_its_numbers() -> None:
    run = one_run(sla=["max_ttft_ms<=1"])
    report = run_report(run)
    assert (report.word, report.tone) == ("FAIL", "bad")
    figures = next(one for one in report.sections[0].blocks if isinstance(one, Figures)).figures
    assert [(one.label, one.value) for one in figures][:2] == [("Output throughput", "130"), ("P99 TTFT", "10")]
    rules = chart(report, "ttft-distribution").plot.rules  # type: ignore[union-attr]
    assert [(one.value, one.along) for one in rules] == [(1.0, "x")]
    assert "340 dead rows" in texts(report)


@pytest.mark.parametrize("made", [record([]), record([row(0, status="failed", finish_reason="error")])])
def test_a_run_without_a_result_has_a_report_too(made: RunRecord) -> None:
    report = run_report(one_run(made))
    assert report.word in ("OK", "INVALID")
    assert report_markdown(report)


def test_a_run_over_http_has_no_slots() -> None:
    signals = [Signal(t * MS, 2, t, 0.5, None, 1.0, None, 0, 0) for t in range(400)]
    made = record([row(i, [1.0, 2.0, 3.0]) for i in range(3)], signals=signals)
    names = {one.name for one in run_report(one_run(made)).charts()}
    assert {"kv-usage-over-time", "running-over-time", "ttft-distribution"} <= names
    assert not names & {"device-busy-over-time", "slots-by-step", "launched-tokens"}


def test_a_run_says_why_requests_failed() -> None:
    failed = row(1, [], end_ms=1.0, status="failed", finish_reason="http_4xx", error="HTTP 429: rate limit reached")
    text = texts(run_report(one_run(record([row(0, [30, 40]), failed]))))
    assert "http_4xx" in text
    assert "HTTP 429: rate limit reached" in text


def test_tenants_have_a_table() -> None:
    made = record([row(0, [10, 20], tenant="a"), row(1, [40, 60], tenant="b", preemptions=2), row(2, [5], tenant="b")])
    section = next(one for one in run_report(one_run(made)).sections if one.title.startswith("Tenants"))
    table = section.blocks[0]
    assert isinstance(table, Table)
    assert [one[:3] for one in table.rows] == [("a", "1", "1"), ("b", "2", "2")]
    assert table.rows[1][-2] == "2"


def test_a_pair_says_what_changed_and_what_theory_expects() -> None:
    report = page("pair")
    assert report.word == "SAME WORK"
    said = texts(report)
    # Outputs 10, 50 and 200 in batches of 3 drawn from them: E[max] = (1 * 10 + 7 * 50 + 19 * 200) / 27.
    expected = (10 + 7 * 50 + 19 * 200) / 27 / (260 / 3)
    assert f"{expected:.2f}x predicted" in said
    assert "| launched tokens | 600 | 260 | 0.43x |" in said
    other = one_run(bus_stop(), "other", sha256="cd" * 32)
    assert comparison_report(bus_pair()[0], other).word == "DIFFERENT WORK"


def test_a_folder_keeps_its_name() -> None:
    here, there = one_run(label="kv/../x"), one_run(label="swap")
    report = comparison_report(here, there)
    assert report.title == "swap against kv/../x"
    assert all(re.fullmatch(r"[\w-]+", one.name) for one in report.charts())
    assert len({one.name for one in report.charts()}) == len(report.charts())


def test_labels_of_two_runs() -> None:
    static, continuous = header(mode="static"), header()
    assert labels_of(static, continuous, ("a", "b")) == ("static", "continuous")
    assert labels_of(static, static, ("a", "b")) == ("a", "b")
    assert labels_of(static, static, ("a", "a")) == ("A: a", "B: a")


def test_slots_of_two_runs_share_their_axes() -> None:
    static, continuous = bus_pair()
    continuous = continuous._replace(record=cut(continuous.record, 150))
    charts = slot_charts([(one.label, one.record, one.run) for one in (static, continuous)])
    plots = [one.plot for one in charts if isinstance(one.plot, SlotTimeline)]
    assert [one.x.domain for one in plots] == [(0.0, 200.0), (0.0, 200.0), (0.0, 2.0), (0.0, 2.0)]
    assert [one.end for one in plots] == [200.0, 150.0, 2.0, 1.5]
    assert [one.x.quiet for one in plots] == [True, False, True, False]
    assert {state for _, state, _, _ in plots[0].spans} == {"prefill", "decode", "dead row"}
    assert (0, "dead row", 10.0, 200.0) in plots[0].spans
    assert (0, "dead row", 0.1, 2.0) in plots[2].spans


def cut(made: RunRecord, steps: int) -> RunRecord:
    return RunRecord(3, made.rows, made.event_values, "step", made.steps[:steps])


def test_a_long_run_shows_a_window_of_its_slots() -> None:
    n = 3000
    made = record(
        [row_in_slot(i, i % 2, 2 * i + 1, 2 * i + 2) for i in range(n)],
        event_unit="step",
        steps=ledger([1] * 2 * n, [0] * 2 * n, 2),
    )
    (steps, _) = slot_charts([("", made, header(rate_per_s=1.0, event_unit="step"))])
    assert isinstance(steps.plot, SlotTimeline)
    assert len(steps.plot.spans) <= 2010
    assert steps.caption == "Steps 2,001 to 4,000 of 6,000."


def test_points_say_why_and_carry_their_intervals() -> None:
    report = sweep_report(a_sweep(repeats=3), None)
    plot = chart(report, "throughput-p99-tpot").plot
    assert isinstance(plot, Curve)
    assert [one.label for one in plot.spots] == ["1", "4", "16", "32"]
    assert all("limit" in one.details for one in plot.spots)
    assert all(one.x_interval and one.x_interval[0] <= one.x <= one.x_interval[1] for one in plot.spots)
    assert [(one.value, one.label) for one in plot.rules] == [(5.0, "p99_tpot_ms<=5")]
    marked = [one.label for one in plot.spots if one.marks]
    assert marked == [str(a_sweep().recommendation.values[0])]  # type: ignore[union-attr, index]
    assert "out of memory" in texts(report)


def test_a_sweep_over_the_mode_shows_the_gain_and_its_prediction() -> None:
    def point(slots: int, mode: str, speed: float) -> Point:
        return Point(values=(slots, mode), folder="x", mode=mode, output_token_per_s=speed, max_over_mean=1.5 + slots)

    points = [
        point(slots, mode, speed * slots)
        for slots in (1, 2)
        for mode, speed in (("static", 10.0), ("continuous", 25.0))
    ]
    sweep = SweepFile(params=("max-num-seqs", "mode"), settings=((1, "static"),), points=tuple(points))
    plot = chart(sweep_report(sweep, None), "static-continuous").plot
    assert isinstance(plot, Curve)
    assert [(one.x, one.y) for one in plot.spots] == [(1.0, 2.5), (2.0, 2.5), (1.0, 2.5), (2.0, 3.5)]


def curves_of(sweep: SweepFile) -> dict[str, Curve]:
    return {one.name: one.plot for one in sweep_report(sweep, None).charts() if isinstance(one.plot, Curve)}


def test_the_second_parameter_names_the_legend_and_its_values_the_lines() -> None:
    plots = curves_of(a_grid((8, 16, 32)))
    # Nothing against a rate that is always the same.
    assert set(plots) == {"throughput-p99-ttft", "throughput-p99-tpot", "throughput-p99-e2el", "per-user"}
    plot = plots["throughput-p99-tpot"]
    assert plot.legend == "max-num-batched-tokens"
    named = [(one.series, one.label) for one in plot.spots]
    assert named[:4] == [("512", "8"), ("512", "16"), ("512", "32"), ("2048", "8")]
    assert plot.joined


def test_lines_follow_numbers_and_never_words() -> None:
    words = curves_of(a_grid(("fcfs", "priority"), ("order", "max-num-seqs")))["throughput-p99-ttft"]
    assert (words.legend, words.joined) == ("order", True)
    assert [(one.series, one.label) for one in words.spots][:2] == [("fcfs", "512"), ("fcfs", "2048")]
    both = a_grid(("fcfs", "shortest-prompt"), ("order", "max-num-seqs"))
    points = tuple(msgspec.structs.replace(one, values=one.values[:1]) for one in both.points if one.values[1] == 512)
    plots = curves_of(msgspec.structs.replace(both, params=("order",), points=points, settings=(), recommendation=None))
    assert len(plots) == 4
    assert all(not one.joined and not one.frontier and not one.legend for one in plots.values())
    assert [one.label for one in plots["per-user"].spots] == ["fcfs", "shortest-prompt"]


def test_against_the_rate_a_line_is_one_setting() -> None:
    plot = curves_of(a_grid((8, 16), ("max-num-seqs", "rate")))["rate-p99-tpot"]
    assert plot.legend == "max-num-seqs"
    assert [(one.series, one.x) for one in plot.spots] == [(slots, x) for slots in ("8", "16") for x in (2.0, 4.0, 8.0)]


def test_the_caption_says_what_each_mark_is() -> None:
    seen: set[str] = set()
    for sweep in (a_sweep(), a_grid((8, 16), ("max-num-seqs", "rate")), rates()):
        for one in sweep_report(sweep, None).charts():
            assert isinstance(one.plot, Curve)
            marks = {mark for spot in one.plot.spots for mark in spot.marks}
            assert ("recommended" in marks) == ("The ring is the recommended setting." in one.caption)
            assert ("knee" in marks) == ("The diamond is the knee" in one.caption)
            seen |= marks
    assert seen == {"recommended", "knee"}


def rates() -> SweepFile:
    points = [
        Point(values=(rate,), folder="x", rate_per_s=float(rate), output_token_per_s=100.0 * rate, p99_ttft_ms=ttft)
        for rate, ttft in ((1, 50.0), (2, 55.0), (4, 70.0), (8, 2000.0))
    ]
    return SweepFile(params=("rate",), settings=tuple(one.values for one in points), points=tuple(points))


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ("azure-conv", "azure-conv"),
        ("data/x/trace.jsonl", "trace.jsonl"),
        (
            "prompt=lognormal(median=128,sigma=0.8,max=2048);output=uniform(16,256)",
            "prompt lognormal(median=128,sigma=0.…; output uniform(16,256)",
        ),
        ("azure-conv for a:weight=3;b:workload=(prompt=uniform(1,5);output=fixed(6))", "azure-conv for tenants a, b"),
        ("a:preset=x;b:preset=y;c:preset=x;d:preset=x;e:preset=z", "5 tenants"),
    ],
)
def test_a_workload_in_few_words(spec: str, short: str) -> None:
    run = one_run()
    workload = msgspec.structs.replace(run.run.workload, spec=spec)
    report = run_report(run._replace(run=msgspec.structs.replace(run.run, workload=workload)))
    assert report.subtitle == short
    configured = next(one.blocks[0] for one in report.sections if one.title == "Configuration")
    assert isinstance(configured, Table)
    assert ("workload", spec) in configured.rows


# Over time


def test_signals_are_averages_over_wall_time() -> None:
    """Two requests, one of them for half of the run; then 40 ms without any in a step of its own."""
    steps = ledger([2] * 8 + [1] * 8, [0] * 16, 4)
    made = [row_in_slot(0, 0, 1, 16), row_in_slot(1, 1, 1, 8)]
    course = signals_over_time(record(made, event_unit="step", steps=steps))[""]
    assert course.values["running"] == pytest.approx([2.0, 1.0])
    assert course.values["kv_usage"] == pytest.approx([2 / 8, 1 / 8])
    assert course.values["device_busy"] == pytest.approx([0.5, 0.5])
    assert course.at_s == pytest.approx([0.04, 0.12])


def test_latencies_over_time_leave_out_bins_without_a_request() -> None:
    at = np.array([0, 1, 2, 1000] * 24, dtype=np.int64)
    course = latency_over_time(at, at.astype(np.float64))
    assert len(course.at_s) == 2
    assert course.values["p50"] == [1.0, 1000.0]
    assert not latency_over_time(at[:0], np.empty(0)).values["p50"]


def test_requests_over_time_show_the_stages_of_a_rate() -> None:
    """12 a second for 10 s, then 60 a second for 10 s, each done 100 ms later; the last one was not."""
    due_ms = [*np.arange(0, 10_000, 1000 / 12), *np.arange(10_000, 20_000, 1000 / 60)]
    rows = [row(i, [at + 50, at + 100], scheduled_ms=at) for i, at in enumerate(due_ms[:-1])]
    made = record(
        [*rows, row(len(rows), scheduled_ms=due_ms[-1], end_ms=20_100, status="failed", finish_reason="error")]
    )
    course = requests_over_time(made)
    due, completed = (np.array(course.values[name]) for name in ("due", "completed"))
    wide_s = float(course.at_s[1] - course.at_s[0])
    assert due.sum() * wide_s == pytest.approx(len(due_ms))
    assert completed.sum() * wide_s == pytest.approx(len(due_ms) - 1)
    early, late = course.at_s < 9.5, (course.at_s > 10.5) & (course.at_s < 19.5)
    assert due[early].mean() == pytest.approx(12, rel=0.05)
    assert due[late].mean() == pytest.approx(60, rel=0.05)
    assert len(course.at_s) == len(due_ms) // 25, "fewer requests than that in a bin are noise"
    many = record([row(i, [i + 5.0, i + 6.0], scheduled_ms=i) for i in range(2000)])
    assert len(requests_over_time(many).at_s) == 60
    assert not requests_over_time(record(rows[:49])).values, "too few to show a rate"
    open_loop = one_run(made, rate_per_s=36.0)
    assert "requests-over-time" in {one.name for one in over_time_charts([open_loop]) if isinstance(one, Chart)}
    assert "requests-over-time" not in {one.name for one in over_time_charts([one_run(made)]) if isinstance(one, Chart)}


def test_a_distribution_keeps_its_tail() -> None:
    values = np.arange(100_000, dtype=np.float64)
    xs, shares = distribution_curve(values)
    assert len(xs) <= 161
    assert xs[-1] == 99_999
    assert shares == pytest.approx([(x + 1) / 100_000 for x in xs])
    assert sum(share > 0.99 for share in shares) > 40
    assert distribution_curve(np.array([3.0, np.nan, 1.0])) == ([1.0, 3.0], [0.5, 1.0])


# Axes and labels


def test_axes_and_ticks() -> None:
    assert fitted("x", [1, 5]).domain == (0.0, pytest.approx(5.32))
    assert fitted("x", [8, 10]).domain == (pytest.approx(7.84), pytest.approx(10.16))
    assert fitted("x", [5]).domain == (4.75, 5.25)
    assert fitted("x", [1190.0, 1190.08]).domain == pytest.approx((1130.5, 1249.6), abs=0.1)
    assert fitted("x", [1, 100]).log
    for values in (
        [1.0, 1e308],
        [1e-308, 1.0],
        [5e-324, 1.7e308],
        [1.7e308],
        [0.0, 1.7e308],
        [-1e308, 1e308],
        [math.inf],
        [math.nan, 3.0],
    ):
        axis = fitted("x", values)
        assert axis.domain is not None
        assert all(map(math.isfinite, axis.domain))
        assert axis.domain[0] < axis.domain[1]
        assert len(axis.ticks) <= 32
        assert all(axis.domain[0] <= tick <= axis.domain[1] for tick in axis.ticks)
    assert log_ticks(9, 110) == [10, 20, 50, 100]
    assert log_ticks(9, 110_000) == [10, 100, 1000, 10_000, 100_000]


def test_no_label_lies_over_another() -> None:
    plot = chart(page("sweep"), "throughput-p99-tpot").plot
    assert isinstance(plot, Curve)
    assert None not in place(plot.spots, plot.x, plot.y)
    sides = place([plot.spots[0]] * 6, plot.x, plot.y)  # in one place there is room for one label on each side
    assert sorted(one for one in sides if one) == sorted({one for one in sides if one})
    assert 1 <= sum(one is not None for one in sides) <= len(SIDES)
    hemmed = [replace(plot.spots[0], marks=(), x=plot.spots[0].x * (1 + n / 1000)) for n in range(-8, 9)]
    assert None in place(hemmed, plot.x, plot.y)
    hemmed[8] = replace(hemmed[8], marks=["recommended"])
    assert place(hemmed, plot.x, plot.y)[8] is not None


# Files


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {kind: html(page(kind)) for kind in ("run", "sweep")}


def test_html_is_one_small_file_that_asks_for_nothing(pages: dict[str, str]) -> None:
    for text in pages.values():
        assert len(text.encode()) < 1_500_000
        own = text.replace(vega(text), "")
        assert not re.search(r"""(?:src|href|action)=["'](?!data:)""", own)
        assert "url(" not in own
        assert "default-src 'none'" in own
        assert "@media print" in own
        assert "prefers-color-scheme" in own
        assert own.count('class="chart"') == own.count('role="img"') == len(specs(own))


def vega(text: str) -> str:
    return max(re.findall(r"<script>(.*?)</script>", text, re.S), key=len)


def specs(text: str) -> dict[str, dict[str, object]]:
    found = re.search(r'<script id="charts" type="application/json">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def test_a_wide_chart_leaves_the_others_in_twos(pages: dict[str, str]) -> None:
    slots = pages["run"].partition("<h2>Slots</h2>")[2].partition("</section>")[0]
    assert slots.count('<figure class="wide">') == slots.count("<figure") == 3
    assert 'class="grid"' in slots
    assert 'class="grid three"' in pages["run"]  # three distributions


def test_the_same_input_gives_the_same_file(pages: dict[str, str]) -> None:
    assert html(run_report(one_run())) == pages["run"]


def test_what_a_user_wrote_stays_text() -> None:
    run = one_run()
    evil = msgspec.structs.replace(
        run.run,
        workload=msgspec.structs.replace(run.run.workload, spec=EVIL),
        engine=msgspec.structs.replace(run.run.engine, model=EVIL),
        notes=(EVIL,),
        environment={"command": EVIL},
    )
    made = record([row(0, status="failed", finish_reason="error", error=EVIL)])
    failed = completed_run(made, evil)
    for report in (run_report(reported_run(EVIL, evil, run.record)), run_report(reported_run("", failed, made))):
        text = html(report)
        assert "<script>alert" not in text
        assert text.count("</script") == 3
        assert "&lt;script&gt;alert(1)" in text
        told = report_markdown(report)
        assert "<script" not in told
        assert "`x`" not in told.replace("\\`", "")


def test_no_line_grows_with_the_run() -> None:
    starts = np.arange(4000) * 10.0
    made = record([row(i, [start + 20 + i % 7, start + 50], scheduled_ms=start) for i, start in enumerate(starts)])
    report = run_report(reported_run("", completed_run(made, header(rate_per_s=100.0)), made))
    longest = {
        one.name: max(map(len, (x.xs for x in one.plot.lines)))
        for one in report.charts()
        if isinstance(one.plot, Lines)
    }
    assert set(longest) >= {"ttft-distribution", "e2el-distribution", "ttft-over-time", "tpot-over-time"}
    assert max(longest.values()) <= 161


def test_markdown_tables_are_tables() -> None:
    for kind in ("run", "pair", "sweep"):
        lines = texts(page(kind)).splitlines()
        rows = [line for line in lines if line.startswith("|")]
        assert rows
        for line, after in pairwise(lines):
            if line.startswith("|") and after.startswith("|"):
                assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", after))
        assert lines.count("</details>") == sum(line.startswith("<details>") for line in lines)
    assert "| → " in texts(page("sweep"))


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_of_requests() -> None:
    failed = row(1, scheduled_ms=5, status="failed", finish_reason="error", error='=1+1, "x"')
    made = record([row(0, [20, 30, 40], scheduled_ms=10, sent_ms=12), failed])
    (second, first) = read_csv(requests_csv([one_run(made)]))
    assert (first["i"], first["ttft_ms"], first["ttft_sched_ms"], first["tpot_ms"]) == ("0", "8.0", "10.0", "10.0")
    assert first["first_s"] == "0.02"
    assert (second["status"], second["ttft_ms"], second["error"]) == ("failed", "", '\'=1+1, "x"')
    both = read_csv(requests_csv(bus_pair()))
    assert [one["run"] for one in both] == ["static"] * 3 + ["continuous"] * 3


def test_csv_of_points() -> None:
    lines = read_csv(points_csv(a_sweep(repeats=2)))
    assert [one["max-num-seqs"] for one in lines] == ["1", "1", "4", "4", "16", "16", "32", "32", "64"]
    assert float(lines[0]["p99_tpot_ms"]) == pytest.approx(10.0)
    assert lines[0]["p99_tpot_ms<=5"] == "fail"
    assert lines[-1]["output_token_per_s"] == ""
    assert lines[-1]["error"].startswith("out of memory")
