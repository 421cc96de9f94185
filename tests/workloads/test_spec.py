"""From a SPEC to a plan: golden hashes, the context, files, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.errors import CbbenchError
from workloads.plan import RequestPlan
from workloads.spec import Misfit, build_plan, suggestions

LENGTHS = (
    "prompt=lognormal(median=128,sigma=0.8,max=2048);output=0.7*gamma(mean=200,cv=0.9)+0.3*exponential(mean=40,min=4)"
)


def notes_of(plan: RequestPlan) -> dict[str, str]:
    return {note.kind: note.text for note in plan.notes}


def plan_of(
    spec: str,
    n: int = 64,
    seed: int = 0,
    arrival: str = "poisson",
    context: int | None = 8192,
    misfit: Misfit = "error",
) -> RequestPlan:
    return build_plan(spec, num_requests=n, seed=seed, arrival=arrival, max_model_len=context, misfit=misfit)


@pytest.mark.parametrize(
    ("spec", "arrival", "sha256"),
    [
        ("azure-conv", "poisson", "a68ee43d6770d966c5268966645849bcf348f434a3572e4c90a8e87e737e5d3c"),
        ("azure-conv", "trace", "18d3812eca245c43c61ab6e5f17bc92f282db9b3f7b16690202fb3c7f6a4c24b"),
        ("azure-code", "gamma:2.5", "0df5c0916760fff6f3547128255e0b8b4f3a8983b3dfd56cbb71c9b9bafb62df"),
        ("azure-code", "trace", "fb4eb5afa1a845be8eec73dcd2ddf73a65e1952d4dd13234c634eb6aeb31be01"),
        ("sharegpt", "poisson", "d6fa6e8ffcc959973aaea1ac6f04abb4a9259d18ce37f7a19dac7ed3c3ef3f4c"),
        ("bus-stop", "constant", "d28d1a458edc2db90e03f121cb04fdb4fd5de4c7232ce1c0146719e04d2456e6"),
        (LENGTHS, "poisson", "c76b7b4620afd24e44f3e96bf1fd908b7dd324c5cc404ae26ee3fbb605eb3e51"),
        (
            "prompt=fixed(64);output=uniform(16,512)",
            "gamma:0.3",
            "9a61503256e3ccd38821752e4d72a9f25da285487bf311cfcadc345162e60d81",
        ),
    ],
)
def test_the_same_arguments_give_the_same_plan_on_any_machine(spec: str, arrival: str, sha256: str) -> None:
    """Should one of these change, every published result on that workload stops being comparable: bump its name."""
    assert plan_of(spec, n=1000, arrival=arrival).sha256 == sha256


@pytest.mark.parametrize("spec", ["azure-conv", LENGTHS])
def test_fewer_requests_are_the_beginning_of_more(spec: str) -> None:
    few, many = plan_of(spec, n=50, context=1024), plan_of(spec, n=5000, context=1024)
    for column in ("arrivals_ugap", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(few, column), getattr(many, column)[:50])


def test_lengths_and_arrivals_have_their_own_randomness() -> None:
    base = plan_of("azure-conv")
    assert np.array_equal(base.prompt_tokens, plan_of("azure-conv", arrival="gamma:3").prompt_tokens)
    assert np.array_equal(base.arrivals_ugap, plan_of("sharegpt").arrivals_ugap)
    assert not np.array_equal(base.prompt_tokens, plan_of("azure-conv", seed=1).prompt_tokens)


def test_lengths_do_not_follow_the_arrivals() -> None:
    plan = plan_of("prompt=uniform(1,1000);output=uniform(1,1000)", n=20_000)
    columns = [plan.prompt_tokens[1:], plan.output_tokens[1:], np.diff(plan.arrivals_ugap)]
    assert np.abs(np.corrcoef(columns) - np.eye(3)).max() < 0.03


@settings(deadline=None)  # a busy machine is no defect
@given(
    spec=st.sampled_from(
        ["azure-conv", "azure-code", "sharegpt", LENGTHS, "prompt=exponential(mean=9);output=fixed(7)"]
    ),
    n=st.integers(1, 200),
    seed=st.integers(0, 2**64),
    context=st.integers(512, 9000),
)
def test_drawn_pairs_fit_the_context(spec: str, n: int, seed: int, context: int) -> None:
    plan = plan_of(spec, n=n, seed=seed, context=context)
    assert len(plan) == n
    assert plan.prompt_tokens.min() >= 1
    assert plan.output_tokens.min() >= 1
    assert (plan.prompt_tokens + plan.output_tokens).max() <= context
    assert 0 <= plan.outside_context < 1


def test_the_whole_pair_is_drawn_again() -> None:
    """The distribution is conditioned on fitting: every pair of the free plan that fits is in the cut one."""
    free, cut = plan_of("azure-conv", n=6000, context=None), plan_of("azure-conv", n=2000, context=1200)
    fits = free.prompt_tokens + free.output_tokens <= 1200
    assert np.array_equal(cut.prompt_tokens, free.prompt_tokens[fits][:2000])
    assert np.array_equal(cut.output_tokens, free.output_tokens[fits][:2000])
    drawn = int(np.flatnonzero(fits)[1999]) + 1
    assert cut.outside_context == pytest.approx(1 - 2000 / drawn)
    assert free.outside_context == 0


def test_a_context_that_hardly_anything_fits_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(CbbenchError, match=r"azure-conv: only 0\.00% of its requests fit a context of 12 tokens"):
        plan_of("azure-conv", context=12)


def test_a_tight_context_still_gives_a_large_plan() -> None:
    plan = plan_of("azure-conv", n=20_000, context=256)
    assert plan.outside_context > 0.9


def test_fixed_lengths_are_never_altered() -> None:
    with pytest.raises(
        CbbenchError, match="64 of 64 requests exceed the context of 100 tokens; the first is request 0"
    ):
        plan_of("prompt=fixed(90);output=fixed(11)", context=100)
    assert plan_of("prompt=fixed(90);output=fixed(10)", context=100).prompt_tokens.tolist() == [90] * 64
    kept = plan_of("prompt=fixed(90);output=fixed(11)", context=100, misfit="reject")
    assert kept.output_tokens.tolist() == [11] * 64


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text("prompt_tokens,output_tokens,arrival_s,tenant\n10,1,0,a\n20,2,1,b\n300,30,4,a\n", encoding="utf-8")
    return str(path)


def test_a_file_is_taken_row_by_row(trace: str) -> None:
    plan = plan_of(trace, n=3, arrival="trace")
    assert plan.prompt_tokens.tolist() == [10, 20, 300]
    assert plan.arrivals_ugap.tolist() == [0, 500_000, 2_000_000]
    assert [plan.tenants[index] for index in plan.tenant] == ["a", "b", "a"]
    assert plan.trace_rate_per_s == 0.5
    assert "repeated" not in notes_of(plan)
    assert plan_of(trace, n=2, seed=9).output_tokens.tolist() == [1, 2]
    assert suggestions(trace) == {"num_requests": 3}


def test_a_file_starts_over_when_more_is_asked_and_says_so(trace: str) -> None:
    plan = plan_of(trace, n=5, arrival="trace")
    assert plan.prompt_tokens.tolist() == [10, 20, 300, 10, 20]
    # gaps 1, 3, then the mean 2 before it starts over, then 1; scaled to a mean of one
    assert plan.arrivals_ugap.tolist() == [round(at * 4e6 / 7) for at in (0, 1, 4, 6, 7)]
    assert notes_of(plan)["repeated"] == f"{trace} has 3 rows, repeated from the top to make 5 requests"


def test_a_file_is_never_altered(trace: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        plan_of(trace, n=3, context=329)
    assert "1 of 3 requests exceed the context of 329 tokens" in str(caught.value)
    assert "request 2 (line 4) with prompt 300 + output 30" in str(caught.value)
    assert plan_of(trace, n=3, context=329, misfit="reject").prompt_tokens.tolist() == [10, 20, 300]
    assert plan_of(trace, n=3, context=330).prompt_tokens.tolist() == [10, 20, 300]
    assert plan_of(trace, n=2, context=329).prompt_tokens.tolist() == [10, 20]  # the misfit is not among them


def test_suggestions() -> None:
    assert suggestions("bus-stop")["max_num_seqs"] == 3
    assert suggestions("azure-conv") == {}
    assert suggestions(LENGTHS) == {}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("azure-con", "unknown workload 'azure-con'; did you mean azure-conv? want a preset (arxiv-summarization, "),
        ("Sharegpt", "did you mean sharegpt?"),
        ("zzz", "unknown workload 'zzz'; want a preset"),
        ("", "unknown workload ''"),
        ("prompt=fixed(3)", "output=DIST is missing"),
        ("output=fixed(3)", "prompt=DIST is missing"),
        ("prompt=fixed(3);prompt=fixed(3)", "duplicate prompt="),
        ("prompt=fixed(3);answer=fixed(3)", "cannot read 'answer=fixed(3)'"),
        ("prompt=fixed(3);output=fixed(3);", "cannot read ''"),
        ("prompt=fixed(3);output=4", "cannot read the length distribution '4'"),
        ("nowhere.csv", "nowhere.csv: no such file"),
    ],
)
def test_bad_specs_are_one_clear_line(spec: str, says: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        plan_of(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("n", "seed", "context"), [(0, 0, 100), (1, -1, 100), (1, 0, 1)])
def test_bad_numbers(n: int, seed: int, context: int) -> None:
    with pytest.raises(CbbenchError, match="must be"):
        plan_of("azure-conv", n=n, seed=seed, context=context)


def test_spaces_in_a_spec_do_not_matter() -> None:
    tight = plan_of("prompt=fixed(3);output=0.5*fixed(3)+0.5*uniform(1,9)")
    loose = plan_of(" prompt = fixed( 3 ) ; output = 0.5 * fixed(3) + 0.5 * uniform(1, max=9) ")
    assert tight.sha256 == loose.sha256


def test_the_hash_covers_every_column() -> None:
    plan = plan_of("azure-conv", n=4)
    columns = ("arrivals_ugap", "prompt_tokens", "output_tokens", "tenant", "priority", "session", "prefix")
    hashes = {plan.sha256}
    for name in columns:
        changed = {column: getattr(plan, column).copy() for column in columns}
        changed[name][-1] += 1
        hashes.add(RequestPlan(**changed, prefix_tokens=(2,) if name == "prefix" else ()).sha256)
    changed["prefix"][-1] = 0
    hashes |= {RequestPlan(**changed, prefix_tokens=(length,)).sha256 for length in (3, 4)}
    assert len(hashes) == len(columns) + 3
