"""cbbench report: which file goes where, and what is said when it cannot be made."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbbench.conftest import Outcome

SIMULATED = (
    "--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b", "--workload",
    "prompt=uniform(4,24);output=uniform(4,24)", "--num-requests", 12,
)  # fmt: skip
Call = Callable[..., Outcome]


@pytest.fixture
def runs(cbbench: Call) -> None:
    for mode in ("static", "continuous"):
        assert cbbench("run", *SIMULATED, "--mode", mode, "-o", mode).code == 0


@pytest.fixture
def sweep(cbbench: Call) -> None:
    assert cbbench("sweep", "max-num-seqs", "--values", "1,2,4", *SIMULATED, "-o", "sweep").code == 0


def test_files_of_a_run_and_of_two(cbbench: Call, runs: None) -> None:
    outcome = cbbench("report", "static", "--format", "html,md,csv", "-o", "sent/here")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "report in sent/here\n"
    assert sorted(one.name for one in Path("sent/here").iterdir()) == ["report.html", "report.md", "requests.csv"]
    assert cbbench("report", "static", "continuous", "--format", "html", "-o", "pair.html").code == 0
    text = Path("pair.html").read_text(encoding="utf-8")
    assert "<title>Continuous against static</title>" in text
    assert "x predicted" in text
    first = Path("sent/here/report.html").read_bytes()
    assert cbbench("report", "static", "--format", "html").err == "report in static/report.html\n"
    assert Path("static/report.html").read_bytes() == first


def test_text_alone_goes_to_stdout(cbbench: Call, runs: None, sweep: None) -> None:
    assert cbbench("report", "static", "--format", "md").out.startswith(
        "## llama-3.1-8b on h100, static batching: OK\n"
    )
    assert len(cbbench("report", "static", "--format", "csv").out.splitlines()) == 13
    assert len(cbbench("report", "static", "continuous", "--format", "csv").out.splitlines()) == 25
    assert [line.split(",")[0] for line in cbbench("report", "sweep", "--format", "csv").out.splitlines()] == [
        "max-num-seqs", "1", "2", "4",
    ]  # fmt: skip
    assert "### Recommendation" in cbbench("report", "sweep", "--format", "md", "-o", "-").out
    assert "continuous / static" in cbbench("report", "static", "continuous").out


def test_pictures(cbbench: Call, sweep: None) -> None:
    assert cbbench("report", "sweep", "--format", "svg", "-o", "curve.svg").code == 0
    assert "Throughput against P99 TTFT" in Path("curve.svg").read_text(encoding="utf-8")
    # A sweep whose runs were moved away still has its points.
    for folder in Path("sweep").glob("max-*"):
        folder.rename(Path(folder.name))
    assert cbbench("report", "sweep", "--format", "svg", "-o", "pictures").code == 0
    names = sorted(one.stem for one in Path("pictures").iterdir())
    assert names == ["per-user", "throughput-p99-e2el", "throughput-p99-tpot", "throughput-p99-ttft"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("static", "--format", "pdf"), "--format: 'pdf' is none of html, md, csv, png"),
        (("static", "--format", ""), "--format: '' is none of html, md, csv, png"),
        (("gone", "--format", "html"), "gone: no such folder"),
        (("gone",), "gone: no such folder"),
        ((".", "--format", "md"), ".: holds no run, no sweep and no tuning"),
        (("static", "gone", "--format", "md"), "gone: no such folder"),
        (("static", "static", "static", "--format", "md"), "report takes one run or sweep, or two runs, got 3 folders"),
        (("static", "--format", "md", "--json"), "--json and --timeline belong to the terminal"),
        (("static", "continuous", "--json"), "--json: takes one run"),
        (("static", "-o", "x"), "--output: needs --format: html, md, csv, png"),
        (("static", "--format", "md,csv", "-o", "-"), "--output: - takes one of html, md"),
        (("static", "--format", "md", "-o", "static/run.json/x.md"), "static/run.json: "),
        (("broken", "--format", "md"), "broken/run.json: "),
    ],
)
def test_what_cannot_be_reported(cbbench: Call, runs: None, arguments: tuple[str, ...], said: str) -> None:
    Path("broken").mkdir()
    Path("broken/run.json").write_text('{"schema": "cbbench.run/1"}', encoding="utf-8")
    outcome = cbbench("report", *arguments)
    assert outcome.code == 2
    assert said in outcome.error_line
    assert not Path("x").exists()


def test_percentiles_that_a_request_asks_for_are_in_every_table(cbbench: Call, runs: None) -> None:
    asked = ("--percentiles", "99.9,75")
    usual = cbbench("report", "static")
    shown = cbbench("report", "static", *asked)
    assert "mean    p50    p90    p99  p99 95 %" in usual.out
    assert "p99 95 %" not in shown.out, "the interval of a percentile that is not shown"
    assert shown.out.split("latency, ms")[1].split()[:4] == ["mean", "p75", "p99.9", "max"]
    assert "TTFT P75, ms" in cbbench("report", "static", "continuous", *asked).out
    page = cbbench("report", "static", "--format", "md", *asked).out
    assert "| latency, ms | mean | P75 | P99.9 | max |" in page
    assert "| ITL P99.9, ms |" in cbbench("report", "static", "continuous", "--format", "md", *asked).out
    stored = json.loads(Path("static/run.json").read_text())
    told = json.loads(cbbench("report", "static", "--json", *asked).out)
    more = told.pop("percentiles")
    assert told == stored, "run.json itself is what it was"
    assert list(more["ttft_ms"]) == ["p75", "p99.9"]
    assert more["ttft_ms"]["p99.9"] == pytest.approx(stored["summary"]["latency"]["ttft_ms"]["p999"])
    again = cbbench("run", *SIMULATED, "--mode", "static", "-o", "again", *asked)
    assert (
        again.out.split("latency, ms")[1].split("launched")[0] == shown.out.split("latency, ms")[1].split("launched")[0]
    )
    assert cbbench("run", *SIMULATED, "-o", "never", "--percentiles", "p50").code == 2
    assert not Path("never").exists(), "a mistake is said before the run"


def test_percentiles_are_of_runs_and_in_tables(cbbench: Call, runs: None, sweep: None) -> None:
    for arguments in (("sweep",), ("sweep", "--format", "html"), ("static", "--format", "csv,svg")):
        outcome = cbbench("report", *arguments, "--percentiles", "90")
        assert outcome.code == 2
        assert outcome.error_line.startswith("error: --percentiles: ")


def test_a_page_without_charts_is_small_and_whole_else(cbbench: Call, runs: None, sweep: None) -> None:
    for arguments in (("static",), ("sweep",), ("static", "continuous")):
        assert cbbench("report", *arguments, "--format", "html", "--no-charts", "-o", "page.html").code == 0
        page = Path("page.html").read_text(encoding="utf-8")
        assert len(page) < 60_000
        assert "<figure" not in page
        assert "vega" not in page.split("</footer>")[1].split("<script>")[1]
        assert "Shift and wheel" not in page, "what is said of charts goes with them"
        assert "p99 95 %" in page or "P99, 95 % interval" in page
        assert "Configuration" in page
    curves = "output tok/s"
    assert curves in cbbench("report", "sweep").out
    assert curves not in cbbench("report", "sweep", "--no-charts").out
    assert cbbench("report", "sweep", "--format", "png", "--no-charts").code == 2


def test_a_bound_far_beyond_what_is_measured_is_drawn(cbbench: Call) -> None:
    bounds = ("--sla", "p99_ttft_ms<=1e308", "--sla", "p99_tpot_ms<=1.7e308")
    cbbench("run", *SIMULATED, *bounds, "-o", "one")
    cbbench("sweep", "max-num-seqs", "--values", "1,4", *SIMULATED, *bounds, "-o", "swept")
    for folder in ("one", "swept"):
        outcome = cbbench("report", folder, "--format", "html,md,svg")
        assert outcome.code == 0, outcome.err
        page = Path(folder, "report.html").read_text(encoding="utf-8")
        specs = page.split('<script id="charts" type="application/json">')[1].split("</script>")[0]
        json.loads(specs, parse_constant=pytest.fail)


def test_a_page_under_a_title_of_ones_own(cbbench: Call, runs: None) -> None:
    page = cbbench("report", "static", "--format", "md", "--title", "Friday <b> night").out.splitlines()
    assert page[0] == "## Friday &lt;b> night: OK"
    assert page[2].startswith("llama-3.1-8b on h100, static batching · ")
    cbbench("report", "static", "--format", "html", "--no-charts", "--title", "Friday <b> night", "-o", "page.html")
    assert "<h1>Friday &lt;b&gt; night</h1>" in Path("page.html").read_text(encoding="utf-8")
    for arguments in (("--title", "x"), ("--title", "x", "--format", "csv"), ("--title", " ", "--format", "md")):
        outcome = cbbench("report", "static", *arguments)
        assert (outcome.code, outcome.error_line.startswith("error: --title")) == (2, True)


def test_a_sweep_stands_alone(cbbench: Call, runs: None, sweep: None) -> None:
    outcome = cbbench("report", "static", "sweep", "--format", "html")
    assert (outcome.code, outcome.error_line) == (2, "error: report takes two runs, but sweep is a sweep")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_full_disk_is_one_line(cbbench: Call, runs: None) -> None:
    Path("out.md.tmp").symlink_to("/dev/full")
    outcome = cbbench("report", "static", "--format", "md", "-o", "out.md")
    assert (outcome.code, outcome.error_line) == (1, "error: out.md: No space left on device")
    assert not Path("out.md").exists()


def test_a_run_that_crashed_is_rebuilt_first(cbbench: Call, runs: None) -> None:
    path = Path("static/run.json")
    header = json.loads(path.read_text(encoding="utf-8")) | {"summary": None, "validity": None}
    path.write_text(json.dumps(header), encoding="utf-8")
    outcome = cbbench("report", "static", "--format", "md")
    assert outcome.code == 0
    assert "rebuilding run.json" in outcome.err
    assert "12 of 12" in outcome.out


@pytest.mark.parametrize("kind", ["in the way", "read-only"])
def test_a_run_that_cannot_be_written_to_is_shown(cbbench: Call, runs: None, kind: str) -> None:
    folder = Path("static")
    path = folder / "run.json"
    header = json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"summary": None, "validity": None})
    path.write_text(header, encoding="utf-8")
    if kind == "in the way":
        path.with_name("run.json.tmp").mkdir()
    elif os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    else:
        folder.chmod(0o555)
    try:
        outcome = cbbench("report", "static")
        assert outcome.code == 0
        assert "12 of 12" in outcome.out
        assert "run.json stays as it was" in outcome.err
        assert json.loads(cbbench("report", "static", "--json").out)["summary"]["requests"]["completed"] == 12
        assert cbbench("report", "static", "--format", "md").code == 0
        assert path.read_text(encoding="utf-8") == header
    finally:
        folder.chmod(0o755)


def test_lines_that_are_gone_are_said_wherever_requests_are_shown(cbbench: Call, runs: None) -> None:
    path = Path("static/requests.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:7]))
    said = "5 of the 12 requests that ended are not in it"
    assert said in " ".join(cbbench("report", "static").out.split())
    outcome = cbbench("report", "static", "--format", "md")
    assert said in outcome.out
    assert said in outcome.err


def test_a_tuning_has_no_page_yet(cbbench: Call) -> None:
    assert cbbench("tune", *SIMULATED, "--sla", "p99_ttft_ms<=60000", "-o", "tuned").code == 0
    outcome = cbbench("report", "tuned", "--format", "html")
    assert outcome.code == 2
    assert "tuned is a tuning" in outcome.error_line


def test_without_the_extra(cbbench: Call, runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith("reports.render.charts")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "altair", None)
    outcome = cbbench("report", "static", "--format", "html")
    assert (outcome.code, 'pip install "cbbench[charts]"' in outcome.error_line) == (2, True)
    assert not Path("static/report.html").exists()
    assert cbbench("report", "static", "--format", "md").code == 0
    assert "--no-charts" in outcome.error_line
    assert cbbench("report", "static", "--format", "html", "--no-charts").code == 0
    assert "P99 TTFT" in Path("static/report.html").read_text(encoding="utf-8")
