"""cbbench workload, through the whole command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cbbench.cli.app import invoke
from workloads.spec import build_plan


def out_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert invoke(["workload", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    text = out_of(capsys, "list")
    for word in ("azure-conv", "azure-code", "sharegpt", "bus-stop", "CC-BY-4.0", "1,155 in and 211 out"):
        assert word in text


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in json.loads(out_of(capsys, "list", "--json"))}
    assert rows["azure-conv"]["licence"] == "CC-BY-4.0"
    assert rows["azure-conv"]["mean"]["output_tokens"] == pytest.approx(211.1, abs=0.1)
    assert rows["bus-stop"]["suggests"]["max_num_seqs"] == 3


def test_describe_shows_source_percentiles_and_histogram(capsys: pytest.CaptureFixture[str]) -> None:
    text = out_of(capsys, "describe", "azure-conv", "--max-model-len", "4096")
    for word in ("Splitwise", "CC-BY-4.0", "b469a113", "p99.9", "longest of 32 outputs", "█", "passed 4096 tokens"):
        assert word in text
    median = next(line for line in text.splitlines() if line.strip().startswith("p50"))
    assert median.split()[1] == "1,020"
    assert max(len(line) for line in text.splitlines() if "█" in line) <= 80


def test_describe_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    got = json.loads(out_of(capsys, "describe", "azure-conv", "--pairs", "5000", "--seed", "1", "--json"))
    plan = build_plan("azure-conv", num_requests=5000, seed=1, arrival="constant", max_model_len=None)
    assert got["sample"]["output_tokens"]["p90"] == np.percentile(plan.output_tokens, 90)
    assert got["own"]["output_tokens"]["p90"] == 424
    assert got["own"]["max_over_mean"]["8"] == pytest.approx(2.16, abs=0.01)
    assert got["notes"]["licence"] == "CC-BY-4.0"


@pytest.mark.parametrize(
    "spec", ["bus-stop", "prompt=fixed(7);output=exponential(mean=50)", "prompt=fixed(7);output=fixed(1)"]
)
def test_describe_takes_any_spec(capsys: pytest.CaptureFixture[str], spec: str) -> None:
    assert "p99" in out_of(capsys, "describe", spec)
    assert json.loads(out_of(capsys, "describe", spec, "--json"))["own"]["prompt_tokens"]["max"] in (7, 8)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_sample_is_a_workload_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str) -> None:
    path = tmp_path / f"sample.{form}"
    path.write_text(
        out_of(capsys, "sample", "azure-code", "-n", "20", "--seed", "4", "--format", form), encoding="utf-8"
    )
    drawn = build_plan("azure-code", num_requests=20, seed=4, arrival="poisson", max_model_len=None)
    read = build_plan(str(path), num_requests=20, seed=4, arrival="poisson", max_model_len=None)
    assert read.sha256 == drawn.sha256


def test_a_sample_of_a_file_keeps_tenant_and_priority(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "prompt_tokens,output_tokens,tenant,priority\n5,6,acme,0\n7,8,zenith,2\n"
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    assert out_of(capsys, "sample", str(path), "-n", "2", "--format", "csv") == text


def test_describe_tells_the_arrivals_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,arrival_s\n5,6,0\n5,6,1\n5,6,4\n", encoding="utf-8")
    assert "arrivals: 0.5 requests/s, CV of the gaps 0.41 (1: Poisson)" in out_of(capsys, "describe", str(path))
    assert json.loads(out_of(capsys, "describe", "sharegpt", "--pairs", "10", "--json"))["arrivals"] is None


def test_a_sample_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = out_of(capsys, "sample", "bus-stop", "-n", "2").splitlines()
    assert [line.split() for line in lines if line.strip()[:1].isdigit()] == [["0", "8", "10"], ["1", "8", "50"]]


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe", "azure-con"),
        ("sample", "nowhere.csv"),
        ("sample", "prompt=fixed(x);output=fixed(1)"),
        ("sample", "azure-conv", "-n", "0"),
        ("describe", "bus-stop", "--max-model-len", "100"),
        ("sample", "azure-conv", "--format", "xml"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert invoke(["workload", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_the_module_and_the_error_load_neither_numpy_nor_rich_tables() -> None:
    code = (
        "import sys; import cbbench.cli.workload, workloads.errors; "
        "print([name for name in ('numpy', 'scipy', 'rich.table', 'torch', 'workloads.spec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
