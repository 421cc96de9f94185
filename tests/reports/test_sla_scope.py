"""SLAs on a part of the requests: how they are written, and whom they judge."""

from __future__ import annotations

import pytest

from engines.base import RunRecord
from reports.checks import sla_checks
from reports.metrics import request_times
from reports.recommend import qualifies
from reports.schema import RunFile, SlaResult, Validity
from reports.sla import parse_all, parse_sla
from reports.sla_scope import Scope
from reports.stages import Stages
from reports.summary import completed_run
from reports.summary_schema import Signals
from reports.sweep_schema import Point
from reports.tuning.moves import Bounds
from reports.tuning.search import decide
from reports.tuning.trials import Setting, Trial
from tests.reports.factory import header, record, row
from workloads.errors import CbbenchError


def crowd(
    quiet_ms: float = 50, noisy_ms: float = 5000, *, quiet: int = 400, noisy: int = 400, failed: int = 0
) -> RunRecord:
    """Two tenants in turns: quiet ones of priority 0 and short prompts, noisy ones of priority 1 and long prompts; the
    last `failed` of quiet fail."""
    made = []
    for i in range(quiet + noisy):
        mine, at = i % 2 == 0, 10.0 * i
        if mine and i >= 2 * (quiet - failed):
            made.append(row(i, scheduled_ms=at, status="failed", finish_reason="error", tenant="quiet"))
            continue
        first = at + (quiet_ms if mine else noisy_ms) + i % 7
        tenant, prompt_tokens = ("quiet", 100) if mine else ("noisy", 1000)
        made.append(
            row(i, [first, first + 20], scheduled_ms=at, tenant=tenant, priority=i % 2, prompt_tokens=prompt_tokens)
        )
    return record(made)


def judged(made: RunRecord, *sla: str, **fields: object) -> list[SlaResult]:
    return list(completed_run(made, header(sla=sla, **fields)).sla)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expr", "scope"),
    [
        ("p99_ttft_ms[tenant=quiet]<=500", Scope("tenant", "quiet")),
        (" p99_ttft_ms [ tenant = a b ] < 5e2 ", Scope("tenant", "a b")),
        ("mean_tpot_ms[priority=01]<=500", Scope("priority", "1")),
        ("failure_rate[prompt<=512]<=0.01", Scope("prompt", "512")),
        ("p99_ttft_ms[stage=03]<=500", Scope("stage", "3")),
        ("p99_ttft_ms[stage=then]<=500", Scope("stage", "then")),
        ("p99_ttft_ms[stage=1.3]<=500", Scope("stage", "1.3")),
        ("p99_ttft_ms<=500", None),
    ],
)
def test_brackets_say_whom_it_is_on(expr: str, scope: Scope | None) -> None:
    one = parse_sla(expr)
    assert one.scope == scope
    assert one.expr == expr
    if scope is not None:
        assert parse_sla(f"p50_ttft_ms[{scope}]<=1").scope == scope


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        ("p99_ttft_ms[quiet]<=500", r"\[quiet\] is not a part of a load; write \[tenant=NAME\], \[priority=N\], "),
        ("p99_ttft_ms[tenant=]<=500", r"write \[tenant=NAME\]"),
        ("p99_ttft_ms[tenant<=a]<=500", r"write \[tenant=NAME\]"),
        ("p99_ttft_ms[priority=high]<=500", r"\[priority=N\]"),
        ("p99_ttft_ms[stage=last]<=500", r"or \[stage=N\]"),
        ("p99_ttft_ms[stage<=2]<=500", r"or \[stage=N\]"),
        ("p99_ttft_ms[prompt=512]<=500", r"\[prompt<=N\]"),
        ("p99_ttft_ms[tenant=quiet<=500", r"METRIC\[PART\]<=NUMBER"),
        ("[tenant=quiet]p99_ttft_ms<=500", r"METRIC\[PART\]<=NUMBER"),
        ("p99_itl_ms[tenant=quiet]<=500", "pooled over all requests"),
    ],
)
def test_a_bad_part_says_what_is_right(expr: str, says: str) -> None:
    with pytest.raises(CbbenchError, match=says):
        parse_sla(expr)


def test_attainment_of_a_part_needs_a_latency_that_binds_it() -> None:
    parse_all(["attainment[tenant=a]>=0.9", "p99_ttft_ms[tenant=a]<=5"])
    parse_all(["attainment[tenant=a]>=0.9", "p99_ttft_ms<=5"])
    with pytest.raises(CbbenchError, match=r"needs a latency SLA as well, e.g. \"p99_ttft_ms\[tenant=a\]<=500\""):
        parse_all(["attainment[tenant=a]>=0.9", "p99_ttft_ms[tenant=b]<=5"])


def test_only_that_part_is_judged() -> None:
    made = crowd()
    quiet, urgent, short, noisy, whole = judged(
        made, "p99_ttft_ms[tenant=quiet]<=500", "p99_ttft_ms[priority=0]<=500", "p99_ttft_ms[prompt<=512]<=500",
        "p99_ttft_ms[tenant=noisy]<=500", "p99_ttft_ms<=500",
    )  # fmt: skip
    assert (quiet.verdict, quiet.n, quiet.scope, quiet.name) == (
        "pass", 400, "tenant=quiet", "p99_ttft_ms[tenant=quiet]",
    )  # fmt: skip
    assert quiet.value == urgent.value == short.value
    assert quiet.value == pytest.approx(56, abs=6)
    assert "requests of tenant quiet" in quiet.reason
    assert (noisy.verdict, whole.verdict) == ("fail", "fail")
    assert (whole.n, whole.scope, whole.name) == (800, None, "p99_ttft_ms")


def test_failures_of_the_part_are_misses_and_those_of_others_are_not() -> None:
    made = crowd(failed=6)
    quiet, noisy, rate, others_rate = judged(
        made, "p99_ttft_ms[tenant=quiet]<=500", "p99_ttft_ms[tenant=noisy]<=9000", "failure_rate[tenant=quiet]<=0.01",
        "failure_rate[tenant=noisy]<=0.01",
    )  # fmt: skip
    assert quiet.value is None or quiet.value > 500
    assert (quiet.verdict, rate.verdict) == ("inconclusive", "inconclusive"), "six in a row are one event"
    assert quiet.missed
    assert rate.missed
    assert rate.value == pytest.approx(6 / 400)
    assert (noisy.verdict, others_rate.verdict) == ("pass", "pass")


def test_in_open_loop_a_part_is_judged_from_the_schedule() -> None:
    made = record(
        [row(i, [i * 10 + 80.0], scheduled_ms=i * 10, sent_ms=i * 10 + 60, tenant="ab"[i % 2]) for i in range(8)]
    )
    (one,) = judged(made, "max_ttft_ms[tenant=a]<=50", rate_per_s=100)
    assert (one.name, one.value, one.verdict) == ("max_ttft_sched_ms[tenant=a]", 80, "fail")


def test_how_many_it_takes_is_said_of_the_part_and_counted_in_the_run() -> None:
    (one,) = judged(crowd(quiet=100, noisy=100), "p99_ttft_ms[tenant=quiet]<=500")
    assert one.verdict == "inconclusive"
    assert "at least 299 requests of tenant quiet" in one.reason
    assert one.needed == 598


def test_goodput_binds_each_request_by_the_bounds_on_it() -> None:
    made = crowd(quiet_ms=50, noisy_ms=5000, failed=4)
    run = completed_run(made, header(sla=["p99_ttft_ms[tenant=quiet]<=500", "attainment[tenant=quiet]>=0.5"]))
    assert run.summary is not None
    assert run.summary.goodput.attainment == pytest.approx(796 / 800)  # the noisy ones are bound by nothing
    assert run.sla[1].value == pytest.approx(396 / 400)
    both = completed_run(made, header(sla=["p99_ttft_ms[tenant=quiet]<=53", "p99_ttft_ms<=1000"])).summary
    assert both is not None
    met = sum(50 + i % 7 <= 53 for i in range(0, 792, 2))
    assert both.goodput.attainment == pytest.approx(met / 800)  # a quiet one is bound by both


def test_rates_of_a_part() -> None:
    made = crowd()
    run = completed_run(made, header(sla=["output_token_per_s[tenant=quiet]>=1", "request_per_s[priority=1]>=1"]))
    assert run.summary is not None
    assert run.sla[0].value == run.summary.by_tenant["quiet"].output_token_per_s
    assert run.sla[1].value == run.summary.by_priority["1"].request_per_s


def test_a_part_of_which_nothing_ended_is_inconclusive() -> None:
    for expr in ("p99_ttft_ms[tenant=z]<=5", "output_token_per_s[tenant=z]>=5", "failure_rate[priority=9]<=0.1"):
        (one,) = judged(crowd(quiet=20, noisy=20), expr)
        assert (one.verdict, one.value, one.n) == ("inconclusive", None, 0)


def test_a_missing_value_is_named_with_those_that_there_are() -> None:
    made = crowd(quiet=2, noisy=2)
    assert Scope("tenant", "quite").missing_in(made, None) == "no such tenant; there are noisy, quiet"
    assert Scope("priority", "7").missing_in(made, None) == "no such priority; there are 0, 1"
    assert Scope("prompt", "99").missing_in(made, None) == "the shortest prompt has 100 tokens"
    assert Scope("tenant", "quiet").missing_in(made, None) is None
    many = record([row(i, [1.0], tenant=f"t{i:02}") for i in range(15)])
    assert str(Scope("tenant", "x").missing_in(many, None)).endswith("t10, t11 and 3 more")


def flooded() -> RunFile:
    """noisy waits longer and longer, quiet never does."""
    made = []
    for i in range(1200):
        at = 10.0 * i
        first = at + (50 if i % 2 == 0 else 40.0 * i)
        made.append(row(i, [first, first + 20], scheduled_ms=at, tenant=("quiet", "noisy")[i % 2]))
    sla = ("p99_ttft_ms[tenant=quiet]<=500", "p99_ttft_ms[tenant=noisy]<=1e9", "p99_ttft_ms<=1e9")
    return completed_run(record(made), header(sla=sla, rate_per_s=100))


def test_in_an_overloaded_run_a_part_whose_queue_does_not_grow_is_judged_all_the_same() -> None:
    run = flooded()
    assert run.validity is not None
    assert run.validity.verdict == "overloaded"
    assert [one.verdict for one in run.sla] == ["pass", "inconclusive", "inconclusive"]
    quiet, noisy, _ = sla_checks(run, "run")
    assert (quiet.metric, quiet.verdict) == ("p99_ttft_sched_ms[tenant=quiet]", "pass")
    assert quiet.value == pytest.approx(50)
    assert noisy.verdict == "inconclusive"
    overloaded = Validity("overloaded")
    assert qualifies(Point(values=(1,), folder="", sla=run.sla[:1], validity=overloaded), judged=True)
    assert not qualifies(Point(values=(1,), folder="", sla=run.sla[:2], validity=overloaded), judged=True)
    assert not qualifies(Point(values=(1,), folder="", sla=run.sla[2:], validity=overloaded), judged=True)
    met, missed = (
        Trial(Setting(32, 2048), Point(values=(1,), folder="", sla=sla, validity=overloaded))
        for sla in (run.sla[:1], run.sla[:2])
    )
    assert (met.meets, missed.meets) == (True, False)


def test_tune_says_whose_bound_is_missed() -> None:
    miss = SlaResult(
        "p99_ttft_ms[tenant=quiet]<=500", "p99_ttft_ms", 900, 500, 0.95, 400, 400.0, "fail", "", scope="tenant=quiet"
    )
    signals = Signals(waiting_mean=5.0, device_busy=0.5, kv_usage_peak=0.3, preemptions=0)
    tried = Trial(Setting(32, 2048), Point(values=(32, 2048), folder="", sla=(miss,), signals=signals))
    words = decide([tried], Bounds(most_slots=64, most_tokens=4096)).words
    assert words.startswith("P99 TTFT of tenant quiet is 900 of 500 ms")


STEPS = "10 for 40s, 20 for 20s"


def stepped() -> RunRecord:
    """400 requests in the first stage, 400 in the second, where each waits for 900 ms."""
    due_ms = [*(100.0 * i for i in range(400)), *(40_000 + 50.0 * i for i in range(400))]
    waits_ms = [50.0 + 2 * i % 7 if i < 400 else 900.0 + 2 * i % 7 for i in range(800)]
    pairs = zip(due_ms, waits_ms, strict=True)
    return record([row(i, [at + wait, at + wait + 20], scheduled_ms=at) for i, (at, wait) in enumerate(pairs)])


def stepped_run(*sla: str) -> RunFile:
    return completed_run(stepped(), header(sla=sla, rate_per_s=13.0, rate_schedule=STEPS))


def test_a_stage_is_judged_on_what_was_due_in_it() -> None:
    calm, busy, whole = stepped_run(
        "p99_ttft_ms[stage=1]<=500", "p99_ttft_ms[stage=2]<=500", "p99_ttft_ms<=500"
    ).sla  # fmt: skip
    assert (calm.verdict, calm.n, calm.name) == ("pass", 400, "p99_ttft_sched_ms[stage=1]")
    assert "requests of stage 1" in calm.reason
    assert (busy.verdict, busy.n, whole.verdict, whole.n) == ("fail", 400, "fail", 800)
    assert busy.value == pytest.approx(906, abs=1)
    assert [one.verdict for one in sla_checks(stepped_run("p99_ttft_ms[stage=2]<=500"), "run")] == ["fail"]


def test_rates_of_a_stage_are_those_of_its_row() -> None:
    run = stepped_run("request_per_s[stage=1]>=1", "output_token_per_s[stage=2]>=1")
    assert run.summary is not None
    first, second = run.summary.by_stage.values()
    assert [one.value for one in run.sla] == [first.request_per_s, second.output_token_per_s]
    assert first.request_per_s == pytest.approx(10)
    assert second.request_per_s == pytest.approx(400 / 20.926, rel=0.001), "until its last request ended"


def test_more_requests_are_no_help_to_a_stage() -> None:
    run = stepped_run("p99_ttft_ms[stage=1]<=500", "p999_ttft_ms[stage=1]<=500")
    assert [(one.verdict, one.needed) for one in run.sla] == [("pass", None), ("inconclusive", None)]
    assert "requests of stage 1" in run.sla[1].reason


def test_a_stage_that_is_not_there_is_told_with_those_that_are() -> None:
    made, stages = stepped(), Stages.of(STEPS)
    assert Scope("stage", "1").missing_in(made, stages) is None
    assert Scope("stage", "3").missing_in(made, stages) == (
        "no such stage; there are 1 (10 for 40s), 2 (20 for 20s), then (20)"
    )
    assert (
        Scope("stage", "then").missing_in(made, stages) == "no request was due in stage then (20), which begins at 60 s"
    )
    assert str(Scope("stage", "1").missing_in(made, None)).startswith("the rate has no stages; write `rate` as '2 for")


def test_times_of_a_part_keep_their_rows() -> None:
    made = crowd(quiet=3, noisy=3)
    times = request_times(made)
    part = times.part(Scope("tenant", "noisy").members(made, None)[times.row])
    assert len(part) == 3
    assert part.prompt_tokens.tolist() == [1000] * 3
