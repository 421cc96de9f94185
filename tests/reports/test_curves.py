"""Points of a sweep, what is recommended and why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reports.curves import point_of, read_sweep, write_sweep
from reports.files import FolderError
from reports.recommend import recommend
from reports.schema import Point, Signals, SlaResult, SweepFile, Validity
from reports.summary import completed_run
from tests.reports.factory import bus_stop, header, record, row


def sla(verdict: str, value: float | None, bound: float = 500) -> SlaResult:
    return SlaResult(
        f"p99_ttft_ms<={bound:g}",
        "p99_ttft_ms",
        value,
        bound,
        0.95,
        64,
        64.0,
        verdict,
        "as it is",
        299,  # type: ignore[arg-type]
    )


def point(value: float | str, throughput: float | None, *, tpot: float = 20.0, **fields: object) -> Point:
    base = {"signals": Signals(device_busy=0.95, waiting_mean=5.0, preemptions=0), "validity": Validity("ok")}
    return Point(
        values=(value,),
        folder=str(value),
        output_token_per_s=throughput,
        p99_ttft_ms=100.0,
        p50_tpot_ms=tpot,
        p99_tpot_ms=tpot,
        **(base | fields),  # type: ignore[arg-type]
    )


def test_without_sla_the_smallest_within_five_percent() -> None:
    points = [point(32, 1000), point(4, 400), point(16, 951), point(8, 949)]
    advice = recommend(["max-num-seqs"], points)
    assert advice.values == (16,)
    assert not advice.proven
    assert "smallest setting within 5 %" in advice.reason
    assert "1,000 tok/s at 32" in advice.reason


def test_with_sla_the_largest_throughput_within_it() -> None:
    points = [
        point(4, 400, sla=(sla("pass", 100),)),
        point(8, 700, sla=(sla("inconclusive", 300),)),
        point(16, 900, sla=(sla("fail", 700),)),
    ]
    advice = recommend(["max-num-seqs"], points, ["p99_ttft_ms<=500"])
    assert (advice.values, advice.proven) == ((8,), False)
    assert "which 2 of 3 settings meet" in advice.reason
    assert "Unproven" in advice.reason
    assert "at least 299 needed" in advice.reason
    assert "16 misses the SLA (p99_ttft_ms 700 against 500)" in advice.reason
    proven = recommend(["max-num-seqs"], points[:1], ["p99_ttft_ms<=500"])
    assert (proven.values, proven.proven) == ((4,), True)
    assert "Unproven" not in proven.reason


def test_no_point_within_the_sla() -> None:
    points = [point(4, 400, sla=(sla("fail", 600),)), point(8, 800, sla=(sla("fail", 900),))]
    advice = recommend(["max-num-seqs"], points, ["p99_ttft_ms<=500"])
    assert (advice.values, advice.limit) == (None, "sla")
    assert "4 comes closest" in advice.reason
    lost = recommend(["max-num-seqs"], [point(4, 400, sla=(sla("fail", None),))], ["p99_ttft_ms<=500"])
    assert "too many requests failed" in lost.reason


def test_what_cannot_be_trusted_is_not_recommended() -> None:
    good = point(4, 400, sla=(sla("pass", 1),))
    overloaded = point(8, 900, sla=(sla("inconclusive", 400),), validity=Validity("overloaded"))
    unmeasured = point(16, 950, sla=(sla("inconclusive", None),))
    invalid = point(32, 999, validity=Validity("invalid", ("all failed",)))
    broken = Point(values=(64,), folder="64", error="out of memory")
    everything = [good, overloaded, unmeasured, invalid, broken]
    assert recommend(["rate"], everything, ["p99_ttft_ms<=500"]).values == (4,)
    assert recommend(["rate"], [overloaded, invalid, broken]).values == (8,)  # throughput alone is still throughput
    assert "all failed" in recommend(["rate"], [invalid]).reason
    assert recommend(["rate"], [broken]).values is None


def test_words_as_values_stay_in_order() -> None:
    assert recommend(["mode"], [point("static", 100), point("continuous", 300)]).values == ("continuous",)


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("kv", {}, {"signals": Signals(device_busy=0.9, preemptions=3, kv_usage_peak=1.0)}),
        ("kv", {}, {"signals": Signals(device_busy=0.9, preemptions=0, blocked={"watermark": 0.3})}),
        ("compute", {"tpot": 20.0}, {"tpot": 30.0}),
        ("host", {}, {"signals": Signals(device_busy=0.3, waiting_mean=9.0, preemptions=0)}),
        ("slots", {}, {"signals": Signals(device_busy=0.7, waiting_mean=9.0, blocked={"rows": 0.9})}),
        ("token_budget", {}, {"signals": Signals(device_busy=0.7, waiting_mean=9.0, blocked={"tokens": 0.5})}),
        ("demand", {}, {"signals": Signals(device_busy=0.9, waiting_mean=0.1)}),
        ("unknown", {}, {"signals": Signals()}),
        ("queue", {"tpot": 20.0}, {"tpot": 20.5}),
        ("sla", {}, {"signals": Signals(device_busy=0.9, waiting_mean=0.1), "sla": (sla("fail", 900),)}),
        ("compute", {}, {"tpot": 90.0, "sla": (sla("fail", 900),)}),
        ("sla", {}, {"signals": Signals(), "sla": (sla("fail", 900),)}),
    ],
)
def test_the_signal_that_limits_the_next_step(name: str, left: dict[str, object], right: dict[str, object]) -> None:
    chosen, beyond = point(8, 1000, **left), point(16, 1001, **right)  # type: ignore[arg-type]
    advice = recommend(["max-num-seqs"], [chosen, beyond])
    assert (advice.values, advice.limit) == ((8,), name)
    assert advice.evidence["setting"] == "8"
    assert advice.evidence["next_setting"] == "16"
    assert advice.evidence["next_output_token_per_s"] == 1001


def test_a_batch_that_still_pays_is_not_limited_by_compute() -> None:
    advice = recommend(["max-num-seqs"], [point(8, 500, tpot=20), point(16, 950, tpot=25)])
    assert (advice.values, advice.limit) == ((16,), "queue")


def test_the_last_point_is_judged_by_the_step_to_it() -> None:
    advice = recommend(["max-num-seqs"], [point(8, 900, tpot=20), point(16, 1000, tpot=40)])
    assert (advice.values, advice.limit) == ((16,), "compute")
    assert "Nothing larger was tried" in advice.reason


def test_point_of_a_run_takes_ttft_from_the_schedule_in_open_loop() -> None:
    late = record([row(0, [100, 120], scheduled_ms=0, sent_ms=60)])
    closed = point_of([1], "a", completed_run(late, header()), "cafe")
    opened = point_of([1], "a", completed_run(late, header(rate_per_s=1.0)))
    assert (closed.p99_ttft_ms, opened.p99_ttft_ms) == (40, 100)
    assert (closed.config_sha256, closed.p99_tpot_ms, closed.validity) == ("cafe", 20, Validity("ok"))
    with pytest.raises(ValueError, match="no summary"):
        point_of([1], "a", header())


def test_sweep_json_is_read_as_written(tmp_path: Path) -> None:
    points = (point_of([3], "max-num-seqs-3", completed_run(bus_stop(), header(event_unit="step"))), point(8, 500))
    advice = recommend(["max-num-seqs"], points)
    sweep = SweepFile(params=("max-num-seqs",), settings=((3,), (8,)), points=points, recommendation=advice, sla=())
    write_sweep(tmp_path, sweep)
    assert read_sweep(tmp_path) == sweep
    assert msgspec.json.decode((tmp_path / "sweep.json").read_bytes())["schema"] == "cbbench.sweep/2"
    (tmp_path / "sweep.json").write_text('{"schema": "cbbench.run/1"}')
    with pytest.raises(FolderError, match="its schema"):
        read_sweep(tmp_path)
