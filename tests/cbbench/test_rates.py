"""--rate with stages through the whole command line: the plan stays, the reports show the stages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from cbbench.experiment.campaign import schedule_s
from cbbench.settings.build import build_settings
from reports.folder import read_record, read_run
from tests.cbbench.conftest import Outcome
from tests.wire.fake import FakeServer

Call = Callable[..., Outcome]
SIMULATED = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b")
STAGES = "2 for 20s, 10 for 20s, 2 for 20s"


def run_json(folder: str) -> Any:
    return json.loads((Path(folder) / "run.json").read_text())


def test_a_run_in_stages(cbbench: Call) -> None:
    outcome = cbbench("run", *SIMULATED, "--rate", STAGES, "-o", "out")
    assert outcome.code == 0, outcome.err
    run = read_run(Path("out"))
    assert run.workload.num_requests == 2 * 20 + 10 * 20 + 2 * 20, "as many as the stages hold"
    assert run.workload.pacing.rate_schedule == STAGES
    assert run.workload.pacing.rate_per_s == pytest.approx(280 / 60)
    assert run.workload.pacing.open_loop
    assert run.summary is not None
    stages = run.summary.by_stage
    assert list(stages)[:3] == ["1: 2 for 20s", "2: 10 for 20s", "3: 2 for 20s"]
    scheduled_s, ended_s = (read_record(Path("out")).column_ns(name) / 1e9 for name in ("scheduled", "end"))
    counts, ended = (np.histogram(at_s, [0, 20, 40, 60])[0].tolist() for at_s in (scheduled_s, ended_s))
    assert [one.requests for one in list(stages.values())[:3]] == counts
    assert counts[1] > 2 * max(counts[0], counts[2])
    middle = stages["2: 10 for 20s"]
    assert middle.request_per_s == pytest.approx(ended[1] / 20), (
        "what ended in the stage, over the stage, not over the run"
    )
    assert "2: 10 for 20s" in outcome.out, "in one piece"
    assert "done/s and tok/s count what ended while it lasted" in " ".join(outcome.out.split())
    assert middle.asked_request_per_s == pytest.approx(counts[1] / 20)


def test_the_plan_and_its_hash_are_those_of_any_rate(cbbench: Call) -> None:
    for name, rate in (("a", "2..20 for 10s"), ("b", "5"), ("c", "5 for 1000s, 5")):
        assert cbbench("run", *SIMULATED, "--num-requests", 50, "--rate", rate, "-o", name).code == 0
    a, b, c = (run_json(name) for name in "abc")
    assert a["workload"]["sha256"] == b["workload"]["sha256"] == c["workload"]["sha256"]
    assert a["summary"]["latency"] != b["summary"]["latency"]
    assert b["summary"]["latency"] == c["summary"]["latency"], "a rate that does not change is a constant one"


def test_the_same_to_the_bit_again(cbbench: Call) -> None:
    for name in "ab":
        assert cbbench("run", *SIMULATED, "--rate", "0..8 for 30s", "--arrival", "gamma:2", "-o", name).code == 0
    assert Path("a/requests.jsonl").read_bytes() == Path("b/requests.jsonl").read_bytes()


def test_in_the_file_of_settings_and_in_a_sweep_of_something_else(cbbench: Call) -> None:
    Path("cbbench.toml").write_text('rate = "4 for 10s, 8 for 10s"\n')
    outcome = cbbench("sweep", "max-num-seqs", "--values", "8,32", *SIMULATED, "-o", "out")
    assert outcome.code == 0, outcome.err
    pacings = [read_run(Path("out") / f"max-num-seqs-{slots}").workload for slots in (8, 32)]
    assert {one.pacing.rate_schedule for one in pacings} == {"4 for 10s, 8 for 10s"}
    assert {one.num_requests for one in pacings} == {120}
    Path("cbbench.toml").write_text("rate = 4\n")
    assert cbbench("run", *SIMULATED, "-o", "plain").code == 0
    assert run_json("plain")["workload"]["pacing"]["rate_per_s"] == 4
    assert run_json("plain")["workload"]["pacing"]["rate_schedule"] is None


def test_an_sla_on_a_stage(cbbench: Call) -> None:
    assert cbbench("run", *SIMULATED, "--rate", "4 for 40s, 2 for 5s", "-o", "out").code == 0
    sla = ("p50_ttft_ms[stage=1]<=1000", "p50_ttft_ms[stage=2]<=0.001")
    outcome = cbbench("gate", "out", *(word for one in sla for word in ("--sla", one)), "--junit", "junit.xml")
    assert outcome.code == 3, outcome.out
    first, second = ElementTree.parse("junit.xml").getroot().iter("testcase")
    assert (first.get("name"), first.find("failure")) == ("p50_ttft_sched_ms[stage=1] <= 1000", None)
    assert second.get("name") == "p50_ttft_sched_ms[stage=2] <= 0.001"
    assert second.find("failure") is not None
    for command in (("gate", "out"), ("run", *SIMULATED, "--rate", "4 for 40s, 2 for 5s")):
        unknown = cbbench(*command, "--sla", "p99_ttft_ms[stage=9]<=500")
        assert unknown.code == 2
        assert unknown.error_line.endswith("no such stage; there are 1 (4 for 40s), 2 (2 for 5s), then (2)")
    plain = cbbench("run", *SIMULATED, "--rate", "20", "--sla", "p99_ttft_ms[stage=1]<=500")
    assert plain.code == 2
    assert "the rate has no stages" in plain.error_line


def test_against_a_server(cbbench: Call) -> None:
    with FakeServer() as server:
        outcome = cbbench(
            "run", "--url", server.url, "--workload", "prompt=fixed(8);output=fixed(2)", "--warmup", 0, "--no-scrape",
            "--rate", "20 for 0.5s, 60 for 0.5s", "--arrival", "constant", "-o", "out",
        )  # fmt: skip
    assert outcome.code in (0, 5), outcome.err  # 5: this machine did other work meanwhile
    summary = read_run(Path("out")).summary
    assert summary is not None
    # A stage has what is due before its end, and 30 + 10 of 40 come in their time.
    assert {name: one.requests for name, one in summary.by_stage.items()} == {
        "1: 20 for 0.5s": 10,
        "2: 60 for 0.5s": 30,
    }


def test_tenants_have_stages_too(cbbench: Call) -> None:
    tenants = ("--tenants", "a:weight=3;b", "--workload", "prompt=fixed(64);output=fixed(8)")
    assert cbbench("run", *SIMULATED, *tenants, "--rate", "4 for 10s, 8 for 10s", "-o", "out").code == 0
    assert read_run(Path("out")).workload.num_requests == 120


def test_too_few_requests_for_the_last_stage_are_told(cbbench: Call) -> None:
    outcome = cbbench("run", *SIMULATED, "--rate", "2 for 60s, 10", "-o", "out")
    assert "the last stage of the rate, 10, begins at 60 s, after the last request: " in outcome.err
    assert "it takes about 121 requests" in outcome.err
    many = cbbench("run", *SIMULATED, "--rate", "20 for 100s, 10", "-o", "many")
    assert "it takes about 2001 requests" in many.err, "as the flag takes it"
    short = cbbench("run", *SIMULATED, "--rate", STAGES, "--duration", 30, "-o", "short")
    assert "2 for 20s, begins at 40 s, after the last request: a longer duration" in short.err
    assert "begins at" not in cbbench("run", *SIMULATED, "--rate", STAGES, "-o", "whole").err


def test_a_report_names_them(cbbench: Call) -> None:
    assert cbbench("run", *SIMULATED, "--rate", STAGES, "-o", "out").code == 0
    report = cbbench("report", "out", "--format", "md")
    assert report.code == 0, report.err
    assert "2: 10 for 20s" in report.out
    assert STAGES in report.out


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ("fast", "cannot read 'fast'"),
        ("2 for 60", "cannot read '2 for 60'"),
        ("2..8", "must say how long it takes"),
        ("2 for 60s, 0", "must be above 0"),
        ("nan", "must be a number >= 1e-06, got 'nan'"),
        ("1e9", "must be a number <= 1000000.0, got '1e9'"),
    ],
)
def test_refused(cbbench: Call, rate: str, words: str) -> None:
    outcome = cbbench("run", *SIMULATED, "--rate", rate)
    assert outcome.code == 2
    assert outcome.error_line.startswith("error: --rate: ")
    assert words in outcome.error_line


def test_a_rate_with_stages_is_no_value_of_a_sweep(cbbench: Call) -> None:
    outcome = cbbench("sweep", "rate", "--values", "2|2 for 60s, 8", *SIMULATED)
    assert outcome.code == 2
    assert "--values: rate takes numbers" in outcome.error_line


def test_one_schedule_is_one_setting_however_it_is_written() -> None:
    spellings = ("2 for 1m,8 for 60 s, 2.0", "2 for 60s, 8 for 60.0s, 2..2 for 5s", "2 for 60s, 8 for 60s, 2")
    first, other, last = (build_settings({"rate": rate}).config_hash() for rate in spellings)
    assert first == last != other


def test_how_long_it_takes_is_known_before() -> None:
    def lasts_s(**given: Any) -> float:
        return schedule_s(build_settings({"url": "http://127.0.0.1:9", **given}))

    assert lasts_s(rate=STAGES, num_requests=280) == 60
    assert lasts_s(rate="2..10 for 10s", num_requests=70) == 11
    assert lasts_s(rate=STAGES, num_requests=280, duration=15) == 15
    assert lasts_s(rate="4", num_requests=8) == 2


def test_a_fixed_span_has_the_rate_that_was_asked(cbbench: Callable[..., Outcome], tmp_path: Path) -> None:
    """As the note of docs/workloads.md: 120 requests at 20 per second with seed 0."""
    common = (
        "run",
        "--engine",
        "simulated",
        "--hardware",
        "h100",
        "--model",
        "tiny",
        "--rate",
        "20",
        "--num-requests",
        "120",
    )
    for span, arrived in (("drawn", 16.53), ("fixed", 20.0)):
        assert cbbench(*map(str, common), "--span", span, "-o", str(tmp_path / span)).code == 0
        run = json.loads((tmp_path / span / "run.json").read_text())
        assert run["summary"]["throughput"]["arrivals_per_s"] == pytest.approx(arrived, rel=5e-4)
    assert cbbench("run", "--span", "fixed").err == "error: --span: needs --rate\n"
