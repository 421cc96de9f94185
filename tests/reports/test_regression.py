"""Comparisons: what an interval means against a budget, Holm, pairing, exactness, and what cannot be compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from scipy.stats import ttest_1samp

from engines.base import RunRecord
from reports.budgets import DEFAULTS, Budget, parse_budgets, value_of
from reports.checks import Check, CheckVerdict, summarize_checks
from reports.metrics import request_times
from reports.paired import Spread, block_length, holm_levels, paired_spread, request_spread
from reports.record_differences import differences
from reports.regression import exact_checks, judge, matched, regression_checks
from reports.scenarios import ComparedRuns, match_baselines, scenarios, setting_differences
from reports.schema import PacingInfo, Validity
from reports.stored_runs import StoredRun
from reports.summary import completed_run
from tests.reports.factory import bus_stop, header, record, row
from workloads.errors import CbbenchError

TPOT = Budget("mean_tpot_ms", 0.03)
RATE = Budget("output_token_per_s", 0.03)


NAMES = itertools.count()


def stored(made: RunRecord, **fields: object) -> StoredRun:
    return StoredRun(f"run{next(NAMES)}", completed_run(made, header(**fields)), made)  # type: ignore[arg-type]


def steady(tpot_ms: float, n: int = 40, *, failed: int = 0, tokens: int = 5) -> RunRecord:
    """Requests one after the other, each token `tpot_ms` after the one before, some a little faster than others."""
    noise = 1 + 0.02 * np.sin(np.arange(n) * 2.3)
    made = [
        row(i, [100 * i + 10 + k * tpot_ms * noise[i] for k in range(tokens)], scheduled_ms=100 * i)
        for i in range(n - failed)
    ]
    made += [
        row(i, scheduled_ms=100 * i, status="failed", finish_reason="error", error="boom") for i in range(n - failed, n)
    ]
    return record(made)


def compared(before: Sequence[StoredRun], after: Sequence[StoredRun], *budgets: Budget) -> dict[str, Check]:
    groups = scenarios(match_baselines(after, before))
    checks = regression_checks(groups, budgets or (TPOT,), 0.95, 0.01)
    return {one.metric: one for one in checks}


# An interval against a budget


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01, 0.01, "pass"),
        (-0.20, 0.01, "pass"),  # wide, but all of it within the budget
        (-0.20, -0.10, "pass"),
        (0.005, 0.02, "warn"),
        (0.02, 0.04, "inconclusive"),  # reaches beyond, however narrow
        (-0.01, 0.04, "inconclusive"),
        (0.01, 0.20, "inconclusive"),
        (0.031, 0.20, "fail"),
    ],
)
def test_verdicts(low: float, high: float, verdict: CheckVerdict) -> None:
    assert judge(TPOT, (low, high), (low, high)) == verdict
    assert judge(RATE, (-high, -low), (-high, -low)) == verdict, "of a throughput, less is worse"


def test_worse_takes_holms_level_and_within_the_budget_does_not() -> None:
    assert judge(TPOT, (-0.01, 0.04), (-0.005, 0.02)) == "pass"
    assert judge(TPOT, (-0.01, 0.04), (0.005, 0.035)) == "inconclusive"
    assert judge(TPOT, (0.001, 0.04), (0.005, 0.02)) == "warn"
    assert judge(RATE, (-0.04, 0.01), (-0.02, 0.005)) == "pass"


def test_a_budget_of_a_rate_is_a_share_lost() -> None:
    for low, high, verdict in ((0.96, 0.965, "fail"), (0.971, 0.975, "warn")):
        interval = (math.log(low), math.log(high))
        assert judge(RATE, interval, interval) == verdict


def test_holm_stops_at_the_first_that_is_not_rejected() -> None:
    assert holm_levels([0.02, 0.001, 0.04], 0.06) == pytest.approx([0.03, 0.02, 0.06])
    assert holm_levels([0.04, 0.001, 0.05], 0.06) == pytest.approx([0.03, 0.02, 0.03])
    assert holm_levels([], 0.05) == []


# Budgets


def test_short_names_and_full_ones() -> None:
    tpot, p99 = parse_budgets(["tpot=3%", "p99_itl_ms = 12.5 %"])
    assert (tpot.metric, tpot.share, tpot.limit) == ("mean_tpot_ms", 0.03, "at most +3 %")
    assert (p99.metric, p99.share) == ("p99_itl_ms", 0.125)
    assert len(parse_budgets(DEFAULTS)) == 4
    assert parse_budgets(["throughput=3%"])[0].limit == "at least −3 %"


@pytest.mark.parametrize(
    ("text", "said"),
    [("tpot=3", "percentage"), ("tpot=100%", "percentage"), ("tpot=-1%", "percentage"), ("tpot=x%", "percentage"),
     ("tpt=3%", "tpot"), ("p77_ttft_ms=3%", "p99_ttft_ms"), ("attainment=3%", "unknown")],
)  # fmt: skip
def test_bad_budgets(text: str, said: str) -> None:
    with pytest.raises(CbbenchError, match=said):
        parse_budgets([text])
    with pytest.raises(CbbenchError, match="two budgets"):
        parse_budgets(["tpot=3%", "mean_tpot_ms=4%"])


def test_every_budget_reads_its_metric() -> None:
    one = stored(steady(20))
    summary = one.run.summary
    assert summary is not None
    assert value_of(one, Budget("p90_tpot_ms", 0)) == summary.latency.tpot_ms.p90
    assert value_of(one, RATE) == summary.throughput.output_token_per_s
    assert value_of(one, Budget("goodput_request_per_s", 0)) is None


def test_a_budget_of_a_part_of_the_load() -> None:
    whole, quiet = parse_budgets(["e2el=5%", "e2el[tenant=quiet]=5%"])
    assert (whole.name, quiet.name) == ("mean_e2el_ms", "mean_e2el_ms[tenant=quiet]")
    (short,) = parse_budgets(["p50_ttft_ms[prompt<=512]=10%"])
    assert (short.name, short.share) == ("p50_ttft_ms[prompt<=512]", 0.1)
    for text, said in (("throughput[tenant=a]=3%", "latency of single requests"), ("itl[stage=1]=3%", "of single"),
                       ("tpot[who=a]=3%", "budget")):  # fmt: skip
        with pytest.raises(CbbenchError, match=said):
            parse_budgets([text])


def of_two_tenants(quiet_ms: float) -> StoredRun:
    """40 requests of a tenant and 10 of another, quiet."""
    noise = np.random.default_rng(4).uniform(0, 2, 50).tolist()
    took = [(quiet_ms if i % 5 == 0 else 100.0) + noise[i] for i in range(50)]
    made = [row(i, [i * 10 + 5, i * 10 + took[i]], scheduled_ms=i * 10, tenant="loud" if i % 5 else "quiet")
            for i in range(50)]  # fmt: skip
    return stored(record(made))


def test_one_tenant_that_is_slower_fails_its_own_budget_alone() -> None:
    before, after = of_two_tenants(20.0), of_two_tenants(26.0)
    budgets = parse_budgets(["e2el=5%", "e2el[tenant=quiet]=5%", "e2el[tenant=loud]=5%"])
    checks = compared([before], [after], *budgets)
    verdicts = {one.name: checks[one.name].verdict for one in budgets}
    assert verdicts["mean_e2el_ms[tenant=quiet]"] == "fail"
    assert verdicts["mean_e2el_ms[tenant=loud]"] == "pass"
    assert verdicts["mean_e2el_ms"] != "fail"
    assert checks["mean_e2el_ms[tenant=quiet]"].change == pytest.approx(6 / 21, abs=0.01)


# Spreads


def test_paired_spread_is_students() -> None:
    values = [0.01, 0.02, 0.06]
    spread = paired_spread(values)
    assert spread.p_value(upwards=True) == pytest.approx(ttest_1samp(values, 0, alternative="greater").pvalue)
    assert spread.p_value(upwards=False) == pytest.approx(ttest_1samp(values, 0, alternative="less").pvalue)
    assert spread.interval(0.05) == pytest.approx(tuple(ttest_1samp(values, 0).confidence_interval(0.95)))


def test_no_variation_is_no_doubt() -> None:
    assert paired_spread([0.0, 0.0]).p_value(upwards=True) == 1
    assert Spread(0.0, 0.0, 5).interval(0.01) == (0.0, 0.0)
    assert paired_spread([0.5, 0.5]).p_value(upwards=True) == 0
    assert paired_spread([0.5, 0.5]).p_value(upwards=False) == 1


def test_blocks_are_as_long_as_the_dependence() -> None:
    rng = np.random.default_rng(1)
    white = rng.lognormal(size=2000)
    slow = np.exp(np.convolve(rng.normal(size=2039), np.ones(40) / 40, "valid"))
    assert block_length([white], "mean") == 1
    assert 40 < block_length([slow], "mean") < 500
    assert request_spread(slow[:60], slow[:60] * 1.1, "mean", matched=False) is None, "too few effective requests"


@pytest.mark.parametrize("stat", ["mean", "p50"])
def test_the_same_requests_tell_more_than_others(stat: str) -> None:
    rng = np.random.default_rng(2)
    before = rng.lognormal(size=1000)
    after = before * 1.05 * rng.lognormal(0, 0.01, 1000)
    paired = request_spread(before, after, stat, matched=True)
    apart = request_spread(before, after, stat, matched=False)
    assert paired is not None
    assert apart is not None
    assert paired.log_ratio == pytest.approx(math.log(1.05), abs=0.01)
    assert paired.error < apart.error / 10


# Pairs of runs


def test_pairs_of_runs_fail_warn_and_pass() -> None:
    base = [stored(steady(20 + one)) for one in (0, 0.02, -0.02)]
    slower = [stored(steady((20 + one) * 1.10)) for one in (0.01, 0.02, 0)]
    bit = [stored(steady((20 + one) * 1.01)) for one in (0.01, 0.02, 0)]
    failed = compared(base, slower)["mean_tpot_ms"]
    assert failed.verdict == "fail"
    assert failed.change == pytest.approx(0.10, abs=0.002)
    assert failed.interval is not None
    assert failed.interval[0] < 0.10 < failed.interval[1]
    assert compared(base, bit)["mean_tpot_ms"].verdict == "warn"
    assert compared(base, base)["mean_tpot_ms"].verdict == "pass"
    assert compared(slower, base)["mean_tpot_ms"].verdict == "pass", "faster is no regression"


def test_pairs_that_disagree_are_inconclusive() -> None:
    base = [stored(steady(20)), stored(steady(20))]
    mixed = [stored(steady(21)), stored(steady(19.5))]
    assert compared(base, mixed)["mean_tpot_ms"].verdict == "inconclusive"


def test_one_pair_says_that_it_is_weaker() -> None:
    check = compared([stored(steady(20))], [stored(steady(22))])["mean_tpot_ms"]
    assert check.verdict == "fail"
    assert "weaker" in check.told


def test_a_throughput_of_one_pair_has_no_interval() -> None:
    base, slow = stored(steady(20)), stored(steady(20 * 40))
    assert compared([base], [slow], RATE)["output_token_per_s"].verdict == "inconclusive"
    assert compared([base], [base], RATE)["output_token_per_s"].verdict == "pass"


def test_failures_cannot_hide_behind_good_latencies() -> None:
    check = compared([stored(steady(20)) for _ in "ab"], [stored(steady(20, failed=2)) for _ in "ab"])["failure_rate"]
    assert (check.verdict, check.value) == ("fail", 0.05)
    assert compared([stored(steady(20))], [stored(steady(20))])["failure_rate"].verdict == "pass"


def test_shorter_answers_are_told() -> None:
    shorter = compared([stored(steady(20))], [stored(steady(20, tokens=4))])
    assert shorter["output_tokens"].verdict == "warn"
    assert "output_tokens" not in compared([stored(steady(20))], [stored(steady(21))])


@pytest.mark.parametrize(("validity", "metric"), [("client_limited", "mean_tpot_ms"), ("overloaded", "p50_ttft_ms")])
def test_what_validity_forbids(validity: str, metric: str) -> None:
    one = stored(steady(20))
    bad = StoredRun("bad", msgspec.structs.replace(one.run, validity=Validity(validity, ("why",))), one.record)  # type: ignore[arg-type]
    check = compared([one], [bad], Budget(metric, 0.03))[metric]
    assert check.verdict == "inconclusive"
    assert "why" in check.reason


def test_an_overloaded_run_still_has_a_time_per_token() -> None:
    one = stored(steady(20))
    over = StoredRun("over", msgspec.structs.replace(one.run, validity=Validity("overloaded", ("why",))), one.record)
    assert compared([one], [over])["mean_tpot_ms"].verdict == "pass"


def test_only_requests_of_both_sides_are_matched() -> None:
    before, after = matched(
        *((one, request_times(one)) for one in (steady(20, n=5), steady(22, n=5, failed=1))), "tpot_ms"
    )
    assert before.shape == after.shape == (4,)
    assert after / before == pytest.approx(1.1, rel=1e-3)


def test_requests_of_one_side_alone_are_left_out_of_the_interval_and_counted() -> None:
    few = compared([stored(steady(20, n=200))], [stored(steady(22, n=200, failed=2))])["mean_tpot_ms"]
    assert "leaves out 2 requests" in few.reason
    assert "leaves out" not in compared([stored(steady(20))], [stored(steady(22))])["mean_tpot_ms"].reason


def test_many_metrics_are_one_family() -> None:
    base, worse = [stored(steady(20)) for _ in "ab"], [stored(steady(20.3)), stored(steady(20.32))]
    alone = compared(base, worse)["mean_tpot_ms"].interval
    crowd = compared(base, worse, *parse_budgets(["ttft=5%", "e2el=5%", "tpot=3%"]))["mean_tpot_ms"].interval
    assert alone is not None
    assert crowd is not None
    assert crowd[1] - crowd[0] > alone[1] - alone[0]


# Which runs belong together


def test_repetitions_are_one_scenario_and_other_settings_another() -> None:
    a, b, c = stored(steady(20)), stored(steady(20)), stored(steady(20), config={"max_num_seqs": 8})
    assert [len(one.pairs) for one in scenarios(match_baselines([a, b, c], [a, b, c]))] == [2, 1]
    assert [len(one.pairs) for one in scenarios(match_baselines([a, b], [a]))] == [1, 1], (
        "a shared baseline is one draw"
    )
    assert [len(one.pairs) for one in scenarios(match_baselines([a, b], [a, a]))] == [1, 1]
    with pytest.raises(CbbenchError, match="3 runs and 2 baselines"):
        match_baselines([a, b, c], [a, b])


def test_other_work_is_named() -> None:
    one, plan, rate = stored(steady(20)), stored(steady(20), sha256="cd" * 32), stored(steady(20), rate_per_s=5.0)
    assert ComparedRuns(one, one).differences == ""
    assert "workload" in ComparedRuns(one, plan).differences
    assert "rate_per_s none → 5" in ComparedRuns(one, rate).differences
    assert PacingInfo(rate_per_s=5.0).open_loop


# Exactness


def test_settings_that_differ_are_rounded_and_nothing_is_none() -> None:
    assert setting_differences({"rate_per_s": 2.1717451523545708}, {"rate_per_s": None}) == ["rate_per_s 2.172 → none"]
    assert setting_differences({"share": 0.10001}, {"share": 0.10002}) == ["share 0.10001 → 0.10002"]


def test_equal_to_the_bit() -> None:
    assert differences(bus_stop(), bus_stop()) == ()
    (said,) = differences(steady(20), steady(20.001))
    assert "40 of 40 requests differ, first request 0: last" in said
    said_of_steps = differences(bus_stop((10, 50)), bus_stop((10, 60)))
    assert any("50 → 60 steps" in one for one in said_of_steps)
    assert any("ended in one run alone" in one for one in differences(bus_stop((10, 50)), bus_stop((10,))))


def test_a_larger_pool_alone_is_no_difference() -> None:
    """Nothing happened otherwise: only more blocks were free."""
    larger = bus_stop()
    larger.steps["kv_free_blocks"] += 100
    assert differences(bus_stop(), larger) == ()
    larger.steps["kv_used_blocks"][3] += 1
    assert differences(bus_stop(), larger) == ("from step 4 on: kv_used_blocks 3 → 4",)


@pytest.mark.parametrize(("strict", "verdict"), [(True, "fail"), (False, "warn")])
def test_any_difference_is_shown(strict: bool, verdict: str) -> None:
    (scenario,) = scenarios(match_baselines([stored(steady(20.1))], [stored(steady(20))]))
    bits, tpot = exact_checks(scenario, [TPOT], strict=strict)
    assert bits.verdict == verdict
    assert tpot.verdict == "warn"
    assert tpot.change == pytest.approx(0.005, abs=1e-4)


def test_nothing_checked_is_not_a_pass() -> None:
    assert summarize_checks([]).exit_code == 5
