"""Points of a sweep, what is recommended and why."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from reports.curves import (
    knee,
    label_of,
    mean_interval,
    merge,
    neighbours,
    pareto,
    point_of,
    read_sweep,
    series,
    write_sweep,
)
from reports.limits import annotated, cause
from reports.recommend import recommend
from reports.repeats import merged_point
from reports.schema import PacingInfo, SlaResult, Validity
from reports.summary import completed_run
from reports.summary_schema import Signals, Steady
from reports.sweep_schema import Point, SweepFile
from reports.validity import saturation
from tests.reports.factory import bus_stop, header, record, row
from workloads.errors import CbbenchError


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
        ("token_budget", {}, {"signals": Signals(device_busy=0.7, waiting_mean=9.0, blocked={"tokens": 0.012})}),
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


def test_a_device_that_waits_for_launches_is_held_up_by_the_host() -> None:
    waits = point(8, 100, signals=Signals(device_busy=0.5, launch_bound=0.45, waiting_mean=4.0))
    name, why = cause(None, waits)
    assert name == "host"
    assert "the device is idle 5% of the time, and waits for launches in 45%, while 4.0 requests wait" in why


def test_of_equals_the_first_at_which_hardly_any_request_waits_for_a_slot() -> None:
    """At 8 requests a second 32 and 48 slots do alike; at 9, 32 of them miss the SLA."""

    def at(slots: int, rows: float) -> Point:
        return point(slots, 1655.0, signals=Signals(waiting_mean=0.1, blocked={"rows": rows}), sla=(sla("pass", 200),))

    few, enough, many = at(32, 0.008), at(48, 0.0), at(64, 0.0)
    advice = recommend(["max-num-seqs"], [few, enough, many], ["p99_ttft_ms<=500"])
    assert advice.values == (48,)
    assert "as the first at which hardly any request waits for a slot, within the SLA" in advice.reason
    assert recommend(["max-num-seqs"], [few, at(48, 0.9)], ["p99_ttft_ms<=500"]).values == (32,)  # none is free
    assert recommend(["kv-blocks"], [few, enough], ["p99_ttft_ms<=500"]).values == (32,)  # slots are not what varies


def test_the_cap_on_concurrency_is_blamed_only_where_there_is_one() -> None:
    behind = {"signals": Signals(device_busy=0.9, waiting_mean=0.4), "saturated": "arrivals outran completions"}
    name, why = cause(None, point(8, 100, concurrency=4, **behind))
    assert (name, "the cap on concurrency (4)" in why) == ("concurrency", True)
    name, why = cause(None, point(8, 100, **behind))
    assert (name, "concurrency" in why) == ("queue", False)


def test_no_request_waits_is_said_only_where_it_is_true() -> None:
    """Beside the largest part of the slowest first tokens, which is the queue."""
    queue = {"sla": (msgspec.structs.replace(sla("fail", 900), metric="p99_ttft_ms"),), "slow_ttft": {"queue": 0.96}}
    late = point(8, 100, signals=Signals(waiting_mean=0.04), **queue)
    (told,) = annotated([late])
    assert told.why is not None
    assert "96% of their time in the queue" in told.why
    assert "no request waits" not in told.why
    assert "less than one request waits on average (0.04)" in told.why
    assert "no request waits" in cause(None, point(8, 100, signals=Signals(waiting_mean=0.0)))[1]


def test_a_tie_is_called_a_tie() -> None:
    points = [point("fcfs", 1000), point("shortest-prompt", 1001)]
    assert "a tie with shortest-prompt, whose P99 TTFT is the same within noise" in recommend(["order"], points).reason
    apart = [points[0], msgspec.structs.replace(points[1], p99_ttft_ms=80.0)]
    advice = recommend(["order"], apart)
    assert advice.values == ("shortest-prompt",)
    assert "the lowest P99 TTFT there" in advice.reason
    wide = [msgspec.structs.replace(one, p99_ttft_ci_ms=(70.0, 130.0)) for one in apart]
    assert "a tie with fcfs" in recommend(["order"], wide).reason


def test_a_recommended_rate_beyond_the_knee_says_so() -> None:
    rates = [(4, 400, 100.0), (8, 800, 110.0), (16, 900, 400.0)]
    points = [msgspec.structs.replace(point(rate, speed), p99_ttft_ms=ttft) for rate, speed, ttft in rates]
    points = [msgspec.structs.replace(one, rate_per_s=float(str(one.values[0]))) for one in points]
    assert "beyond the knee at 8" in recommend(["rate"], points).reason
    assert "beyond the knee" not in recommend(["rate"], points[:2]).reason


def test_of_two_instances_the_one_that_is_waited_for_is_the_limit() -> None:
    """Half of two devices are busy and requests wait: of one device that would be the host's fault."""
    whole = Signals(device_busy=0.5, waiting_mean=9.0)
    prefill = Signals(device_busy=0.97, waiting_mean=9.0, blocked={"tokens": 0.6})
    decode = Signals(device_busy=0.03, waiting_mean=0.0)
    one = point(8, 100, signals=whole, instances={"prefill": prefill, "decode": decode})
    assert cause(None, one) == (
        "token_budget",
        "requests wait for the step's token budget in 60% of the steps (device 97% busy), at the prefill instance",
    )
    assert merged_point([one, one, one]).instances == one.instances
    assert cause(None, msgspec.structs.replace(one, instances={}))[0] == "host"


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
    with pytest.raises(CbbenchError, match="no summary"):
        point_of([1], "a", header())


def test_sweep_json_is_read_as_written(tmp_path: Path) -> None:
    points = (point_of([3], "max-num-seqs-3", completed_run(bus_stop(), header(event_unit="step"))), point(8, 500))
    advice = recommend(["max-num-seqs"], points)
    sweep = SweepFile(params=("max-num-seqs",), settings=((3,), (8,)), points=points, recommendation=advice, sla=())
    write_sweep(tmp_path, sweep)
    assert read_sweep(tmp_path) == sweep
    assert msgspec.json.decode((tmp_path / "sweep.json").read_bytes())["schema"] == "cbbench.sweep/2"
    write_sweep(tmp_path, msgspec.structs.replace(sweep, params=("rate", "mode")))
    with pytest.raises(CbbenchError, match="3 is not a value of each of rate, mode"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text('{"schema": "cbbench.run/1"}')
    with pytest.raises(CbbenchError, match="its schema"):
        read_sweep(tmp_path)


# Repeats, the knee, the frontier


def runs(speeds: list[float], **fields: object) -> list[Point]:
    return [msgspec.structs.replace(point(8, speed, **fields), repeat=at) for at, speed in enumerate(speeds)]


def test_repeats_become_one_point_with_an_interval_from_three_on() -> None:
    (one,) = merge(runs([100, 110, 130]))
    assert one.point.output_token_per_s == 110
    assert len(one.runs) == 3
    low, high = one.intervals["output_token_per_s"]
    half = 4.302653 * math.sqrt(700 / 3 / 3)  # t(0.975, 2) times the standard error
    assert (low, high) == pytest.approx((340 / 3 - half, 340 / 3 + half))
    (two,) = merge(runs([100, 110]))
    assert two.point.output_token_per_s == 105
    assert two.intervals == {}


def test_the_interval_of_the_mean_holds_what_it_says() -> None:
    """95 % of 2,000 samples of 4; a binomial count of 2,000 leaves 0.95 +- 0.02 once in 20,000 tries."""
    draws = np.random.default_rng(1).normal(50, 9, (2000, 4))
    held = sum(low <= 50 <= high for low, high in map(mean_interval, draws.tolist()))
    assert held / 2000 == pytest.approx(0.95, abs=0.02)


def test_without_repeats_the_runs_own_interval_counts() -> None:
    (one,) = merge([point(8, 100, p99_ttft_ci_ms=(80.0, 140.0))])
    assert one.intervals == {"p99_ttft_ms": (80.0, 140.0)}
    both = [point(8, 100, p99_ttft_ci_ms=(80.0, 140.0)), point(8, 100, p99_ttft_ci_ms=(70.0, 120.0), repeat=1)]
    assert merge(both)[0].intervals == {"p99_ttft_ms": (70.0, 140.0)}


def test_merged_verdicts_signals_and_failures() -> None:
    judged = [sla("pass", 100), sla("pass", 200), sla("fail", 900)]
    made = [
        msgspec.structs.replace(one, sla=(result,), validity=Validity("overloaded" if at else "ok"),
                                signals=Signals(preemptions=at, device_busy=at / 10, blocked={"kv": 0.3}))
        for at, (one, result) in enumerate(zip(runs([1, 2, 3]), judged, strict=True))
    ]  # fmt: skip
    (one,) = merge([*made, Point(values=(8,), repeat=3, folder="", error="gone")])
    assert (one.point.sla[0].verdict, one.point.sla[0].value) == ("inconclusive", 200)
    assert one.point.validity == Validity("overloaded")
    assert one.point.signals == Signals(preemptions=1, device_busy=0.1, blocked={"kv": pytest.approx(0.3)})
    assert len(one.runs) == 3
    (failing,) = merge([msgspec.structs.replace(one, sla=(sla("fail", 900),)) for one in made[:2]])
    assert failing.point.sla[0].verdict == "fail"
    (lost,) = merge([Point(values=(8,), folder="", error="gone")])
    assert (lost.runs, lost.point.error) == ((), "gone")


def test_order_and_series_of_two_parameters() -> None:
    grid = [Point(values=(slots, mode), folder="") for mode in ("static", "continuous") for slots in (16, 2)]
    curve = merge(grid)
    assert [one.values for one in curve] == [(2, "static"), (2, "continuous"), (16, "static"), (16, "continuous")]
    assert {rest: [one.values[0] for one in line] for rest, line in series(curve).items()} == {
        ("static",): [2, 16], ("continuous",): [2, 16],
    }  # fmt: skip
    before, beyond = neighbours(curve, (16, "static"))
    assert (before.values if before else None, beyond) == ((2, "static"), None)
    assert label_of(["max-num-seqs", "chunked-prefill"], [2, False]) == "max-num-seqs 2, chunked-prefill false"


def test_the_knee_is_where_throughput_over_latency_is_largest() -> None:
    curve = merge([point(slots, 1000 * slots / (20 + slots), tpot=20 + slots) for slots in (5, 10, 20, 40, 80)])
    top = knee(curve)
    assert top is not None
    assert top.values == (20,), "where the fixed and the growing part of a step are equal"
    assert knee(merge([Point(values=(1,), folder="", error="no")])) is None


def test_the_frontier_has_only_what_nothing_beats() -> None:
    pairs = {1: (90.0, 100), 2: (80.0, 190), 3: (70.0, 150), 4: (60.0, 300), 5: (60.0, 290), 6: (10.0, 300)}
    points = [point(name, speed, tokens_per_s_per_user=user) for name, (user, speed) in pairs.items()]
    assert [one.values[0] for one in pareto(merge(points))] == [1, 2, 4]


def test_each_point_says_what_limits_it() -> None:
    full = Signals(device_busy=0.95, waiting_mean=5.0, preemptions=0)
    late = Validity("client_limited", ("requests were sent late",))
    told = annotated(
        [
            point(8, 500, tpot=20.0, signals=full),
            point(16, 510, tpot=40.0, signals=full),
            point(32, 510, signals=Signals(preemptions=7, kv_usage_peak=1.0, waiting_mean=5.0)),
            point(64, 510, validity=late),
            point(128, 510, signals=Signals(waiting_mean=3.0, blocked={"batch": 0.9})),
            Point(values=(256,), folder="", error="no"),
            point(512, 510, signals=Signals(waiting_mean=0.0), saturated="only 5 of 8 completed", concurrency=4),
        ]
    )
    assert [one.limit for one in told] == ["queue", "compute", "kv", "client", "batch", None, "concurrency"]
    assert told[1].why == "compute is the limit (device 95% busy, median TPOT 20 to 40 ms for 1.02x the throughput)"
    assert "7 preemptions" in (told[2].why or "")
    assert told[5].why is None


def test_repeats_say_what_limits_their_setting_by_its_medians() -> None:
    """Each run's own number in the sentence would contradict the medians beside it, and the recommendation."""
    repeats = [
        msgspec.structs.replace(one, signals=Signals(device_busy=0.9, waiting_mean=waiting))
        for one, waiting in zip(runs([100, 110, 130]), (2.0, 8.0, 9.0), strict=True)
    ]
    told = annotated(repeats)
    assert {one.why for one in told} == {"8.0 requests wait on average (device 90% busy)"}
    assert "8.0 requests wait" in recommend(["max-num-seqs"], told).reason


@pytest.mark.parametrize(
    ("rate", "completed_per_s", "seconds", "arrival", "saturated"),
    [
        (10.0, 9.8, 100, "poisson", False),
        (10.0, 8.0, 100, "poisson", True),
        (10.0, 8.0, 5, "poisson", False),  # 40 of 50: within the chance of so few arrivals
        (10.0, 9.0, 5, "constant", True),
        (10.0, 8.0, 100, "gamma:4", False),
        (None, 1.0, 100, None, False),
    ],
)
def test_saturation(
    rate: float | None, completed_per_s: float, seconds: float, arrival: str | None, saturated: bool
) -> None:
    run = completed_run(record([row(i, [5.0, 9.0], scheduled_ms=i) for i in range(20)]), header(rate_per_s=rate))
    assert run.summary is not None
    window = Steady(start_s=0.0, end_s=seconds, request_per_s=completed_per_s, output_token_per_s=1.0)
    throughput = msgspec.structs.replace(run.summary.throughput, steady=window)
    workload = msgspec.structs.replace(run.workload, pacing=PacingInfo(rate_per_s=rate, arrival=arrival))
    changed = msgspec.structs.replace(
        run, workload=workload, summary=msgspec.structs.replace(run.summary, throughput=throughput)
    )
    assert (saturation(changed) is not None) is saturated
    overloaded = msgspec.structs.replace(changed, validity=Validity("overloaded", ("arrivals outran completions",)))
    assert saturation(overloaded) == ("arrivals outran completions" if rate else None)


@pytest.mark.parametrize(("completed_per_s", "said"), [(7.9, None), (4.0, "completed of 8 offered")])
def test_saturation_of_a_rate_that_changes(completed_per_s: float, said: str | None) -> None:
    """Against what the stages offered in the steady window, 8 a second, and not their mean over the plan."""
    run = completed_run(record([row(i, [5.0, 9.0], scheduled_ms=i) for i in range(20)]), header(rate_per_s=5.0))
    assert run.summary is not None
    window = Steady(start_s=100.0, end_s=200.0, request_per_s=completed_per_s, output_token_per_s=1.0)
    throughput = msgspec.structs.replace(run.summary.throughput, steady=window)
    pacing = PacingInfo(rate_per_s=5.0, rate_schedule="2 for 100s, 8", arrival="poisson")
    workload = msgspec.structs.replace(run.workload, pacing=pacing)
    summary = msgspec.structs.replace(run.summary, throughput=throughput)
    found = saturation(msgspec.structs.replace(run, workload=workload, summary=summary))
    assert found is None if said is None else said in (found or "")


def test_other_work_is_not_ranked() -> None:
    advice = recommend(["workload"], [point("azure-conv", 100), point("azure-code", 200)], work_params=("workload",))
    assert advice.values is None
    assert "not comparable" in advice.reason


def test_a_rate_that_arrivals_outrun_is_not_recommended() -> None:
    points = [point(8.0, 1500), point(16.0, 2700), point(32.0, 3000, saturated="arrivals outran completions")]
    advice = recommend(["rate"], points)
    assert advice.values == (16.0,)
    assert "keep up with arrivals" in advice.reason
    assert recommend(["rate"], points[2:]).values == (32.0,)  # nothing else was measured


def test_words_have_no_size() -> None:
    points = [point("full-prompt", 900), point("peak", 1000), point("optimistic", 400)]
    advice = recommend(["admission"], points)
    assert advice.values == ("peak",)
    assert "has the largest throughput" in advice.reason
    assert "Beyond" not in advice.reason
    assert "larger was tried" not in advice.reason
    assert knee(merge(points)) is None
    late = [points[1], msgspec.structs.replace(points[0], output_token_per_s=1001.0, p99_ttft_ms=900.0)]
    assert recommend(["admission"], late).values == ("peak",)


def test_a_point_that_is_late_says_what_its_slowest_first_tokens_wait_for() -> None:
    late = point(8.0, 1500, sla=(sla("fail", 900.0),), slow_ttft={"prefill": 0.8, "queue": 0.2})
    fine = point(16.0, 1500, sla=(sla("pass", 90.0),), slow_ttft={"prefill": 0.8, "queue": 0.2})
    told = annotated([late, fine])
    assert (told[0].why or "").endswith("; the slowest first tokens spend 80% of their time in prefill")
    assert "first tokens" not in (told[1].why or "")


def test_of_throughputs_alike_within_the_sla_the_smallest_setting_is_recommended() -> None:
    met = (sla("pass", 90.0),)
    points = [point(8.0, 900, sla=met), point(16.0, 995, sla=met), point(32.0, 1000, sla=met)]
    advice = recommend(["max-num-seqs"], points, ["p99_ttft_ms<=500"])
    assert advice.values == (16.0,)
    assert "to within 1 %" in advice.reason


def test_a_client_at_its_limit_is_said_with_the_recommendation() -> None:
    limited = point(8.0, 900, validity=Validity("client_limited", ("the loop was late",)))
    assert "load client was at its limit" in recommend(["max-num-seqs"], [limited]).reason
