"""cbbench gate: exit codes, outputs and refusals, on runs of the simulated engine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cbbench.cli.app import invoke
from cbbench.experiment.ab import Series, machine_checks
from reports.scenarios import ComparedRuns, Scenario
from reports.stored_runs import StoredRun
from reports.summary import completed_run
from tests.cbbench.conftest import Outcome
from tests.reports.factory import header, record, row

Call = Callable[..., Outcome]
SIMULATED = ("run", "--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b")
DATA = Path(__file__).parents[1] / "reports/data"
SHORT = ("--workload", "prompt=uniform(64,256);output=uniform(8,32)")


@pytest.fixture
def simulate(cbbench: Call) -> Call:
    def call(folder: str, *arguments: object) -> Outcome:
        return cbbench(*SIMULATED, *SHORT, *arguments, "-o", folder)

    return call


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 requests that hardly ever meet: enough to prove a P99."""
    folder = tmp_path_factory.mktemp("made") / "calm"
    words = (*SIMULATED, *SHORT, "--rate", "4", "--num-requests", "1000", "-o", str(folder))
    assert invoke(words) == 0
    return folder


@pytest.fixture
def calm(made_once: Path) -> str:
    shutil.copytree(made_once, "calm")
    return "calm"


# SLAs


def test_a_bound_that_holds(cbbench: Call, calm: str) -> None:
    before = Path(calm, "run.json").read_bytes()
    outcome = cbbench("gate", calm, "--sla", "p99_ttft_ms<=500", "--sla", "output_token_per_s>=10")
    assert outcome.code == 0, outcome.out
    assert outcome.out.startswith("PASS")
    assert Path(calm, "run.json").read_bytes() == before, "a gate must not change what it judges"


@pytest.mark.parametrize(
    ("sla", "code"),
    [("p99_ttft_ms<=0.001", 3), ("p999_ttft_ms<=500", 5), ("mean_tpot_ms<=1000", 0), ("failure_rate<=0.01", 0)],
)
def test_exit_codes(cbbench: Call, calm: str, sla: str, code: int) -> None:
    assert cbbench("gate", calm, "--sla", sla).code == code


ONE_TOKEN = ("--workload", "prompt=uniform(16,64);output=fixed(1)", "--num-requests", 40)


def test_what_cannot_be_measured_is_inconclusive_on_every_path(cbbench: Call) -> None:
    """No answer of one token has a TPOT: it is not missed (3) and not met (0)."""
    work = (*SIMULATED[1:], *ONE_TOKEN)
    bound = ("--sla", "p99_tpot_ms<=50")
    assert cbbench("run", *work, *bound, "-o", "one").code == 5
    assert cbbench("gate", "one").code == 5
    swept = cbbench("sweep", "max-num-seqs", "--values", "1,4", *work, *bound, "-o", "swept")
    assert swept.code == 5
    assert "Inconclusive whether a setting meets the SLA: p99_tpot_ms: nothing was measured" in " ".join(
        swept.out.split()
    )
    other = ("sweep", "num-requests", "--values", "10,20", *work[:-2], *bound, "-o", "other")
    assert cbbench(*other).code == 5
    tuned = cbbench("tune", *work, *bound, "-o", "tuned")
    assert tuned.code == 5
    assert "Not judged, as a bound was not measured" in tuned.out
    assert len(list(Path("tuned/explore").iterdir())) == 1, "no other setting can show it either"
    missed = ("--sla", "p99_ttft_ms<=0.001")
    assert cbbench("sweep", "max-num-seqs", "--values", "1,4", *work, *bound, *missed, "-o", "late").code == 3


def test_a_budget_for_what_cannot_be_measured_is_inconclusive(cbbench: Call) -> None:
    for name in ("before", "after"):
        cbbench(*SIMULATED, *ONE_TOKEN, "-o", name)
    compared = ("gate", "after", "--baseline", "before")
    assert cbbench(*compared, "--budget", "tpot=3%").code == 5
    by_default = cbbench(*compared)
    assert by_default.code == 0
    assert "tpot" not in by_default.out, "to the bit is all there is to ask"


MIXED = ("--sla", "p999_ttft_ms<=500", "--sla", "p99_ttft_ms<=0.001")


def test_failed_outranks_inconclusive_and_every_output_tells_them_apart(
    cbbench: Call, calm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 5 invites another try. A bound that has failed for good is not hidden by one that is open."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    outcome = cbbench("gate", calm, *MIXED, "--junit", "junit.xml", "--github")
    assert outcome.code == 3
    told = "Failed: p99_ttft_sched_ms <= 0.001. Inconclusive: p999_ttft_sched_ms <= 500."
    assert outcome.out.splitlines()[0].split() == ["FAIL", "1", "fail,", "1", "inconclusive"]
    assert outcome.out.splitlines()[1].rstrip() == told
    failed, still_open = [line for line in outcome.err.splitlines() if line.startswith("::")]
    assert failed.startswith("::error title=p99_ttft_sched_ms <= 0.001%3A fail::")
    assert still_open.startswith("::error title=p999_ttft_sched_ms <= 500%3A inconclusive::")
    assert told.replace("<", "&lt;") in Path("summary.md").read_text()
    (suite,) = ElementTree.parse("junit.xml").getroot()
    ends = {case.get("name"): next(child for child in case if child.tag != "properties") for case in suite}
    assert ends["p99_ttft_sched_ms <= 0.001"].tag == "failure"
    assert ends["p999_ttft_sched_ms <= 500"].tag == "skipped"
    assert str(ends["p999_ttft_sched_ms <= 500"].get("message")).startswith("inconclusive: ")
    assert json.loads(cbbench("gate", calm, *MIXED, "--json").out)["verdict"] == "fail"
    assert cbbench("gate", calm, *MIXED[:2]).code == 5
    shutil.copytree(calm, "other")
    of_two = " ".join(cbbench("gate", calm, "other", *MIXED).out.split())
    assert f"p99_ttft_sched_ms <= 0.001 ({calm}), p99_ttft_sched_ms <= 0.001 (other). Inconclusive:" in of_two


def test_a_run_tells_what_failed_and_what_is_open(cbbench: Call, simulate: Call) -> None:
    told = "Failed: p99_ttft_ms<=0.001. Inconclusive: p999_ttft_ms<=500."
    run = simulate("both", "--rate", 4, "--num-requests", 50, *MIXED)
    assert run.code == 3
    assert told in " ".join(run.out.split()).split("output tok/s")[0]
    page = cbbench("report", "both", "--format", "md").out
    assert f"**{told.replace('<', '&lt;')}**" in page
    assert "Failed:" not in simulate("failed", "--rate", 4, "--num-requests", 50, *MIXED[2:]).out


def test_too_few_requests_say_how_many_it_takes(cbbench: Call, simulate: Call) -> None:
    simulate("few", "--rate", 4, "--num-requests", 50)
    outcome = cbbench("gate", "few", "--sla", "p99_ttft_ms<=500", "--json")
    assert outcome.code == 5
    (check,) = json.loads(outcome.out)["checks"]
    assert check["verdict"] == "inconclusive"
    assert "at least 299 requests" in check["reason"]


def test_the_runs_own_sla_is_the_default(cbbench: Call, simulate: Call) -> None:
    simulate("own", "--num-requests", 20, "--sla", "p99_ttft_ms<=0.001")
    assert cbbench("gate", "own").code == 3
    assert cbbench("gate", "own", "--sla", "mean_ttft_ms<=100000").code != 3


def test_an_mlperf_preset(cbbench: Call, calm: str) -> None:
    outcome = cbbench("gate", calm, "--sla", "mlperf:llama2-70b-interactive", "--json")
    result = json.loads(outcome.out)
    assert [(one["metric"], one["limit"]) for one in result["checks"]] == [
        ("p99_ttft_sched_ms", "<= 450"),
        ("p99_tpot_ms", "<= 40"),
    ]
    arrived, lacks = result["notes"]
    assert "600 s" in lacks
    assert "3.817 requests/s arrived, as its plan realised the rate of 4" in arrived
    failed = cbbench("gate", calm, "--sla", "mlperf:llama2-70b-interaktive")
    assert failed.code == 2
    assert "mlperf:llama2-70b-interactive" in failed.error_line


def test_an_overloaded_run_proves_no_latency(cbbench: Call, simulate: Call) -> None:
    simulate("over", "--rate", 400, "--num-requests", 300, "--max-num-seqs", 4)
    outcome = cbbench("gate", "over", "--sla", "p50_ttft_ms<=1000000", "--benchmark-json", "bench.json", "--json")
    assert outcome.code == 5
    (check,) = json.loads(outcome.out)["checks"]
    assert check["verdict"] == "inconclusive"
    assert "arrivals outran completions" in check["context"][0]
    assert check["value"] is None, "a percentile of it would only say how long the run was"
    named = {one["name"] for one in json.loads(Path("bench.json").read_text())}
    assert "over: p99 tpot" in named
    assert "over: p99 ttft" not in named
    failed = cbbench("gate", "over", "--sla", "p99_ttft_ms<=1", "--json")
    assert failed.code == 3, "it does not meet the bound, and would less if it ran longer"
    assert "overloaded" in json.loads(failed.out)["checks"][0]["context"][0]
    assert cbbench("gate", "over", "--sla", "output_token_per_s>=1").code == 0, "a rate it can show"
    compared = json.loads(cbbench("gate", "over", "--baseline", "over", "--budget", "ttft=5%", "--json").out)
    assert compared["exit_code"] == 0, "equal to the bit all the same"


def test_a_run_that_was_cut_short_proves_nothing(cbbench: Call, calm: str) -> None:
    run = json.loads(Path(calm, "run.json").read_text())
    Path(calm, "run.json").write_text(json.dumps(run | {"summary": None}))  # as after a crash
    outcome = cbbench("gate", calm, "--sla", "p99_ttft_ms<=500", "--json")
    assert outcome.code == 5
    assert "interrupted" in json.loads(outcome.out)["checks"][0]["reason"]


def test_a_load_in_which_all_fails_is_invalid(cbbench: Call, calm: str) -> None:
    lines = Path(calm, "requests.jsonl").read_text().replace('"status":"completed"', '"status":"failed"')
    Path(calm, "requests.jsonl").write_text(lines)
    assert cbbench("gate", calm, "--sla", "p99_ttft_ms<=500").code == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "--sla", "p99_ttft_ms<=5"), "nowhere"),
        (("calm",), "--sla or --baseline"),
        (("calm", "--sla", "p99_tftt_ms<=5"), "p99_ttft_ms"),
        (("calm", "--sla", "p99_ttft_ms<=5", "--confidence", 1), "--confidence"),
    ],
)
def test_usage_errors(cbbench: Call, calm: str, arguments: tuple[object, ...], said: str) -> None:
    outcome = cbbench("gate", *arguments)
    assert outcome.code == 2
    assert said in outcome.error_line


# Outputs


def test_what_an_overloaded_run_measured_is_shown_below_what_it_was(cbbench: Call, simulate: Call) -> None:
    run = simulate("swamped", *OVERLOADED, "--sla", "p99_ttft_ms<=1")
    page = cbbench("report", "swamped", "--format", "md").out
    for shown, number in ((run.out, "FAIL  p99_ttft_ms<=1"), (page, "| P99 TTFT |")):
        assert shown.lower().index("arrivals outran") < shown.index(number), "which is a number of this run alone"


OVERLOADED = ("--rate", 400, "--num-requests", 300, "--max-num-seqs", 2)


def test_a_reason_of_several_metrics_is_said_once(cbbench: Call, simulate: Call) -> None:
    simulate("swamped", *OVERLOADED)
    out = cbbench("gate", "swamped", "--sla", "p99_ttft_ms<=1", "--sla", "p99_e2el_ms<=1").out
    assert out.count("arrivals outran completions") == 1
    assert "p99_ttft_sched_ms, p99_e2el_sched_ms: overloaded" in " ".join(out.split())


def test_a_failure_in_junit_carries_the_change_and_all_of_its_reason(cbbench: Call, simulate: Call) -> None:
    simulate("quick", "--rate", 4, "--num-requests", 60)
    simulate("slow", "--rate", 4, "--num-requests", 80, "--max-num-batched-tokens", 64, "--max-num-seqs", 16)
    budget = ("--budget", "ttft=1%", "--allow-different")
    outcome = cbbench("gate", "slow", "--baseline", "quick", *budget, "--junit", "junit.xml")
    assert outcome.code == 4, outcome.out
    (failure,) = ElementTree.parse("junit.xml").getroot().iter("failure")
    message = str(failure.get("message"))
    assert message.startswith("+")
    assert " %" in message.split(": ")[0]
    assert message.endswith("; the workloads differ)")
    words = " ".join(outcome.out.split())
    assert "60 requests, seed 0 (" in words, "what told the two workloads apart"
    assert "80 requests, seed 0 (" in words


def test_junit_has_a_case_per_metric_and_skips_what_it_cannot_tell(cbbench: Call, calm: str) -> None:
    slas = ("p99_ttft_ms<=500", "p99_ttft_ms<=0.001", "p999_ttft_ms<=500")
    cbbench("gate", calm, *(word for sla in slas for word in ("--sla", sla)), "--junit", "out/junit.xml")
    (suite,) = ElementTree.parse("out/junit.xml").getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (calm, "3", "1", "1")
    ends = [next(child.tag for child in case if child.tag != "properties") for case in suite]
    assert ends == ["system-out", "failure", "skipped"]


def test_github(cbbench: Call, calm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("before\n")
    outcome = cbbench("gate", calm, "--sla", "p99_ttft_ms<=0.001", "--github", "--json")
    json.loads(outcome.out)
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("::")]
    assert line.startswith("::error title=p99_ttft_sched_ms <= 0.001%3A fail::")
    summary = Path("summary.md").read_text()
    assert summary.startswith("before\n### cbbench gate: ❌ fail")
    assert "| ❌ fail | calm | `p99_ttft_sched_ms` |" in summary


def test_benchmark_json(cbbench: Call, calm: str) -> None:
    cbbench("gate", calm, "--sla", "mean_ttft_ms<=1000", "--benchmark-json", "bench.json")
    entries = {one["name"]: one for one in json.loads(Path("bench.json").read_text())}
    run = json.loads(Path(calm, "run.json").read_text())["summary"]
    assert entries["calm: p99 tpot"] == {
        "name": "calm: p99 tpot",
        "unit": "ms",
        "value": run["latency"]["tpot_ms"]["p99"],
    }
    rate = run["throughput"]["output_token_per_s"]
    assert entries["calm: time per 1,000 output tokens"]["value"] == pytest.approx(1000 / rate)


# Against a baseline


@pytest.fixture
def twins(simulate: Call) -> tuple[str, str]:
    for folder in ("old", "new"):
        simulate(folder, "--rate", 30, "--num-requests", 60)
    return "old", "new"


def test_simulated_runs_are_equal_to_the_bit(cbbench: Call, twins: tuple[str, str]) -> None:
    outcome = cbbench("gate", "new", "--baseline", "old", "--json")
    assert outcome.code == 0
    checks = {one["metric"]: one for one in json.loads(outcome.out)["checks"]}
    assert checks["bit-equal"]["verdict"] == "pass"
    assert checks["mean_tpot_ms"]["change"] == 0


def test_a_smaller_pool_is_a_regression_to_the_step(cbbench: Call, simulate: Call, twins: tuple[str, str]) -> None:
    simulate("tight", "--rate", 30, "--num-requests", 60, "--max-num-seqs", 2)
    outcome = cbbench("gate", "tight", "--baseline", "old", "--junit", "junit.xml")
    assert outcome.code == 4
    assert "requests differ, first request" in outcome.out.replace("\n", " ")
    assert "max_num_seqs 32 → 2" in outcome.out.replace("\n", " ")
    assert cbbench("gate", "tight", "--baseline", "old", "--budget", "tpot=99%").code == 0, "it only waits longer"
    assert cbbench("gate", "old", "--baseline", "tight", "--budget", "e2el=1%").code == 0, "better is no regression"


def test_other_work_is_refused_or_said(cbbench: Call, simulate: Call, twins: tuple[str, str]) -> None:
    simulate("other", "--rate", 30, "--num-requests", 60, "--seed", 1)
    outcome = cbbench("gate", "other", "--baseline", "old")
    assert outcome.code == 2
    assert "--allow-different" in outcome.error_line
    assert "seed 0" in outcome.error_line
    allowed = cbbench("gate", "other", "--baseline", "old", "--allow-different", "--json")
    result = json.loads(allowed.out)
    assert all("the workloads differ" in one["context"] for one in result["checks"] if one["metric"].endswith("_ms"))
    assert any("did other work" in note for note in result["notes"])


def test_a_folder_of_runs_is_all_of_them(cbbench: Call, simulate: Call) -> None:
    for side in ("base", "cand"):
        for seed in (1, 2):
            simulate(f"{side}/{seed}", "--num-requests", 20, "--seed", seed)
    outcome = cbbench("gate", "cand", "--baseline", "base", "--json")
    assert outcome.code == 0
    assert {one["scenario"] for one in json.loads(outcome.out)["checks"]} == {"cand/1", "cand/2"}
    assert cbbench("gate", "cand", "--baseline", "base/1", "--baseline", "base/2", "--baseline", "base/1").code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--baseline", "old", "--budget", "tpt=3%"), "--budget"),
        (("--budget", "tpot=3%"), "--baseline"),
        (("--sla", "mean_ttft_ms<=1", "--allow-different"), "--baseline"),
        (("--baseline", "nowhere"), "nowhere"),
    ],
)
def test_bad_comparisons(cbbench: Call, twins: tuple[str, str], arguments: tuple[str, ...], said: str) -> None:
    outcome = cbbench("gate", "new", *arguments)
    assert outcome.code == 2
    assert said in outcome.error_line


# compare


SETTINGS = shlex.join([*SIMULATED[1:], *SHORT, "--num-requests", "40"])


def test_compare_in_detail(cbbench: Call, simulate: Call) -> None:
    simulate("wide", "--rate", 60, "--num-requests", 40)
    simulate("narrow", "--rate", 60, "--num-requests", 40, "--max-num-seqs", 2)
    out = cbbench("compare", "wide", "narrow").out
    assert "max_num_seqs 32 → 2" in out
    assert "work: the same" in out
    assert "mean_e2el_sched_ms" in out
    (at,) = [number for number, line in enumerate(out.splitlines()) if "Requests that changed most" in line]
    rows = out.splitlines()[at + 2 :]
    assert len(rows) == 10
    assert all("→" in row for row in rows)


def test_compare_of_other_work_shows_no_changes(cbbench: Call, simulate: Call) -> None:
    simulate("one", "--num-requests", 10)
    simulate("two", "--num-requests", 10, "--seed", 1)
    out = cbbench("compare", "one", "two").out
    assert "seed 0" in out
    assert "Requests that changed most" not in out


def test_one_run_is_none_to_compare(cbbench: Call, simulate: Call) -> None:
    simulate("only", "--num-requests", 10)
    assert "two runs or more" in cbbench("compare", "only").error_line


def test_results_of_other_tools_are_compared_as_far_as_they_go(cbbench: Call) -> None:
    aiperf, guidellm = DATA / "aiperf-0.13.0", DATA / "guidellm-0.8.1.json"
    outcome = cbbench("compare", guidellm, aiperf)
    assert outcome.code == 0
    assert "tool guidellm 0.8.1 → aiperf 0.13.0" in outcome.out
    assert "mean_tpot_ms" in outcome.out
    assert "Requests that changed most" not in outcome.out, "it is unknown whether they are the same"
    assert "taken as TPOT" in outcome.err
    refused = cbbench("gate", aiperf, "--baseline", guidellm)
    assert refused.code == 2
    assert "--allow-different" in refused.error_line
    allowed = json.loads(cbbench("gate", aiperf, "--baseline", guidellm, "--allow-different", "--json").out)
    assert allowed["exit_code"] == 5
    assert any("taken as TPOT" in note for note in allowed["notes"])


def test_a_gate_on_percentiles_alone_never_passes_one(cbbench: Call, tmp_path: Path) -> None:
    shutil.copy(DATA / "aiperf-0.13.0/profile_export_aiperf.json", "summary.json")
    assert cbbench("gate", "summary.json", "--sla", "p99_ttft_ms<=1000").code == 5
    assert cbbench("gate", "summary.json", "--sla", "p99_ttft_ms<=1").code == 5, "nor fails"
    outcome = cbbench("gate", "summary.json", "--baseline", "summary.json", "--allow-different", "--json")
    checks = {one["metric"]: one for one in json.loads(outcome.out)["checks"]}
    assert checks["p50_ttft_ms"]["verdict"] == "pass", "the same point, which is all there is"
    assert "no interval" in checks["p50_ttft_ms"]["reason"]


def test_ab_measures_in_turns_and_fails_what_is_slower(cbbench: Call) -> None:
    outputs = ("--junit", "ab.xml", "--github", "--benchmark-json", "b.json")
    smaller = "--max-num-seqs 2 --max-num-batched-tokens 4096 --max-prompt-chunk 1024"
    outcome = cbbench(
        "compare", "--ab", SETTINGS, f"{SETTINGS} {smaller}", "--pairs", 3, "-o", "ab", "--json", *outputs
    )
    assert outcome.code == 4
    result = json.loads(outcome.out)
    e2el = next(one for one in result["checks"] if one["metric"] == "mean_e2el_ms")
    assert e2el["verdict"] == "fail"
    assert e2el["interval"][0] > 0.05
    told = "max_num_seqs 32 → 2; max_num_batched_tokens 8192 → 4096; max_prompt_chunk default → 1024"
    assert result["notes"][0] == f"B differs from A: {told}"
    runs = [json.loads(Path("ab", side, pair, "run.json").read_text()) for pair in ("01", "02") for side in "ab"]
    hashes = [run["workload"]["sha256"] for run in runs]
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]
    (suite,) = ElementTree.parse("ab.xml").getroot()
    assert (suite.get("name"), int(suite.get("failures") or 0) > 0) == ("A and B", True)
    assert any(line.startswith("::error title=mean_e2el_ms") for line in outcome.err.splitlines())
    assert {one["name"].partition(":")[0] for one in json.loads(Path("b.json").read_text())} == {
        "ab/b/01", "ab/b/02", "ab/b/03"
    }  # fmt: skip


def test_aa_of_the_simulator_repeats_itself(cbbench: Call) -> None:
    outcome = cbbench("compare", "--aa", SETTINGS, "--pairs", 2, "-o", "aa")
    assert outcome.code == 0
    assert cbbench("gate", "aa/b", "--baseline", "aa/a").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "two or more runs"),
        (("nowhere",), "nowhere"),
        (("--ab", "--json", ""), "--json"),
        (("--ab", "--engine simulatd", ""), "simulated"),
        (("--ab", "--no-such-flag", ""), "--no-such-flag"),
        (("--aa", "--workload 'bus-stop"), "CONFIG: no closing quotation"),
        (("a", "b", "--pairs", 3), "--pairs"),
        (("--aa", "", "--budget", "tpot"), "--budget"),
    ],
)
def test_bad_compare(cbbench: Call, arguments: tuple[object, ...], said: str) -> None:
    outcome = cbbench("compare", *arguments)
    assert outcome.code == 2
    assert said in outcome.error_line


def test_a_machine_that_wobbles_is_unfit() -> None:
    def run(name: str, tpot_ms: float) -> StoredRun:
        made = record([row(i, [50 * i + k * tpot_ms for k in range(5)], scheduled_ms=50 * i) for i in range(20)])
        return StoredRun(name, completed_run(made, header()), made)

    def checks(*tpots_ms: tuple[float, float]) -> list[str]:
        pairs = tuple(ComparedRuns(run(f"a{at}", a), run(f"b{at}", b)) for at, (a, b) in enumerate(tpots_ms))
        series = Series({}, {}, pairs=len(pairs), budget=("tpot=3%",), same=True)
        return [one.verdict for one in machine_checks(Scenario("A and A", pairs), series, 0.95)]

    assert checks((20, 20.1), (20, 19.9), (20, 20.05)) == ["pass"]
    assert checks((20, 22), (20, 19), (20, 20)) == ["inconclusive"]
    assert checks((20, 18), (20, 18.01), (20, 18)) == ["inconclusive"], "faster is unfit as well"


# The action


ACTION = Path(__file__).parents[2] / ".ci/github/action.yml"


@pytest.mark.parametrize(("sla", "code"), [("p99_ttft_ms<=500 failure_rate<=0.01", 0), ("p99_ttft_ms<=0.001", 3)])
def test_the_action_runs_as_a_script(calm: str, tmp_path: Path, sla: str, code: int) -> None:
    script = textwrap.dedent(ACTION.read_text().partition("      run: |\n")[2])
    given = {"RUNS": calm, "BASELINE": "", "SLA": sla, "BUDGET": "", "JUNIT": "junit.xml"}
    own = {"GITHUB_STEP_SUMMARY": "summary.md", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=os.environ | given | own, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("::error" in done.stderr) == (code != 0)
    assert "cbbench gate" in Path("summary.md").read_text()
    assert ElementTree.parse("junit.xml").getroot().get("name") == "cbbench gate"


# Model-assisted


@pytest.mark.slow
def test_a_model_assisted_verdict_is_labelled_in_every_output(
    cbbench: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The label is part of the metric's name wherever a verdict is shown. Without the flag there is none."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    cbbench(*SIMULATED, *SHORT, "--rate", 40, "--num-requests", 300, "--max-num-seqs", 8, "-o", "run")
    bounds = ("--sla", "p99_ttft_ms<=1000", "--sla", "p99_tpot_ms<=0.001", "--sla", "output_token_per_s>=10")
    outcome = cbbench("gate", "run", *bounds, "--assist", "--junit", "junit.xml", "--github")
    assert outcome.code == 3, outcome.out
    label = "p99_ttft_sched_ms (model-assisted)"
    junit = ElementTree.parse("junit.xml")
    names = [case.get("name") for case in junit.iter("testcase")]
    assert names[0] == f"{label} <= 1000"
    assert names[1:] == ["p99_tpot_ms (model-assisted) <= 0.001", "output_token_per_s >= 10"]
    assert label in outcome.out
    assert "(model-assisted)" in outcome.err
    assert label in (tmp_path / "summary.md").read_text()
    found = json.loads(cbbench("gate", "run", *bounds, "--assist", "--json").out)["checks"]
    assert [one["method"] for one in found] == ["model-assisted", "model-assisted", None]
    plain = json.loads(cbbench("gate", "run", *bounds, "--json").out)["checks"]
    assert {one["method"] for one in plain} == {None}


def test_what_cannot_be_assisted_is_refused_in_words(cbbench: Call, calm: str) -> None:
    bound = ("--sla", "p99_ttft_ms<=500", "--assist")
    assert "of all requests: no such SLA" in cbbench("gate", calm, "--assist", "--sla", "failure_rate<=0.01").error_line
    path = Path(calm, "run.json")
    run = json.loads(path.read_text())
    changes = {
        "a server shows no steps": {"engine": {**run["engine"], "kind": "openai"}},
        "more requests are another load": {
            "workload": {**run["workload"], "pacing": {**run["workload"]["pacing"], "rate_per_s": None}}
        },
        "its plan cannot be built again": {"workload": {**run["workload"], "seed": 1}},
    }
    for reason, change in changes.items():
        path.write_text(json.dumps({**run, **change}))
        outcome = cbbench("gate", calm, *bound)
        assert outcome.code == 2
        assert reason in outcome.error_line
