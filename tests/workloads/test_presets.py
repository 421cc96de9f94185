"""Presets against the numbers of their own sources, which each file carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workloads.columns import IntColumn
from workloads.length_pairs import JointGrid, correlation, max_over_mean, percentiles
from workloads.presets import PRESETS
from workloads.spec import build_plan

EMPIRICAL = ("azure-code", "azure-conv", "sharegpt")
LATER = (
    "arxiv-summarization",
    "azure-conv-v2",
    "claude-code",
    "deepseek-r1",
    "mooncake-conversation",
    "mooncake-synthetic",
)


def ks_distance(sample: IntColumn, at: tuple[float, ...], quantiles: tuple[int, ...]) -> float:
    """Largest distance of the sample's distribution function from the source's at the source's quantiles.

    At an atom the source's function jumps over `at`, so what lies within the sample's own jump is no distance.
    """
    ordered, p, values = np.sort(sample), np.array(at), np.array(quantiles)
    below = np.searchsorted(ordered, values, side="left") / len(ordered)
    upto = np.searchsorted(ordered, values, side="right") / len(ordered)
    return float(np.maximum(below - p, p - upto).max())


def test_the_presets_of_the_issue_are_there() -> None:
    assert set(PRESETS) == {*EMPIRICAL, *LATER, "bus-stop"}
    assert [*PRESETS] == sorted(PRESETS)


def test_a_file_is_named_after_its_preset() -> None:
    assert all(PRESETS[name].name == name for name in PRESETS)
    assert "nothing" not in PRESETS
    with pytest.raises(KeyError):
        PRESETS["../presets/azure-conv"]


@pytest.mark.parametrize("name", [*EMPIRICAL, *LATER])
def test_the_file_names_source_licence_and_steps(name: str) -> None:
    origin = PRESETS[name].origin
    assert origin is not None
    assert origin.url.startswith("https://github.com/")
    assert len(origin.commit) == 40
    assert origin.licence in ("CC-BY-4.0", "Apache-2.0")
    assert origin.citation
    assert origin.transformations


@pytest.mark.parametrize("name", EMPIRICAL)
def test_the_grid_is_within_0_002_of_its_source(name: str) -> None:
    preset, own = PRESETS[name], PRESETS[name].own
    grid = preset.lengths
    assert isinstance(grid, JointGrid)
    assert own is not None
    assert ks_distance(grid.prompts.reshape(-1), own.at, own.prompt_quantiles) < 0.002
    assert ks_distance(grid.outputs.reshape(-1), own.at, own.output_quantiles) < 0.002


@pytest.mark.parametrize("name", [*EMPIRICAL, *LATER])
def test_the_page_has_its_percentiles_and_a_picture(name: str) -> None:
    docs = Path(__file__).parents[2] / "docs"
    page, own = (docs / "workloads.md").read_text(encoding="utf-8"), PRESETS[name].own
    assert own is not None
    for numbers in (own.prompt_tokens, own.output_tokens):
        assert f"| `{name}` | {' | '.join(f'{value:,.0f}' for value in numbers.values())} |" in page
    picture = f"presets/{name.removesuffix('-v2')}.svg"
    assert f"]({picture})" in page
    assert (docs / picture).is_file()


@pytest.mark.parametrize("name", [*EMPIRICAL, *LATER])
def test_a_sample_of_20_000_looks_like_its_source(name: str) -> None:
    own = PRESETS[name].own
    assert own is not None
    plan = build_plan(name, num_requests=20_000, seed=0, arrival="constant", max_model_len=None)
    ks = [
        ks_distance(plan.prompt_tokens, own.at, own.prompt_quantiles),
        ks_distance(plan.output_tokens, own.at, own.output_quantiles),
    ]
    rank, want = correlation(plan.prompt_tokens, plan.output_tokens)["spearman"], own.correlation["spearman"]
    print(f"{name}: KS prompt {ks[0]:.4f} output {ks[1]:.4f}, rank correlation {rank:.3f}, of the source {want}")
    assert max(ks) <= 0.03
    assert rank == pytest.approx(0.0 if want is None else want, abs=0.05)


@pytest.mark.parametrize("name", ["deepseek-r1", "claude-code", "arxiv-summarization"])
def test_a_preset_says_what_its_source_lacks(name: str) -> None:
    assert PRESETS[name].gaps is None
    assert any("arrival times" in text for text in PRESETS[name].lacks)


def test_azure_conv_v2_has_the_far_tail_and_the_old_preset_is_as_it_was() -> None:
    old, new = (
        build_plan(name, num_requests=300_000, seed=0, arrival="constant", max_model_len=None)
        for name in ("azure-conv", "azure-conv-v2")
    )
    assert old.prompt_tokens.max() == 7096
    assert new.prompt_tokens.max() == 14_050
    # 9 of 19,366 requests of the source are above azure-conv's 1 - 1/2048 quantile, and one is that of 14,050
    assert np.mean(new.prompt_tokens == 14_050) == pytest.approx(1 / 19_366, rel=0.5)
    below = old.prompt_tokens < 6_900
    assert np.array_equal(old.prompt_tokens[below], new.prompt_tokens[below])
    assert np.array_equal(old.output_tokens, new.output_tokens)


@pytest.mark.parametrize("name", EMPIRICAL)
def test_a_large_sample_looks_like_its_source(name: str) -> None:
    own = PRESETS[name].own
    assert own is not None
    plan = build_plan(name, num_requests=200_000, seed=0, arrival="constant", max_model_len=None)
    for tokens, want, quantiles in (
        (plan.prompt_tokens, own.prompt_tokens, own.prompt_quantiles),
        (plan.output_tokens, own.output_tokens, own.output_quantiles),
    ):
        assert ks_distance(tokens, own.at, quantiles) < 0.005
        got = percentiles(tokens)
        assert got["mean"] == pytest.approx(want["mean"], rel=0.01)
        for key in ("p50", "p90", "p95", "p99"):
            assert got[key] == pytest.approx(want[key], rel=0.03), key
        assert got["p99.9"] == pytest.approx(want["p99.9"], rel=0.12)
        assert got["max"] <= want["max"]
    for kind, value in correlation(plan.prompt_tokens, plan.output_tokens).items():
        assert value == pytest.approx(own.correlation[kind], abs=0.015), kind
    for batch in (8, 32):
        assert max_over_mean(plan.output_tokens, batch) == pytest.approx(own.max_over_mean[str(batch)], rel=0.02)


def test_azure_conv_keeps_its_atoms_and_its_two_humps() -> None:
    plan = build_plan("azure-conv", num_requests=100_000, seed=1, arrival="constant", max_model_len=None)
    # research numbers of the source: 5.1 % of prompts in the wall, outputs 63 % under 200 and 29 % in 350..470
    assert np.mean((plan.prompt_tokens >= 4080) & (plan.prompt_tokens <= 4145)) == pytest.approx(0.051, abs=0.004)
    assert np.mean(plan.output_tokens < 200) == pytest.approx(0.63, abs=0.01)
    assert np.mean((plan.output_tokens >= 350) & (plan.output_tokens <= 470)) == pytest.approx(0.29, abs=0.01)


def test_prompt_and_output_depend_on_each_other_as_in_the_source() -> None:
    """In azure-conv the long outputs sit at some prompt lengths: independent draws would lose that."""
    plan = build_plan("azure-conv", num_requests=100_000, seed=1, arrival="constant", max_model_len=None)
    stratum = np.searchsorted(np.quantile(plan.prompt_tokens, np.linspace(0, 1, 9)[1:-1]), plan.prompt_tokens)
    share = [float(np.mean(plan.output_tokens[stratum == k] > 300)) for k in range(8)]
    assert max(share) - min(share) > 0.3


@pytest.mark.parametrize(("name", "cv"), [("azure-conv", 1.09), ("azure-code", 13.15), ("mooncake-synthetic", 1.01)])
def test_the_arrivals_are_as_bursty_as_the_source(name: str, cv: float) -> None:
    gaps = PRESETS[name].gaps
    assert gaps is not None
    assert gaps.gaps.std() / gaps.gaps.mean() == pytest.approx(cv, rel=0.05)


def test_sharegpt_has_no_arrivals() -> None:
    assert PRESETS["sharegpt"].gaps is None


def test_bus_stop() -> None:
    assert PRESETS["bus-stop"].suggests == {"max_num_seqs": 3, "num_requests": 9}
    plan = build_plan("bus-stop", num_requests=7, seed=3, arrival="constant", max_model_len=None)
    assert plan.prompt_tokens.tolist() == [8] * 7
    assert plan.output_tokens.tolist() == [10, 50, 200, 10, 50, 200, 10]
