"""What people see."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from rich.console import Console, RenderableType

from engines.base import RunRecord
from engines.request_table import StintRow
from reports.curves import point_of
from reports.recommend import recommend
from reports.render.compare import side_by_side
from reports.render.plot import Axis, curve, tick
from reports.render.run import run_view
from reports.render.sweep import sweep_view
from reports.render.timeline import timeline
from reports.schema import EngineInfo, RunFile, Validity
from reports.slots import SlotState, slot_counts, slot_spans, tail_of
from reports.summary import completed_run
from reports.summary_schema import Signals
from reports.sweep_schema import Point, SweepFile
from tests.reports.factory import bus_stop, header, ledger, record, row, row_in_slot


def shown(what: RenderableType, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(what)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


def static_run(made: RunRecord, static: str = "padded", **fields: object) -> RunFile:
    return completed_run(made, header(event_unit="step", mode="static", static=static, **fields))  # type: ignore[arg-type]


# A run


def test_the_verdict_comes_first() -> None:
    heads = {
        "PASS": ["p50_ttft_ms<=500"],
        "FAIL": ["max_ttft_ms<=1"],
        "INCONCLUSIVE": ["p99_ttft_ms<=500"],
        "OK": [],
    }
    made = record([row(i, [i * 10 + 20, i * 10 + 40], scheduled_ms=i * 10) for i in range(20)])
    for word, sla in heads.items():
        assert shown(run_view(completed_run(made, header(sla=sla)))).startswith(word), word
    failed = record([row(0, status="failed", finish_reason="error")])
    assert shown(run_view(completed_run(failed, header(sla=["p50_ttft_ms<=5"])))).startswith("INVALID")
    assert shown(run_view(completed_run(record([], interrupted=True), header()))).startswith("INTERRUPTED")
    assert "cbbench report" in shown(run_view(header()))


def test_a_run_says_how_large_its_kv_pool_is() -> None:
    made = record([row(0, [100, 120])])
    pool = header(config={"kv_blocks": 52_852, "block_size": 16})
    assert "\nKV pool 52,852 blocks of 16 tokens\n" in shown(run_view(completed_run(made, pool)))
    assert "KV pool" not in shown(run_view(completed_run(made, header())))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_run_has_its_numbers_at_any_width(width: int) -> None:
    text = " ".join(shown(run_view(static_run(bus_stop())), width).split())
    assert "130 output tok/s" in text
    assert "3 of 3 requests completed, 0 failed" in text
    if width >= 80:
        assert "E2EL 866.7 500 1,700 1,970 too few 2,000 3" in text
        assert "dead rows 340 56.7%" in text


def test_open_loop_shows_latencies_from_the_schedule() -> None:
    made = record([row(0, [100, 120], scheduled_ms=0, sent_ms=60)])
    assert "TTFT, from schedule" in shown(run_view(completed_run(made, header(rate_per_s=1.0))))
    assert "from schedule" not in shown(run_view(completed_run(made, header())))
    punctual = record([row(0, [100, 120], scheduled_ms=0, sent_ms=0.1)])
    assert "from schedule" not in shown(run_view(completed_run(punctual, header(rate_per_s=1.0)))), "the same to 0.5 %"


def test_side_by_side_says_what_differs_and_why() -> None:
    padded, continuous = static_run(bus_stop()), completed_run(bus_stop(mode="c"), header(event_unit="step"))
    text = shown(side_by_side([padded, continuous]))
    assert ["launched", "tokens", "600", "260", "0.43x"] in [line.split() for line in text.splitlines()]
    assert "static: 340 of 600 slot-steps were wasted (57%): 340 dead" in text
    assert "340 dead rows" in text
    assert "do not compare" not in text
    other = completed_run(bus_stop(), header(event_unit="step", sha256="cd" * 32))
    assert "workload hashes differ" in shown(side_by_side([padded, other], ["a", "b"]))
    with pytest.raises(ValueError, match="two runs"):
        side_by_side([padded])


def several_tenants() -> RunRecord:
    return record(
        [
            row(0, [10, 20, 30], tenant="a"),
            row(1, [40, 60], tenant="a", preemptions=2),
            row(2, [50, 100], scheduled_ms=5, tenant="b", priority=1, prompt_tokens=600),
            row(3, scheduled_ms=70, status="failed", finish_reason="error", tenant="b", priority=1),
        ]
    )


@pytest.mark.parametrize("width", [80, 120])
def test_tenants_priorities_and_buckets_have_a_small_table_each(width: int) -> None:
    text = shown(run_view(completed_run(several_tenants(), header(config={"prompt_buckets": [512]}))), width)
    words = " ".join(text.split())
    assert "tenant done TTFT p50 TTFT p99 TPOT p99 wait tok/s preempted service" in words
    assert "a 2 25 39.7 19.9 40 50 2 30" in words
    assert "b 1/2 45 45 50 45 20 0 604" in words
    assert "priority done TTFT p50" in words
    assert "up to 512 2/3 25" in words
    assert "…" not in text
    assert "service gap between tenants: 28 tokens" in words
    open_loop = shown(run_view(completed_run(several_tenants(), header(rate_per_s=1.0))), width)
    assert "TTFT from the scheduled time" in " ".join(open_loop.split())
    assert "tenant" not in shown(run_view(completed_run(record([row(0, [1, 2])]), header())))


# The timeline


def rows_of(text: str) -> list[str]:
    return [line[3:].rstrip() for line in text.splitlines() if line[:1].isdigit()]


def test_the_classic_batch_step_by_step() -> None:
    made = bus_stop((2, 4, 8))
    text = shown(timeline(made, static_run(made)))
    assert rows_of(text) == ["▒█××××××", "▒███××××", "▒███████"]
    assert "static wasted 10 of 24 slot-steps: 10 dead (finished requests)." in text
    assert "held" not in text
    assert "one column is one step" in text


def test_340_of_600() -> None:
    made = bus_stop()
    text = shown(timeline(made, static_run(made), width=60), 60)
    assert "static wasted 340 of 600 slot-steps" in text
    assert text.splitlines()[0].count("×") == round(57 * 190 / 200)


def test_until_step_cuts_the_chart_and_its_sentence() -> None:
    made = bus_stop((2, 4, 8))
    text = shown(timeline(made, static_run(made), until_step=4))
    assert rows_of(text)[0] == "▒█××"
    assert "wasted 2 of 12 slot-steps" in text


def test_a_compact_batch_holds_or_frees() -> None:
    made = bus_stop((2, 4, 8), mode="compact")
    assert rows_of(shown(timeline(made, static_run(made, "compact-held"))))[0] == "▒█------"
    freed = shown(timeline(made, static_run(made, "compact_freed")))
    assert rows_of(freed)[0] == "▒█······"
    assert "static wasted 10 of 24 slot-steps: 10 idle." in freed


def counted(stints: Sequence[StintRow], edges: np.ndarray, *, mode: str = "continuous", **config: object) -> np.ndarray:
    """Of requests with one stay each."""
    made = record([row(i, [1.0], prompt_tokens=1, stints=[one]) for i, one in enumerate(stints)], event_unit="step")
    spans = slot_spans(made, header(mode=mode, config=config))
    return slot_counts(spans, max(one.slot for one in stints) + 1, edges)


def test_each_batch_ends_with_its_own_longest() -> None:
    stints = [StintRow(0, 1, 1, 2), StintRow(1, 1, 1, 4), StintRow(0, 5, 6, 9), StintRow(1, 5, 6, 7)]
    counts = counted(stints, np.arange(11), mode="static")
    slots = counts.argmax(axis=2)
    assert [SlotState(one).name[0] for one in slots[0]] == list("PDDDPPDDDI")
    assert slots[0].tolist()[:4] == [SlotState.PREFILL, SlotState.DECODE, SlotState.DEAD, SlotState.DEAD]
    assert slots[1].tolist()[6:] == [SlotState.DECODE, SlotState.DEAD, SlotState.DEAD, SlotState.IDLE]


def test_columns_of_many_steps_keep_the_sum() -> None:
    stints = [StintRow(0, 3, 10, 71), StintRow(1, 1, 2, 100)]
    edges = np.round(np.linspace(0, 100, 8)).astype(np.int64)
    counts = counted(stints, edges)
    assert counts.sum(axis=(1, 2)).tolist() == [100, 100]
    assert counts[0].sum(axis=0).tolist() == [100 - 69, 0, 0, 0, 0, 0, 0, 8, 61]


def test_a_request_that_never_got_a_token_was_prefilling() -> None:
    counts = counted([StintRow(0, 1, 0, 3)], np.arange(5))
    assert counts[0].argmax(axis=1).tolist() == [SlotState.PREFILL] * 3 + [SlotState.IDLE]


def test_a_row_of_padding_alone_is_no_prefill() -> None:
    stints = [StintRow(0, 1, 4, 6), StintRow(1, 1, 4, 5)]
    made = record(
        [
            row(i, [1.0], prompt_tokens=tokens, stints=[one])
            for i, (tokens, one) in enumerate(zip((32, 9), stints, strict=True))
        ]
    )
    run = header(mode="static", config={"max_num_batched_tokens": 16})  # 8 columns a step for each of two rows
    slots = slot_counts(slot_spans(made, run), 2, np.arange(7)).argmax(axis=2)
    assert [SlotState(one).name for one in slots[1].tolist()] == ["PADDING"] * 2 + ["PREFILL"] * 2 + ["DECODE", "DEAD"]
    assert [SlotState(one).name for one in slots[0].tolist()] == ["PREFILL"] * 4 + ["DECODE"] * 2


@pytest.mark.parametrize(("policy", "state"), [("recompute", SlotState.PREEMPTED), ("swap", SlotState.SWAPPED)])
def test_a_preemption_empties_a_slot_until_another_request_has_it_or_its_own_is_back(
    policy: str, state: SlotState
) -> None:
    returns = row(0, [1.0], preemptions=1, stints=[StintRow(0, 1, 1, 2), StintRow(1, 6, 6, 8)])
    preempted = row(1, [1.0], preemptions=1, stints=[StintRow(1, 1, 1, 3), StintRow(0, 9, 9, 9)])
    another = row(2, [1.0], stints=[StintRow(1, 5, 5, 5)])
    run = header(config={"on_kv_pressure": policy})
    spans = slot_spans(record([returns, preempted, another], event_unit="step", steps=ledger([1] * 9, [0] * 9, 2)), run)
    assert sorted((one.slot, one.begin, one.end) for one in spans if one.state is state) == [(0, 3, 5), (1, 4, 4)]


def test_chart_and_ledger_agree_on_continuous_batching() -> None:
    made = record(
        [row_in_slot(0, 0, 1, 3), row_in_slot(2, 0, 4, 5), row_in_slot(1, 1, 1, 6)],
        event_unit="step",
        steps=ledger([2, 2, 2, 2, 2, 1], [0] * 6, 2),
    )
    run = completed_run(made, header(event_unit="step"))
    text = shown(timeline(made, run))
    assert rows_of(text) == ["▒██▒█·", "▒█████"]
    assert "continuous wasted 1 of 12 slot-steps: 1 idle." in text
    assert tail_of(run) is SlotState.IDLE


def test_many_slots_and_narrow_terminals() -> None:
    made = bus_stop(tuple(range(1, 31)))
    text = shown(timeline(made, static_run(made), width=24), 24)
    assert "… 14 more slots" in text
    assert text.splitlines()[15].startswith("15  █")
    assert "no slot timeline" in shown(timeline(record([]), static_run(record([]))))


# A sweep


def sweep() -> SweepFile:
    points = tuple(
        Point(
            values=(value,),
            folder=str(value),
            output_token_per_s=speed,
            p99_ttft_ms=ttft,
            p99_tpot_ms=tpot,
            p50_tpot_ms=tpot,
            signals=Signals(device_busy=0.9, preemptions=0, waiting_mean=4.0),
            validity=Validity("ok"),
        )
        for value, speed, ttft, tpot in ((1, 80, 9000, 12), (4, 260, 3000, 15), (16, 610, 900, 25), (32, 620, 850, 48))
    )
    failed = Point(values=(64,), folder="64", error="out of memory\nand more")
    advice = recommend(["max-num-seqs"], [*points, failed])
    return SweepFile(
        params=("max-num-seqs",),
        settings=((1,), (4,), (16,), (32,), (64,)),
        points=(*points, failed),
        recommendation=advice,
    )


@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_sweep_at_any_width(width: int) -> None:
    text = shown(sweep_view(sweep(), width=width), width)
    assert "→ 16" in text
    assert "out of memory" in text
    assert "and more" not in text
    assert "P99 TTFT in ms, by max-num-seqs (log)" in text
    assert "P99 TPOT in ms, by max-num-seqs" in text
    assert "Recommended: max-num-seqs 16 is the smallest setting within 5 %" in " ".join(text.split())
    assert "at 32 compute is the limit" in " ".join(text.split())
    assert text.count("●") == 8


def test_the_curve_rises_from_left_to_right() -> None:
    lines = curve(
        [1, 2, 3], [10, 20, 30], ["a", "b", "c"], x_name="x", y_name="y", width=40, height=9
    ).plain.splitlines()
    places = [(row, line.index(one)) for one in "abc" for row, line in enumerate(lines[1:10]) if one in line[5:]]
    assert [row for row, _ in places] == sorted((row for row, _ in places), reverse=True)
    assert [column for _, column in places] == sorted(column for _, column in places)
    assert sum(line.count("●") for line in lines) == 3


def test_one_point_or_none_is_no_error() -> None:
    one = curve([5], [5], ["only"], x_name="x", y_name="y", width=40, height=5).plain
    assert "● only" in one or "only ●" in one
    assert "nothing to plot" in curve([], [], [], x_name="x", y_name="y").plain
    assert "nothing to plot" in curve([1], [float("nan")], ["a"], x_name="x", y_name="y").plain


def test_axis_and_ticks() -> None:
    axis = Axis([1.0, 1000.0])
    assert axis.log
    assert axis.at(31.6) == pytest.approx(0.5, abs=1e-3)
    assert axis.value(axis.at(50.0)) == pytest.approx(50)
    assert not Axis([1.0, 5.0]).log
    assert not Axis([0.0, 1000.0]).log
    assert [tick(value) for value in (0.1234, 12.3, 1234, 45_600, 2e6)] == [
        "0.123",
        "12.3",
        "1234",
        "45.6k",
        "2.00e+06",
    ]


def test_a_prediction_is_called_one_wherever_it_is_shown() -> None:
    run = completed_run(record([row(i, [5.0, 9.0]) for i in range(5)]), header())
    label = "UNCALIBRATED: roofline of an h100"
    simulated = msgspec.structs.replace(run, engine=EngineInfo(kind="simulated", config={"law_label": label}))
    point = point_of([8], "max-num-seqs-8", simulated, "")
    swept = SweepFile(params=("max-num-seqs",), settings=((8,),), points=(point,))
    for view in (run_view(simulated), side_by_side([run, simulated]), sweep_view(swept)):
        assert label in shown(view)
    assert "predicted" not in shown(run_view(run))


def test_failures_say_why_in_the_servers_words() -> None:
    failed = [
        row(i, [], end_ms=1.0, status="failed", finish_reason="http_4xx", error="HTTP 429: rate limit reached: 3 RPM")
        for i in range(3)
    ]
    text = shown(run_view(completed_run(record([*failed, row(3, [30, 40])]), header())))
    assert "http_4xx: 3" in text
    assert "3 x HTTP 429: rate limit reached: 3 RPM" in text
