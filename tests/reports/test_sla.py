"""SLA expressions, verdicts and exit codes."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from engines.base import RunRecord
from engines.ledger import LEDGER
from reports.bursts import bursts_of, rare_bursts
from reports.metrics import LATENCIES, request_times
from reports.quantiles import accepts, quantile, refuses, total_needed, total_to_refuse
from reports.schema import SlaResult, Validity
from reports.sla import RATES, SHARES, exit_code, failed_and_open, parse_all, parse_sla
from reports.summary import completed_run
from reports.validity import supported
from tests.reports.factory import header, record, row, ttft_record
from workloads.errors import CbbenchError


def judged(made: object, *sla: str, **fields: object) -> list[SlaResult]:
    return list(completed_run(made, header(sla=sla, **fields)).sla)  # type: ignore[arg-type]


def noise(n: int, low: float, high: float) -> list[float]:
    return np.random.default_rng(5).uniform(low, high, n).tolist()


def test_a_bound_that_looks_like_seconds_is_questioned() -> None:
    seconds, ms = judged(ttft_record(noise(500, 200, 400)), "p99_ttft_ms<=0.5", "p99_ttft_ms<=100")
    assert seconds.verdict == ms.verdict == "fail"
    assert "the bound is in ms: 0.5 s would be 500" in seconds.reason
    assert "the bound is in ms" not in ms.reason


# Reading


def test_parse() -> None:
    one = parse_sla(" p999_e2el_ms <= 1.5e3 ")
    assert (one.metric, one.upper, one.bound, one.quantile, one.latency) == (
        "p999_e2el_ms",
        True,
        1500,
        0.999,
        "e2el_ms",
    )
    assert parse_sla("output_token_per_s>=100").upper is False
    assert parse_sla("mean_ttft_ms<5").quantile is None


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        ("p99_ttft<=500", 'did you mean "p99_ttft_ms"'),
        ("p99_ttft_s<=0.5", 'did you mean "p99_ttft_ms"'),
        ("mean_tpot_us<=50", 'did you mean "mean_tpot_ms"'),
        ("p99_ttft_ms=500", "METRIC<=NUMBER"),
        ("p99_ttft_ms<=500ms", "is not a number"),
        ("p99_ttft_ms>=500", "takes <="),
        ("output_token_per_s<=5", "takes >="),
        ("attainment>=99", "0.99 for 99 %"),
        ("p99_ttft_ms<=-1", "0 or more"),
        ("p99_ttft_ms<=nan", "finite"),
        ("p00_ttft_ms<=1", "not a percentile"),
        ("", "METRIC<=NUMBER"),
        ("zzz<=1", "unknown metric"),
        ("goodput>=2", 'did you mean "goodput_request_per_s"'),
        ("p99.9_ttft_ms<=500", 'did you mean "p999_ttft_ms"'),
        ("p99.9_ttft<=500", 'did you mean "p999_ttft_ms"'),
    ],
)
def test_a_bad_expression_says_what_is_right(expr: str, says: str) -> None:
    with pytest.raises(CbbenchError, match=r"^sla: ") as caught:
        parse_sla(expr)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_docs_list_every_metric_as_the_parser_takes_it() -> None:
    page = (Path(__file__).parents[2] / "docs/gates.md").read_text(encoding="utf-8")
    table = page.partition("| an SLA may bound |")[2].partition("\n\n")[0]
    metrics = [parse_sla(expr).metric for expr in re.findall(r"`([^`]+[<>]=[^`]+)`", table)]
    assert sorted(metrics) == sorted((*(f"p99_{name}" for name in LATENCIES), *RATES, *SHARES))


def test_attainment_needs_something_to_attain() -> None:
    with pytest.raises(CbbenchError, match="needs a latency SLA"):
        parse_all(["attainment>=0.9"])
    assert len(parse_all(["attainment>=0.9", "p99_ttft_ms<=500"])) == 2


# The early-stopping rule


@pytest.mark.parametrize(
    ("confidence", "p", "totals"),
    [
        (0.95, 0.99, {0: 299, 1: 473, 2: 628, 5: 1049, 10: 1693, 20: 2902}),
        (0.99, 0.99, {0: 459, 1: 662, 2: 838, 5: 1307, 10: 2010, 20: 3304, 50: 6898, 100: 12571}),
        (0.99, 0.90, {0: 44, 1: 64, 2: 81, 5: 127, 10: 197, 20: 325}),
        (0.95, 0.95, {0: 59, 1: 93, 5: 208}),
        (0.95, 0.90, {0: 29, 1: 46, 5: 103}),
    ],
)
def test_the_early_stopping_table(confidence: float, p: float, totals: dict[int, int]) -> None:
    assert {t: total_needed(t, p, confidence) for t in totals} == totals
    for violations, total in totals.items():
        assert accepts(total, violations, p, confidence)
        assert not accepts(total - 1, violations, p, confidence)


# Verdicts


def test_299_clean_requests_pass_and_298_do_not() -> None:
    enough, short = noise(299, 100, 400), noise(298, 100, 400)
    (one,) = judged(ttft_record(enough), "p99_ttft_ms<=500")
    assert (one.verdict, one.n, one.n_eff) == ("pass", 299, 299)
    (one,) = judged(ttft_record(short), "p99_ttft_ms<=500")
    assert (one.verdict, one.needed) == ("inconclusive", 299)
    (one,) = judged(ttft_record(enough), "p99_ttft_ms<=500", confidence=0.99)
    assert (one.verdict, one.needed) == ("inconclusive", 459)


def test_a_value_beyond_the_bound_fails_only_where_that_is_proven() -> None:
    (one,) = judged(ttft_record([100, 200, 900]), "p50_ttft_ms<=150")
    assert (one.verdict, one.value) == ("inconclusive", 200)
    assert one.missed
    assert "may be chance" in one.reason
    values = noise(1000, 100, 400)
    for slow, verdict in ((12, "inconclusive"), (30, "fail")):  # of 1,000, scattered; 10 are allowed
        made = [900.0 if i % (1000 // slow) == 7 * i // 1000 else value for i, value in enumerate(values)]
        (one,) = judged(ttft_record(made), "p99_ttft_ms<=500")
        assert (one.verdict, one.missed) == (verdict, True)
    (one,) = judged(ttft_record([600.0]), "p99_ttft_ms<=500")
    assert one.verdict == "fail", "of what only one in a hundred may do, one does"


@pytest.mark.parametrize(("total", "p"), [(1, 0.99), (60, 0.99), (500, 0.99), (2000, 0.99), (40, 0.5), (300, 0.9)])
def test_the_mirrored_test_is_clopper_and_pearsons_lower_bound(total: int, p: float) -> None:
    for violations in range(0, total + 1, max(1, total // 50)):
        low = binomtest(violations, total).proportion_ci(confidence_level=0.90, method="exact").low
        assert refuses(total, violations, p, 0.95) == (low >= 1 - p)
        assert not (refuses(total, violations, p, 0.95) and accepts(total, violations, p, 0.95))


def test_about_how_many_prove_a_miss() -> None:
    for share in (0.011, 0.02, 0.1, 1.0):
        total = total_to_refuse(share, 0.99, 0.95)
        assert total is not None
        assert refuses(total, int(share * total), 0.99, 0.95)
    assert total_to_refuse(0.01, 0.99, 0.95) is None


def test_the_tail_counts_and_not_the_bulk() -> None:
    """TPOT rises and falls slowly over the run, but what is beyond its bound is scattered."""
    rng = np.random.default_rng(8)
    wave = 20 + 4 * np.sin(np.arange(3000) / 200) + rng.uniform(0, 1, 3000)
    wave[rng.choice(3000, 60, replace=False)] += 15
    wave[rng.choice(3000, 5, replace=False)] += 60
    made = record([row(i, [i * 10.0, i * 10.0 + each], scheduled_ms=i * 10) for i, each in enumerate(wave)])
    one, mean = judged(made, "p99_tpot_ms<=60", "mean_tpot_ms<=30")
    assert one.verdict == "pass"
    assert one.n_eff is not None
    assert mean.n_eff is not None
    assert mean.n_eff < 100 < one.n_eff
    ttft = judged(ttft_record(wave.tolist()), "p99_ttft_ms<=60")[0]
    assert ttft.verdict == "inconclusive", "the queue's own dependence counts as well"


def test_a_rate_fails_where_its_slices_say_so() -> None:
    made = ttft_record(noise(400, 10, 100))
    (value,) = [one.value for one in judged(made, "request_per_s>=0")]
    assert value is not None
    below, near, far = (judged(made, f"request_per_s>={value * factor}")[0] for factor in (0.99, 1.001, 2))
    assert (below.verdict, near.verdict, far.verdict) == ("pass", "inconclusive", "fail")
    assert near.missed


def test_failures_are_violations_and_not_fast_successes() -> None:
    (one,) = judged(ttft_record(noise(990, 100, 400), failed=10), "p95_ttft_ms<=500")
    assert one.n == 1000
    assert one.n_eff is not None
    assert one.n_eff < 500  # ten failures in a row are one event, not ten
    (one,) = judged(ttft_record(noise(900, 100, 400), failed=100), "p99_ttft_ms<=500")
    assert (one.verdict, one.value, one.n) == ("inconclusive", None, 1000), "a hundred in a row are one event"
    assert one.missed
    assert not one.unmeasured


def test_scattered_failures_within_the_allowance_still_pass() -> None:
    made = [row(i, [i * 10 + 50, i * 10 + 70], scheduled_ms=i * 10) for i in range(1000)]
    made[300] = row(300, scheduled_ms=3000, status="failed", finish_reason="error")
    (one,) = judged(record(made), "p99_ttft_ms<=500")
    assert (one.verdict, one.value) == ("pass", 50)


def test_dependent_requests_count_less() -> None:
    blocks = np.repeat(
        np.random.default_rng(6).uniform(100, 400, 40), 10
    )  # 400 requests, effective sample size about 40
    (one,) = judged(ttft_record(blocks.tolist()), "p99_ttft_ms<=500")
    assert one.verdict == "inconclusive"
    assert one.n_eff is not None
    assert 20 < one.n_eff < 80
    assert one.needed is not None
    assert one.needed > 1500


def test_open_loop_judges_from_the_scheduled_time() -> None:
    late = [row(i, [i * 10 + 900, i * 10 + 950], scheduled_ms=i * 10, sent_ms=i * 10 + 850) for i in range(10)]
    (closed,) = judged(record(late), "p99_ttft_ms<=500")
    (opened,) = judged(record(late), "p99_ttft_ms<=500", rate_per_s=100.0)
    assert (closed.metric, closed.verdict, closed.value) == ("p99_ttft_ms", "inconclusive", 50)
    assert (opened.metric, opened.verdict, opened.value) == ("p99_ttft_sched_ms", "fail", 900)


def test_missing_is_not_passing() -> None:
    (one,) = judged(record([row(i, []) for i in range(400)]), "p99_ttft_ms<=500")
    assert one.verdict == "fail"  # completed, they say, but without a token
    (one,) = judged(record([]), "p99_ttft_ms<=500")
    assert (one.verdict, one.n, one.value) == ("inconclusive", 0, None)
    (one,) = judged(record([row(i, []) for i in range(400)]), "p99_tpot_ms<=50")
    assert one.verdict == "fail"


def test_single_tokens_have_no_tpot_to_violate_unless_the_server_stopped_early() -> None:
    two = [row(i, [i * 10 + 5, i * 10 + 25], scheduled_ms=i * 10) for i in range(300)]
    asked = [row(i, [i * 10 + 5], scheduled_ms=i * 10) for i in range(300, 330)]
    cut = [row(i, [i * 10 + 5], scheduled_ms=i * 10, finish_reason="stop") for i in range(300, 630)]
    (one,) = judged(record(two + asked), "p99_tpot_ms<=50")
    assert (one.verdict, one.n) == ("pass", 300)
    mixed = [one for pair in zip(two, cut[:300], strict=True) for one in pair]
    (one,) = judged(record(mixed), "p99_tpot_ms<=50")
    assert (one.verdict, one.n) == ("fail", 600)


ONE_PIECE = [row(i, [i * 10 + 50], scheduled_ms=i * 10, output_tokens=20) for i in range(400)]
ONE_TOKEN = [row(i, [i * 10 + 50], scheduled_ms=i * 10) for i in range(400)]
CUT_SHORT = [row(i, [i * 10 + 50], scheduled_ms=i * 10, finish_reason="stop") for i in range(400)]


@pytest.mark.parametrize("sla", ["p99_tpot_ms<=50", "mean_tpot_ms<=50", "max_tpot_ms<=50", "p99_itl_ms<=50"])
@pytest.mark.parametrize("answers", [ONE_PIECE, ONE_TOKEN, CUT_SHORT], ids=["one piece", "one token", "stopped"])
def test_time_between_tokens_that_no_answer_can_show_is_neither_met_nor_missed(answers: list[object], sla: str) -> None:
    failed = row(400, scheduled_ms=4000, status="failed", finish_reason="error")
    for made in (answers, [*answers, failed]):
        (one,) = judged(record(made), sla)  # type: ignore[arg-type]
        assert (one.verdict, one.value, one.n) == ("inconclusive", None, 0)
        assert one.unmeasured
        assert one.reason == "nothing was measured: no answer came in two events or more"


def test_goodput_by_a_bound_that_no_answer_can_show_is_not_known() -> None:
    both = ["p99_ttft_ms<=500", "p99_tpot_ms<=50", "attainment>=0.5"]
    unknown, known = (completed_run(record(made), header(sla=both)) for made in (ONE_PIECE, ONE_TOKEN))
    assert (unknown.sla[0].verdict, unknown.sla[2].verdict) == ("pass", "inconclusive")
    assert unknown.summary is not None
    assert unknown.summary.goodput.request_per_s is None
    assert known.sla[2].verdict == "pass", "one token was asked for: there is no TPOT to miss"


def test_an_interrupt_is_not_the_servers_failure_but_a_drain_is() -> None:
    made = [row(i, [50, 70]) for i in range(9)] + [row(9, status="cancelled", finish_reason="aborted")]
    (stopped,) = judged(record(made, interrupted=True), "p90_ttft_ms<=500")
    (drained,) = judged(record(made), "p90_ttft_ms<=500")
    assert (stopped.n, stopped.value) == (9, 50)
    assert (drained.n, drained.missed, drained.value) == (10, True, None)


def test_means_are_judged_by_a_t_bound() -> None:
    values = noise(200, 90, 110)
    near, far = judged(ttft_record(values), f"mean_ttft_ms<={np.mean(values) + 0.1}", "mean_ttft_ms<=105")
    assert (near.verdict, far.verdict) == ("inconclusive", "pass")
    (over,) = judged(ttft_record(values), "mean_ttft_ms<=95")
    assert over.verdict == "fail"
    (lost,) = judged(ttft_record(values, failed=20), "mean_ttft_ms<=105")
    assert lost.verdict == "fail"


def test_shares_and_rates() -> None:
    made = ttft_record([*noise(396, 10, 100), 600, 600, 600, 600], failed=0)
    attained, strict, failures, none, rate = judged(
        made, "attainment>=0.9", "p99_ttft_ms<=500", "failure_rate<=0.01", "failure_rate<=0", "output_token_per_s>=1e9"
    )
    assert (attained.verdict, attained.value) == ("pass", 0.99)
    assert (strict.verdict, strict.reason[:8]) == ("inconclusive", "4 of 400")
    assert (failures.verdict, failures.value) == ("pass", 0.0)
    assert (none.verdict, none.n_eff) == ("pass", None)
    assert rate.verdict == "fail"


def test_goodput_needs_every_sla_met() -> None:
    fast, slow_first, slow_after = row(0, [100, 110]), row(1, [900, 910]), row(2, [100, 300])
    failed = row(3, status="failed", finish_reason="error", end_ms=2000)
    run = completed_run(
        record([fast, slow_first, slow_after, failed]), header(sla=["p99_ttft_ms<=500", "p99_tpot_ms<=50"])
    )
    assert run.summary is not None
    assert run.summary.goodput.attainment == 0.25
    assert run.summary.goodput.request_per_s == pytest.approx(1 / 2.0)
    low, high = run.summary.goodput.attainment_ci or (1, 0)
    assert low < 0.25 < high


def test_quantile_with_infinite_values() -> None:
    assert quantile(np.array([1.0, 2.0, np.inf]), 0.5) == 2
    assert quantile(np.array([1.0, 2.0, np.inf]), 0.6) == np.inf
    values = np.random.default_rng(7).normal(size=57)
    assert quantile(np.sort(values), 0.99) == pytest.approx(np.percentile(values, 99))


# Exit codes


CODES = {
    "interrupted": 130,
    "usage_error": 2,
    "unexpected_error": 1,
    "server_died": 6,
    "invalid": 7,
    "fail": 3,
    "regression": 4,
    "inconclusive": 5,
}


@pytest.mark.parametrize("causes", [one for n in range(4) for one in itertools.combinations(CODES, n)])
def test_the_first_cause_in_the_order_decides(causes: tuple[str, ...]) -> None:
    flags = {cause: True for cause in causes if cause not in ("invalid", "inconclusive", "fail")}
    sla = ["pass", *(cause for cause in causes if cause in ("inconclusive", "fail"))]
    validity = "invalid" if "invalid" in causes else "ok"
    found = exit_code(**flags, validity=validity, sla=sla)  # type: ignore[arg-type]
    assert found == (CODES[causes[0]] if causes else 0)


def test_what_failed_and_what_is_open_is_told_where_there_are_both() -> None:
    judged = [("a<=1", "fail"), ("b<=2", "pass"), ("c<=3", "inconclusive"), ("d<=4", "fail"), ("e<=5", "warn")]
    assert failed_and_open(judged) == "Failed: a<=1, d<=4. Inconclusive: c<=3."
    assert failed_and_open([one for one in judged if one[1] != "fail"]) is None
    assert failed_and_open([one for one in judged if one[1] != "inconclusive"]) is None
    assert failed_and_open([]) is None


def test_a_slow_client_matters_only_to_an_sla() -> None:
    assert exit_code(validity="client_limited") == 0
    assert exit_code(validity="client_limited", sla=["pass"]) == 5
    assert exit_code(validity="client_limited", sla=["fail"]) == 5
    assert exit_code(validity="overloaded", sla=["pass"]) == 0


def test_in_a_client_limited_run_no_sla_fails_or_passes() -> None:
    """The client's slowness is not the server's."""
    limited = Validity("client_limited", ("the loop was late",))
    for verdict in ("pass", "fail", "inconclusive"):
        one = SlaResult("p99_ttft_ms<=5", "p99_ttft_ms", 9.0, 5.0, 0.95, 300, 300.0, verdict, "why", 400)  # type: ignore[arg-type]
        found = supported(one, limited)
        assert (found.verdict, found.needed) == ("inconclusive", None)
        assert "why" in found.reason
        assert exit_code(validity="client_limited", sla=[verdict]) == 5  # type: ignore[list-item]


def test_missed_and_met_go_by_the_value() -> None:
    def of(metric: str, value: float | None, verdict: str = "inconclusive") -> SlaResult:
        return SlaResult(metric, metric, value, 5.0, 0.95, 300, 300.0, verdict, "")  # type: ignore[arg-type]

    assert of("p99_ttft_ms", 6.0).missed
    assert of("p99_ttft_ms", 5.0).met
    assert of("output_token_per_s", 4.0).missed
    assert of("attainment", 5.0).met
    assert of("p99_ttft_ms", None, "fail").missed
    assert of("p99_ttft_ms", None).missed, "infinite, as requests failed"
    unmeasured = SlaResult("p99_ttft_ms<=5", "p99_ttft_ms", None, 5.0, 0.95, 0, None, "inconclusive", "")
    assert (unmeasured.missed, unmeasured.met, unmeasured.unmeasured) == (False, False, True)


def loaded(bursts: int, slots_used: int, *, requests: int = 3000) -> RunRecord:
    """First tokens after 50 ms, but 60 after 400 ms: in that many bursts. Some step used that many of 64 slots."""
    slow = np.zeros(requests, np.bool_)
    for burst in range(bursts):
        at = (burst + 1) * requests // (bursts + 1)
        slow[at : at + 60 // bursts] = True
    noise_ms = np.random.default_rng(9).uniform(0, 20, requests)
    waits_ms = np.where(slow, 400, 50) + noise_ms
    made = record([row(i, [i * 10 + wait, i * 10 + wait + 20], scheduled_ms=i * 10) for i, wait in enumerate(waits_ms)])
    steps = np.zeros(2, LEDGER)
    steps["active_slots"], steps["end_ns"], steps["waiting"] = (4, slots_used), (1, 4), (0, 1)
    steps["idle_slots"], steps["start_ns"] = 64 - steps["active_slots"], (0, 1)
    return replace(made, steps=steps)


@pytest.mark.parametrize(("bursts", "slots_used", "rare"), [(30, 64, False), (10, 64, True), (10, 47, False)])
def test_rare_bursts_near_saturation_are_no_pass_and_have_no_interval(bursts: int, slots_used: int, rare: bool) -> None:
    made = loaded(bursts, slots_used)
    sla = ("p99_ttft_ms<=3000", "p50_ttft_ms<=3000", "p99_tpot_ms<=3000", "attainment>=0.97")
    run = completed_run(made, header(sla=sla, rate_per_s=100.0))
    far, middle, tpot, attained = run.sla
    assert run.summary is not None
    assert (far.verdict, attained.verdict) == (("inconclusive",) * 2 if rare else ("pass",) * 2)
    assert (middle.verdict, tpot.verdict) == ("pass", "pass")
    assert ("rare bursts decide" in far.reason) is rare
    assert (run.summary.latency.ttft_sched_ms.p99_ci is None) is rare
    assert run.summary.latency.tpot_ms.p99_ci is not None
    assert rare_bursts(made, request_times(made)) is rare
    assert ("at a lower rate, or give several runs" in far.reason) is rare
    closed = completed_run(made, header(sla=sla))
    assert closed.sla[0].verdict == "pass", "the queue of a closed loop is bounded"


def test_a_load_that_nothing_shows_counts_as_high() -> None:
    made = loaded(10, 64)
    found = bursts_of(replace(made, steps=made.steps[:0]), request_times(made))
    assert found is not None
    assert "is not known" in found.reason
