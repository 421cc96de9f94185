"""Tenants: golden hash, shares, what each tenant's lengths depend on, bursts, and errors in one line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.errors import CbbenchError
from workloads.plan import RequestPlan, realised
from workloads.spec import Misfit, build_plan
from workloads.tenant_plan import build_tenant_plan
from workloads.tenants import EXAMPLE, Burst, Tenant, parse_tenants

LENGTHS = "(prompt=0.7*uniform(16,512)+0.3*fixed(64);output=lognormal(median=60,sigma=0.5))"


def notes_of(plan: RequestPlan) -> dict[str, str]:
    return {note.kind: note.text for note in plan.notes}


def plan_of(
    tenants: str,
    n: int = 200,
    seed: int = 0,
    arrival: str = "poisson",
    context: int | None = 8192,
    misfit: Misfit = "error",
    workload: str = "azure-conv",
) -> RequestPlan:
    return build_tenant_plan(
        tenants,
        workload=workload,
        num_requests=n,
        seed=seed,
        arrival=arrival,
        max_model_len=context,
        misfit=misfit,
    )


def of(plan: RequestPlan, name: str, column: str) -> np.ndarray:
    """A column of one tenant's requests."""
    return np.asarray(getattr(plan, column)[plan.tenant == plan.tenants.index(name)])


@pytest.mark.parametrize(
    ("tenants", "sha256"),
    [
        (EXAMPLE, "084cd641ea67a3fe47af7f1a24a6583ee1ddf469116e93d9569b9378daf2b19d"),
        (
            f"chat:weight=2.5,sessions=7;laws:workload={LENGTHS},priority=2;flood:weight=0,burst=20:100",
            "9e3478f39c1b164e4ebcdfa6d64efad78667775e2170ac9f5288bdae6f520119",
        ),
    ],
)
def test_the_same_arguments_give_the_same_plan_on_any_machine(tenants: str, sha256: str) -> None:
    assert plan_of(tenants, n=1000).sha256 == sha256


def test_what_a_tenant_is_given() -> None:
    assert parse_tenants(
        f" a : weight = 0.5 , preset = azure-conv; b:workload={LENGTHS},sessions=3,priority=1,burst=2:9,prefix=40;c"
    ) == (
        Tenant("a", Fraction(1, 2), "azure-conv"),
        Tenant("b", Fraction(1), LENGTHS[1:-1], 1, 3, Burst(2, 9), 40),
        Tenant("c"),
    )


def test_requests_are_shared_by_weight() -> None:
    plan = plan_of("a:weight=3;b:weight=1;c:weight=0.5", n=20_000)
    shares = np.bincount(plan.tenant) / len(plan)
    assert shares == pytest.approx(np.array([3, 1, 0.5]) / 4.5, abs=0.01)
    assert set(realised(plan)["tenants"]) == {"a", "b", "c"}
    follows = np.corrcoef(plan.tenant[1:], plan.tenant[:-1])[0, 1]
    assert abs(follows) < 0.03


def test_each_tenant_has_its_own_workload_and_priority() -> None:
    plan = plan_of("a:weight=3,preset=azure-conv;b:workload=(prompt=fixed(7);output=uniform(2,4)),priority=1")
    assert set(of(plan, "b", "prompt_tokens").tolist()) == {7}
    assert set(of(plan, "b", "output_tokens").tolist()) == {2, 3, 4}
    assert set(of(plan, "b", "priority").tolist()) == {1}
    assert set(of(plan, "a", "priority").tolist()) == {0}
    assert of(plan, "a", "prompt_tokens").max() > 1000


def test_a_tenant_without_a_workload_takes_that_of_the_run() -> None:
    plan = plan_of("a;b:preset=bus-stop", workload="prompt=fixed(9);output=fixed(9)")
    assert set(of(plan, "a", "prompt_tokens").tolist()) == {9}
    assert plan.spec == "prompt=fixed(9);output=fixed(9) for a;b:preset=bus-stop"
    assert plan_of(EXAMPLE).spec == EXAMPLE


def test_other_tenants_change_no_lengths() -> None:
    alone, among = plan_of("a"), plan_of(f"z:weight=2,workload={LENGTHS};a:weight=5;b")
    for column in ("prompt_tokens", "output_tokens"):
        theirs = of(among, "a", column)
        assert len(theirs) > 100
        assert np.array_equal(theirs, of(alone, "a", column)[: len(theirs)])
    assert np.array_equal(alone.arrivals_ugap, among.arrivals_ugap)
    twins = plan_of("a;b", n=400)
    assert not np.array_equal(of(twins, "a", "prompt_tokens")[:150], of(twins, "b", "prompt_tokens")[:150])


@settings(deadline=None)  # a busy machine is no defect
@given(few=st.integers(25, 300), seed=st.integers(0, 2**64))
def test_fewer_requests_are_the_beginning_of_more(few: int, seed: int) -> None:
    tenants = "a:sessions=5;b:weight=2,priority=3,prefix=9,sessions=2;c:weight=0,burst=10:15"
    short, long = plan_of(tenants, n=few, seed=seed), plan_of(tenants, n=300, seed=seed)
    for column in ("arrivals_ugap", "prompt_tokens", "output_tokens", "tenant", "priority", "session", "prefix"):
        assert np.array_equal(getattr(short, column), getattr(long, column)[:few]), column


def test_a_burst_comes_at_once_and_leaves_the_others_as_they_were() -> None:
    calm, flooded = plan_of("a", n=50), plan_of("a;noisy:weight=0,burst=20:100", n=150)
    burst = np.flatnonzero(flooded.tenant == 1)
    assert burst.tolist() == list(range(20, 120))
    assert set(flooded.arrivals_ugap[burst].tolist()) == {int(calm.arrivals_ugap[19])}
    for column in ("arrivals_ugap", "prompt_tokens"):
        assert np.array_equal(np.delete(getattr(flooded, column), burst), getattr(calm, column))
    assert len(of(flooded, "noisy", "prompt_tokens")) == 100


def test_sessions_are_a_tenants_own() -> None:
    plan = plan_of("a:sessions=4;b;c:sessions=10", n=600, context=None)
    assert set(of(plan, "a", "session").tolist()) == set(range(4))
    assert set(of(plan, "b", "session").tolist()) == {-1}
    assert set(of(plan, "c", "session").tolist()) == set(range(4, 14))


def test_a_turn_repeats_the_turn_before_and_its_answer() -> None:
    plan = plan_of("a:sessions=3;b", n=300, context=4096)
    drawn = plan_of("a;b", n=300, context=4096)
    conversations: dict[int, list[int]] = {}
    for i in np.flatnonzero(plan.tenant == 0).tolist():
        conversations.setdefault(int(plan.session[i]), []).append(i)
    assert len(conversations) > 3, "those that passed the context were followed by others"
    assert max(map(len, conversations.values())) > 3
    for turns in conversations.values():
        said = 0
        for i in turns:
            assert plan.prompt_tokens[i] == said + drawn.prompt_tokens[i]
            said = plan.prompt_tokens[i] + plan.output_tokens[i]
            assert said <= 4096
    assert np.array_equal(of(plan, "b", "prompt_tokens"), of(drawn, "b", "prompt_tokens"))


def test_prefixes_are_a_tenants_own() -> None:
    plan = plan_of("a:prefix=40;b;c:prefix=7")
    assert plan.prefix_tokens == (40, 7)
    assert [set(of(plan, name, "prefix").tolist()) for name in "abc"] == [{0}, {-1}, {1}]
    assert np.array_equal(plan.prompt_tokens, plan_of("a;b;c").prompt_tokens)


def test_files_keep_their_priorities_unless_the_tenant_has_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("prompt_tokens,output_tokens,tenant,priority\n10,1,x,5\n20,2,y,6\n", encoding="utf-8")
    plan = plan_of(f"own:preset={path};set:preset={path},priority=1", n=40)
    assert set(of(plan, "own", "priority").tolist()) == {5, 6}
    assert set(of(plan, "set", "priority").tolist()) == {1}
    assert of(plan, "own", "prompt_tokens")[:3].tolist() == [10, 20, 10]
    assert plan.tenants == ("own", "set")
    assert "2 rows, repeated" in notes_of(plan)["repeated"]


def test_pairs_outside_the_context_are_counted_over_all_tenants() -> None:
    cut = build_plan("azure-conv", num_requests=4000, seed=0, arrival="poisson", max_model_len=1200)
    both = plan_of("a:preset=azure-conv;b:workload=(prompt=fixed(9);output=uniform(1,9))", n=8000, context=1200)
    drawn = 4000 / (1 - cut.outside_context) + 4000
    assert both.outside_context == pytest.approx(1 - 8000 / drawn, abs=0.01)
    with pytest.raises(CbbenchError, match=r"tenant b: .* 102 of 102 requests exceed the context of 15 tokens"):
        plan_of("a:workload=(prompt=fixed(2);output=fixed(2));b:workload=(prompt=fixed(9);output=fixed(9))", context=15)
    kept = plan_of("b:workload=(prompt=fixed(9);output=fixed(9))", context=15, misfit="reject")
    assert set(kept.prompt_tokens.tolist()) == {9}


@pytest.mark.parametrize(
    ("tenants", "says"),
    [
        ("", "cannot read ''; want NAME:key=value"),
        ("a;", "cannot read ''"),
        ("a b:weight=1", "cannot read 'a b:weight=1'"),
        ("a:wieght=1", "tenant a: unknown key 'wieght', want one of weight, preset, workload, priority"),
        ("a:prompt=fixed(3)", "unknown key 'prompt', want one of"),
        ("a:prompt=fixed(3)", "distributions stand in brackets: workload=(prompt=DIST;output=DIST)"),
        ("a:workload=prompt=fixed(3);output=fixed(4)", "brackets around distributions"),
        ("a:weight=", "tenant a: weight must be a number from 0 to 1e9, got ''"),
        ("a;b:weight=-1", "tenant b: weight must be a number"),
        ("a:weight=nan", "weight must be a number"),
        ("a:weight=1,weight=2", "tenant a: weight is given twice"),
        ("a:preset=azure-conv,workload=azure-code", "tenant a: workload is given twice"),
        ("a:priority=high", "tenant a: priority must be a whole number, 0 being the most urgent, got 'high'"),
        ("a:priority=-1", "priority must be a whole number"),
        ("a:sessions=0", "sessions must be a whole number from 1, got '0'"),
        ("a:prefix=0", "prefix must be a number of tokens from 1, got '0'"),
        ("a:burst=5", "tenant a: burst must be AFTER:N"),
        ("a;b;a", "tenant a: duplicate"),
        ("a:weight=0;b:weight=0,burst=1:1", "every weight is 0"),
        ("a:workload=(prompt=fixed(3);output=fixed(4)", "the brackets in"),
        ("a:preset=azure-con", "tenant a: unknown workload 'azure-con'; did you mean azure-conv?"),
        (
            "a;b:burst=101:100",
            "burst=101:100 starts with request 101 of those drawn by weight, but `num_requests` 200 l",
        ),
        ("a;b:burst=1:200", "leaves 0 of them beside the bursts"),
    ],
)
def test_bad_tenants_are_one_clear_line(tenants: str, says: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        plan_of(tenants)
    assert says in str(caught.value)
    assert caught.value.field == "tenants"
    assert "\n" not in str(caught.value)


def test_a_trace_cannot_pace_several_tenants() -> None:
    with pytest.raises(CbbenchError, match="arrival: trace: `tenants` share one arrival process"):
        plan_of("a;b", arrival="trace")


@pytest.mark.parametrize(("n", "seed", "context"), [(0, 0, 100), (1, -1, 100), (1, 0, 1)])
def test_bad_numbers(n: int, seed: int, context: int) -> None:
    with pytest.raises(CbbenchError, match="must be"):
        plan_of("a", n=n, seed=seed, context=context)


def test_tenants_have_arrival_processes_of_their_own() -> None:
    steady, bursty = "steady:weight=3,arrival=constant", "bursty:weight=1,arrival=onoff:0.1:400"
    plan = plan_of(f"{steady};{bursty}", n=8000)
    assert plan.arrivals_ugap[0] == 0
    assert (np.diff(plan.arrivals_ugap) >= 0).all()
    own = [plan.arrivals_ugap[plan.tenant == at] / 1e6 for at in (0, 1)]
    gaps = [np.diff(times) for times in own]
    assert gaps[0] == pytest.approx(4 / 3, abs=1e-5)  # 3 of 4 requests, at equal gaps
    assert gaps[1].std() / gaps[1].mean() > 3
    assert len(own[1]) / len(plan) == pytest.approx(0.25, abs=0.12)  # as many as the bursts of the time bring
    assert plan_of(f"{steady};{bursty}", n=500).arrivals_ugap.tolist() == plan.arrivals_ugap[:500].tolist()
    other = plan_of(f"{bursty};{steady}", n=8000)
    assert np.array_equal(other.arrivals_ugap, plan.arrivals_ugap), "their order changes nothing"


@pytest.mark.parametrize(
    ("text", "says"),
    [("a:arrival=trace", "arrival must be a process"), ("a:arrival=onoff:2:20", "tenant a: SHARE of onoff:2:20")],
)
def test_bad_arrivals_of_a_tenant(text: str, says: str) -> None:
    with pytest.raises(CbbenchError, match=says):
        plan_of(text)
