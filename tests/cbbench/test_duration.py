"""--duration through the whole command line: under a rate the plan lasts that long, and one that does not is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cbbench.cli.errors import in_flags
from cbbench.settings.build import build_settings
from cbbench.settings.run import RunSettings
from cbbench.settings.sources import gather
from reports.folder import read_record, read_run
from tests.cbbench.conftest import Outcome
from tests.wire.fake import FakeServer
from workloads.arrivals import requests_to_fill, unit_arrivals
from workloads.errors import CbbenchError
from workloads.plan import UGAP

Call = Callable[..., Outcome]
SIMULATED = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b")
SHORT = ("--workload", "prompt=fixed(8);output=fixed(2)")


def config(swept: str = "", **given: object) -> RunSettings:
    return build_settings(gather("run", given, swept.split(",")))


def last_scheduled_s(folder: str) -> float:
    return float(read_record(Path(folder)).column_ns("scheduled").max()) / 1e9


def test_a_plan_under_a_rate_lasts_as_long_as_the_duration(cbbench: Call) -> None:
    outcome = cbbench("run", *SIMULATED, *SHORT, "--rate", 50, "--duration", 60, "-o", "out")
    assert outcome.code == 0, outcome.err
    assert "note" not in outcome.err
    assert last_scheduled_s("out") > 59
    summary = read_run(Path("out")).summary
    assert summary is not None
    assert 2800 < summary.requests.completed < 3200


def test_of_even_arrivals_there_are_exactly_as_many(cbbench: Call) -> None:
    assert config(rate="50", arrival="constant", duration=60.0).workload.num_requests == 3000
    assert config(rate="0.7", arrival="constant", duration=10.0).workload.num_requests == 7
    even = ("--arrival", "constant", "--num-requests", 20)
    assert "note" not in cbbench("run", *SIMULATED, *SHORT, *even, "--rate", 2, "--duration", 10, "-o", "out").err


@pytest.mark.parametrize("arrival", ["poisson", "gamma:0.3", "gamma:3", "gamma:10"])
@pytest.mark.parametrize("gaps", [0.5, 12, 600])
def test_random_arrivals_do_not_run_out(arrival: str, gaps: float) -> None:
    count = requests_to_fill(gaps, arrival)
    assert all(unit_arrivals(arrival, count, seed)[-1] >= gaps * UGAP for seed in range(300))


def test_who_says_how_many_requests_there_are() -> None:
    Path("trace.csv").write_text("prompt_tokens,output_tokens\n8,2\n8,2\n8,2\n")
    even = {"arrival": "constant", "duration": 10.0}
    assert config(rate="5", num_requests=8, **even).workload.num_requests == 8
    assert config(rate="5", workload="trace.csv", **even).workload.num_requests == 50, "its rows are repeated"
    assert config(workload="trace.csv", concurrency=2, duration=10.0).workload.num_requests == 3
    assert config(rate="2 for 5s, 10", **even).workload.num_requests == 60
    assert config(rate="2 for 30s", **even).workload.num_requests == 20
    assert config(rate="2 for 5s", **even).workload.num_requests == 10, (
        "stages that end before the duration end the run"
    )
    burst = config(rate="5", tenants="a:weight=3;b:burst=4:20", **even)
    assert burst.workload.num_requests == 50 + 20, "those of a burst come beside the others"
    Path("cbbench.toml").write_text("rate = 5\nduration = 10\narrival = 'constant'\n")
    assert config().workload.num_requests == 50
    assert config(rate="8").workload.num_requests == 80


def test_more_than_a_plan_can_have_is_refused() -> None:
    with pytest.raises(CbbenchError) as caught:
        config(rate="1000", duration=1e6)
    words = r"--duration: 1e\+06 s at --rate 1000.* at most 10,000,000.*--num-requests"
    assert re.fullmatch(words, in_flags(caught.value))


def test_each_rate_of_a_sweep_lasts_as_long(cbbench: Call) -> None:
    Path("trace.csv").write_text("prompt_tokens,output_tokens\n8,2\n8,2\n8,2\n")
    for name, what in (("distributions", SHORT), ("file", ("--workload", "trace.csv"))):
        sweep = ("sweep", "rate", "--values", "5,20", *SIMULATED, *what, "--arrival", "constant", "--duration", 10)
        assert cbbench(*sweep, "-o", name).code == 0
        assert [read_run(Path(name) / f"rate-{rate}").workload.num_requests for rate in (5, 20)] == [50, 200]


def test_tune_and_compare_last_as_long(cbbench: Call) -> None:
    load = (*SIMULATED, *SHORT, "--rate", 5, "--duration", 10, "--arrival", "constant")
    outcome = cbbench(
        "tune", *load, "--sla", "p99_ttft_ms<=500", "--most-runs", 2, "--proof-requests", 0, "-o", "tuned"
    )
    assert outcome.code == 0, outcome.err
    assert json.loads(Path("tuned/tune.json").read_text())["stages"][0]["num_requests"] == 50
    settings = " ".join(f"'{one}'" if ";" in str(one) else str(one) for one in load)
    assert "note" not in cbbench("compare", "--aa", settings, "--pairs", 2, "-o", "aa").err
    assert read_run(Path("aa/a/01")).workload.num_requests == 50


def test_a_plan_that_runs_out_is_told(cbbench: Call) -> None:
    few = (*SIMULATED, *SHORT, "--num-requests", 20, "--duration", 10)
    opened = cbbench("run", *few, "--rate", 5, "--arrival", "constant", "-o", "open")
    assert "note: the last of the 20 requests is due at 3.8 s, before the duration of 10 s is over" in opened.err
    assert "it takes about 50 requests" in opened.err
    closed = cbbench("run", *few, "--concurrency", 4, "-o", "closed")
    note = next(one for one in read_run(Path("closed")).notes if "of the plan were sent" in one)
    assert note.startswith("all 20 requests of the plan were sent by 0.0")
    assert f"note: {note}" in closed.err
    enough = note.rpartition(" ")[2]
    cbbench("run", *few[:-4], "--num-requests", enough, "--duration", 10, "--concurrency", 4, "-o", "enough")
    assert last_scheduled_s("enough") > 8, "about as many as the note says"
    burst = cbbench("run", *few, "-o", "burst")
    assert "duration" not in burst.err, "all at once is what was asked for"


def test_against_a_server(cbbench: Call) -> None:
    with FakeServer() as server:
        outcome = cbbench(
            "run", "--url", server.url, *SHORT, "--warmup", 0, "--no-scrape", "--rate", 100, "--arrival", "constant",
            "--duration", 1, "-o", "out",
        )  # fmt: skip
    assert outcome.code in (0, 5), outcome.err  # 5: this machine did other work meanwhile
    assert read_run(Path("out")).workload.num_requests == 100


def test_what_was_asked_stands_beside_what_was_done(cbbench: Call) -> None:
    load = (*SIMULATED, *SHORT, "--arrival", "constant", "--num-requests", 64)
    outcome = cbbench("run", *load, "--rate", 12, "--duration", 2, "-o", "cut")
    summary = read_run(Path("cut")).summary
    assert summary is not None
    assert summary.throughput.request_per_s is not None
    assert summary.throughput.arrivals_per_s == pytest.approx(12)
    rates = f"12 requests/s offered, 12 arrived, {summary.throughput.request_per_s:.4g} completed"
    assert f"{rates} over" in " ".join(outcome.out.split())
    assert "24 of 64 requests sent: 24 completed, 0 failed, 0 cancelled" in outcome.out
    for form in ("md", "html"):
        page = cbbench("report", "cut", "--format", form, "-o", f"page.{form}")
        assert page.code == 0, page.err
        text = Path(f"page.{form}").read_text()
        assert rates in text, form
        assert "of 24 sent" in text, form
        assert "64 planned" in text, form
    closed = cbbench("run", *load[:-4], "--num-requests", 64, "--concurrency", 4, "-o", "closed")
    assert "asked" not in closed.out
    assert "64 of 64 requests completed, 0 failed" in closed.out


def test_the_rate_asked_of_stages_is_their_mean_until_the_duration(cbbench: Call) -> None:
    outcome = cbbench("run", *SIMULATED, *SHORT, "--rate", "2 for 10s, 20 for 10s", "--duration", 10, "-o", "out")
    assert "2 requests/s offered on average" in outcome.out
