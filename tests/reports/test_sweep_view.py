"""A sweep in a terminal of 80 columns: series, the knee, goodput, modes, repeats and what was skipped."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from reports.limits import annotated
from reports.recommend import recommend
from reports.render.formatting import stacked
from reports.render.plot import Line, plot
from reports.render.sweep import sweep_view
from reports.schema import SlaResult, Validity
from reports.summary_schema import Signals
from reports.sweep_schema import Point, SweepFile, Value


def shown(sweep: SweepFile, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(sweep_view(sweep, width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def point(*values: Value, speed: float, ttft: float, tpot: float, **fields: object) -> Point:
    told = {"signals": Signals(device_busy=0.9, waiting_mean=4.0, preemptions=0), "validity": Validity("ok")}
    return Point(
        values=values,
        folder="",
        output_token_per_s=speed,
        p99_ttft_ms=ttft,
        p50_tpot_ms=tpot,
        p99_tpot_ms=tpot,
        **(told | fields),  # type: ignore[arg-type]
    )


def sweep_of(params: Sequence[str], points: Sequence[Point], **fields: object) -> SweepFile:
    told = annotated(points)
    sla = tuple(one.expr for one in points[0].sla)
    return SweepFile(
        params=tuple(params),
        settings=tuple(dict.fromkeys(one.values for one in points)),
        points=tuple(told),
        recommendation=recommend(params, told, sla),
        sla=sla,
        **fields,  # type: ignore[arg-type]
    )


def rates() -> SweepFile:
    made = []
    for rate, speed, ttft in ((1, 100, 50.0), (2, 200, 55.0), (4, 400, 70.0), (8, 700, 2000.0)):
        verdict = "pass" if ttft < 500 else "fail"
        judged = SlaResult("p99_ttft_ms<=500", "p99_ttft_ms", ttft, 500, 0.95, 400, 400.0, verdict, "")  # type: ignore[arg-type]
        made.append(point(rate, speed=speed, ttft=ttft, tpot=10.0, rate_per_s=float(rate), sla=(judged,),
                          goodput_per_s=rate if ttft < 500 else 1.0))  # fmt: skip
    return sweep_of(["rate"], made, skipped=((16,),), ended="Higher rates were skipped.")


def test_a_rate_sweep_has_latency_against_rate_with_its_knee_and_goodput() -> None:
    text = shown(rates())
    assert max(map(len, text.splitlines())) <= 80
    assert "P99 TTFT in ms from the schedule, against the offered rate" in text
    assert "4 knee" in text
    assert "goodput: requests/s within the SLA" in text
    assert "Knee: rate 4." in text
    assert "Not measured: 16. Higher rates were skipped." in text
    assert "goodput" in text.splitlines()[1], "a column of the table"
    assert "→ 4" in text


def test_the_last_column_has_a_heading_or_is_not_there() -> None:
    fine = point(8, speed=100, ttft=5.0, tpot=9.0)
    swamped = point(16, speed=100, ttft=5.0, tpot=9.0, validity=Validity("overloaded"))
    header, row = shown(sweep_of(["max-num-seqs"], [swamped])).splitlines()[1:3]
    assert header.split()[-2:] == ["limit", "run"]
    assert row.split()[-1] == "OVERLOADED"
    assert shown(sweep_of(["max-num-seqs"], [fine])).splitlines()[1].split()[-1] == "limit"


def test_a_knee_at_the_end_is_none() -> None:
    speeds = ((1, 100, 9.0), (2, 190, 10.0), (4, 370, 11.0))
    text = shown(sweep_of(["max-num-seqs"], [point(n, speed=tok, ttft=5.0, tpot=ms) for n, tok, ms in speeds]))
    assert "Knee" not in text
    assert "knee" not in text


def test_a_load_at_a_fixed_rate_has_no_knee() -> None:
    speeds = ((8, 100, 9.0), (16, 190, 10.0), (32, 200, 30.0))
    made = [point(n, speed=tok, ttft=5.0, tpot=ms, rate_per_s=14.0) for n, tok, ms in speeds]
    assert "nee" not in shown(sweep_of(["max-num-seqs"], made))
    free = [point(n, speed=tok, ttft=5.0, tpot=ms) for n, tok, ms in speeds]
    assert "Knee: max-num-seqs 16" in shown(sweep_of(["max-num-seqs"], free))


def grid() -> SweepFile:
    made = [
        point(slots, mode, speed=speed, ttft=900.0 / slots, tpot=10.0 + slots, mode=mode, max_over_mean=2.25)
        for slots in (8, 32)
        for mode, speed in (("static", 100.0 * slots), ("continuous", 250.0 * slots))
    ]
    return sweep_of(["max-num-seqs", "mode"], made)


def test_two_parameters_give_a_line_each_and_modes_their_ratio() -> None:
    text = shown(grid())
    assert max(map(len, text.splitlines())) <= 80
    assert "● mode static   ○ mode continuous" in text
    plots = text.partition("P99 TTFT in ms, by max-num-seqs")[2]
    assert plots.count("●") == plots.count("○") == 2 + 2 + 2  # two plots of two points a line, and two legends
    row = next(line for line in text.partition("continuous over static")[2].splitlines() if line.split()[:1] == ["32"])
    assert row.split()[1:5] == ["3,200", "8,000", "2.50x", "2.25x"]


def test_repeats_show_their_spread() -> None:
    made = [point(8, speed=speed, ttft=9.0, tpot=9.0, repeat=at) for at, speed in enumerate((90.0, 100.0, 110.0))]
    text = shown(sweep_of(["max-num-seqs"], made, repeats=3))
    assert "3 runs each" in text
    row = next(line for line in text.splitlines() if "→ 8" in line)
    assert "24.8%" in row  # t(0.975, 2) * 10 / sqrt(3) of 100


@pytest.mark.parametrize("width", [80, 200])
def test_long_names_and_failures_fit(width: int) -> None:
    names = ["max-num-batched-tokens", "on-kv-pressure"]
    made = [
        point(512, "recompute", speed=1.0, ttft=1.0, tpot=1.0),
        Point(values=(1, "swap"), folder="", error="no\nlog"),
    ]
    text = shown(sweep_of(names, made), width)
    assert max(map(len, text.splitlines())) <= width
    assert "1, swap: no" in text
    assert "log" not in text.replace("(log)", "")
    assert stacked(names[0]) == "max-num-\nbatched-\ntokens"


def test_lines_keep_their_markers_and_the_log_axis_is_named() -> None:
    text = plot([Line([1, 100], [1, 2], ["a", "b"], "one"), Line([10, 50], [2, 1], ["c", "d"], "two")],
                x_name="option", y_name="y", width=60, log_x=True).plain  # fmt: skip
    assert text.count("●") == text.count("○") == 3
    assert "option (log)" in text
    assert plot([Line([], [], [])], x_name="x", y_name="y").plain == "y: nothing to plot"
