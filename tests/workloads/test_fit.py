"""Fits: distributions found again from samples of them, and presets without the requests they were fitted to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cbbench.cli.app import invoke
from workloads.derivation import write_preset
from workloads.errors import CbbenchError
from workloads.fit import fit_arrivals, fit_workload
from workloads.fit_lengths import fit_lengths
from workloads.length_distributions import parse_distribution
from workloads.spec import build_plan, open_workload


def sample_of(text: str, count: int = 20_000) -> np.ndarray:
    return parse_distribution(text).draw(np.random.PCG64(3).random_raw(count))


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("lognormal(median=300,sigma=0.8)", "lognormal"),
        ("0.6*lognormal(median=50,sigma=0.4)+0.4*lognormal(median=2000,sigma=0.3)", "lognormal mixture of 2"),
        ("gamma(mean=500,cv=0.5)", "gamma"),
        ("weibull(scale=800,shape=3)", "weibull"),
    ],
)
def test_the_family_that_made_a_sample_is_likelier_than_any_simpler_one(text: str, family: str) -> None:
    sample = sample_of(text)
    tried = fit_lengths(sample)
    by_name = {one.family: one for one in tried}
    # Two more parts of a mixture can follow a sample's noise, so what made it need not be first, but no worse one is.
    assert by_name[family].aic <= min(one.aic for one in tried) + 40
    simple = {"lognormal", "gamma", "weibull"} - {family}
    assert all(by_name[other].aic > by_name[family].aic + 40 for other in simple)
    again = parse_distribution(by_name[family].text).grid
    for q in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(again, q) == pytest.approx(np.quantile(sample, q), rel=0.05)


def test_parameters_of_gamma_and_weibull_are_found_again() -> None:
    gamma = next(one for one in fit_lengths(sample_of("gamma(mean=500,cv=0.5)")) if one.family == "gamma")
    numbers = dict(part.split("=") for part in gamma.text[6:-1].split(","))
    assert float(numbers["mean"]) == pytest.approx(500, rel=0.02)
    assert float(numbers["cv"]) == pytest.approx(0.5, rel=0.03)
    weibull = next(one for one in fit_lengths(sample_of("weibull(scale=800,shape=3)")) if one.family == "weibull")
    numbers = dict(part.split("=") for part in weibull.text[8:-1].split(","))
    assert float(numbers["scale"]) == pytest.approx(800, rel=0.02)
    assert float(numbers["shape"]) == pytest.approx(3, rel=0.03)


def test_equal_lengths_are_fixed() -> None:
    assert [one.text for one in fit_lengths(np.full(30, 7))] == ["fixed(7)"]


def test_arrivals_have_rate_cv_and_dispersion() -> None:
    random = np.random.default_rng(0)
    poisson = fit_arrivals(np.cumsum(random.exponential(1e5, 20_000)).astype(np.int64))
    assert poisson is not None
    assert poisson.rate_per_s == pytest.approx(10, rel=0.03)
    assert poisson.arrival == "poisson"
    assert poisson.dispersion[1.0] == pytest.approx(1, abs=0.1)
    bursty = fit_arrivals(np.cumsum(random.gamma(0.25, 4e5, 50_000)).astype(np.int64))  # CV 2
    assert bursty is not None
    assert bursty.gap_cv == pytest.approx(2, abs=0.1)
    assert bursty.dispersion[10.0] == pytest.approx(4, rel=0.25)  # CV² of a renewal process, over long windows
    assert fit_arrivals(None) is None
    assert fit_arrivals(np.zeros(5, dtype=np.int64)) is None


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """4,000 requests whose outputs depend on their prompts."""
    random = np.random.default_rng(1)
    prompts = np.rint(np.exp(random.normal(6, 1, 4000))).astype(int) + 1
    outputs = np.rint(prompts * random.uniform(0.5, 1.5, 4000)).astype(int) + 1
    at = np.cumsum(random.exponential(0.25, 4000))
    path = tmp_path / "mine.csv"
    rows = [f"{t:.6f},{p},{o}" for t, p, o in zip(at, prompts, outputs, strict=True)]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("lengths", ["grid", "distributions"])
def test_a_preset_file_is_a_workload_like_its_file(
    log: Path, tmp_path: Path, lengths: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.preset.json"
    assert invoke(["workload", "fit", str(log), "-o", str(out), "--lengths", lengths, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["prompt_tokens"]["ks"] <= 0.03
    assert numbers["output_tokens"]["ks"] <= 0.03
    assert abs(numbers["prompt_tokens"]["errors"]["p50"]) <= 0.05
    assert numbers["arrivals"]["rate_per_s"] == pytest.approx(4, rel=0.05)
    assert [Path(one).name for one in numbers["files"]] == ["mine.preset.json", "mine.svg"]
    assert (tmp_path / "mine.svg").read_text().startswith("<svg")
    plan = build_plan(str(out), num_requests=5000, seed=1, arrival="poisson", max_model_len=None)
    rank = np.corrcoef(plan.prompt_tokens.argsort().argsort(), plan.output_tokens.argsort().argsort())[0, 1]
    assert bool(rank > 0.8) is (lengths == "grid")
    assert open_workload(str(out)).preset is not None


def test_a_preset_holds_few_numbers_of_its_file_and_no_pair(log: Path) -> None:
    file = open_workload(str(log)).file
    assert file is not None
    fit = fit_workload(file, "mine")
    kept = sum(map(len, fit.preset.output_grid)) + sum(map(len, fit.preset.prompt_grid))
    assert kept <= 0.75 * len(file.lengths)
    assert fit.preset.rows == ()
    assert fit.preset.trace_gaps == ()
    assert fit.preset.origin is None


def test_refusals(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tmp_path / "few.csv"
    few.write_text("prompt_tokens,output_tokens\n" + "5,6\n" * 15)
    other = tmp_path / "other.preset.json"
    other.write_text('{"name": "x"}')
    for arguments, says in (
        (["fit", str(few)], "15 requests are too few"),
        (["fit", "azure-conv"], "not a file of requests"),
        (["fit", str(log), "-o", str(tmp_path / "mine.json")], "must end in .preset.json"),
        (["fit", str(log), "-o", str(tmp_path / "no" / "mine.preset.json")], "no such folder"),
        (["describe", str(other)], "not a preset"),
        (["describe", str(tmp_path / "none.preset.json")], "no such file"),
    ):
        assert invoke(["workload", *arguments]) == 2
        assert says in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.csv", "mine.csv", "other.preset.json"]
    few.write_text("prompt_tokens,output_tokens\n" + "5,6\n" * 20)
    file = open_workload(str(few)).file
    assert file is not None
    with pytest.raises(CbbenchError, match="grid needs at least 512"):
        fit_workload(file, "few", "grid")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"own": None}, "no statistics"),
        ({"suggests": {"output": "elsewhere"}}, "a fit has not"),
        ({"prompt_grid": [[0, 5]] * 8}, "powers of two|from 1"),
        ({"prompt_grid": [[5, 5]] * 4}, "the same strata"),
        ({"output_grid": [[5, 5, 5]] * 8}, "powers of two"),
        ({"output_grid": [[5, 5], [5]] * 4}, "inhomogeneous"),
        ({"output_grid": [[10**30]] * 8}, "not a preset"),
        ({"prompt_marginal": [4], "output_marginal": [4]}, "no prompt_distribution"),
        ({"prompt_distribution": "gaga(3)", "output_distribution": "fixed(3)"}, "unknown length distribution"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_a_preset_file_that_fit_did_not_write_is_refused(
    log: Path, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    file = open_workload(str(log)).file
    assert file is not None
    path = tmp_path / "changed.preset.json"
    write_preset(fit_workload(file, "mine").preset, path)
    open_workload(str(path))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CbbenchError, match=says):
        open_workload(str(path))


def test_lengths_of_texts_are_called_estimates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": "secret " * (at % 9 + 1), "max_tokens": 9}) + "\n" for at in range(40))
    )
    out = tmp_path / "texts.preset.json"
    assert invoke(["workload", "fit", str(path), "-o", str(out), "--no-picture"]) == 0
    assert "estimates" in capsys.readouterr().out
    assert "secret" not in out.read_text()
    assert not (tmp_path / "texts.svg").exists()


def test_compare_says_what_equal_outputs_do_to_the_gain(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["workload", "compare", "azure-conv", "prompt=fixed(512);output=fixed(128)", "-n", "200"]
    assert invoke([*arguments, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    real, equal = compared["workloads"]
    assert equal["gain"] == pytest.approx(1.0, abs=0.15)  # nothing to gain: all of a batch end together
    assert real["gain"] > 1.4
    assert compared["ks"]["output_tokens"] > 0.4
    assert invoke(arguments) == 0
    assert "gain of continuous over static batching" in capsys.readouterr().out
