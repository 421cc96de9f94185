"""Other tools' result files: what they wrote themselves (tests/reports/data); of vLLM and SGLang, by their names."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reports.folder import RunWriter
from reports.interop import as_vllm_json, read_any, read_results
from reports.sla import parse_all
from reports.stored_runs import Judgement, StoredRun
from reports.summary_schema import Summary
from tests.reports.factory import bus_stop, header, record, row
from workloads.errors import CbbenchError

DATA = Path(__file__).parent / "data"
DETAILED: dict[str, Any] = {
    "request_rate": "inf", "model_id": "m", "start_times": [100.0, 100.5, 101.0], "input_lens": [10, 10, 10],
    "output_lens": [3, 3, 0], "ttfts": [0.1, 0.2, 0.0], "itls": [[0.02, 0.04], [0.03, 0.03], []],
    "errors": ["", "", "boom"], "duration": 2.0,
}  # fmt: skip
FLAT: dict[str, Any] = {
    "duration": 2.0, "completed": 400, "failed": 0, "request_throughput": 200.0, "output_throughput": 900.0,
    "request_rate": 200.0, "mean_ttft_ms": 40.0, "median_ttft_ms": 30.0, "std_ttft_ms": 5.0, "p99_ttft_ms": 80.0,
    "mean_tpot_ms": 0.0,
}  # fmt: skip
# Of vllm/benchmarks/serve.py@009e6d4a --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,95,99,99.9
# --save-detailed, without what belongs to ramps, probes, drafts and diffusion; generated_texts a run does not keep.
VLLM_KEYS = [
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "input_lens", "output_lens",
    "ttfts", "itls", "latencies", "start_times", "queue_times", "errors", "max_output_tokens_per_s",
    "max_concurrent_requests", "rtfx",
    *(f"{stat}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el")
      for stat in ("mean", "median", "std", "p50", "p90", "p95", "p99", "p99.9")),
]  # fmt: skip


def read(name: str | Path, *sla: str) -> StoredRun:
    (one,) = read_results(DATA / name, Judgement(parse_all(sla) or None))
    return one


def summary(one: StoredRun) -> Summary:
    assert one.run.summary is not None
    return one.run.summary


def verdicts(one: StoredRun) -> dict[str, str]:
    return {result.expr.partition("<")[0].partition(">")[0]: result.verdict for result in one.run.sla}


def said(one: StoredRun) -> str:
    return " ".join(one.notes)


def changed(column: str, value: Any) -> str:
    """DETAILED with another value for its first request."""
    return json.dumps(DETAILED | {column: [value, *DETAILED[column][1:]]})


# vLLM and SGLang


def write(folder: Path, result: dict[str, Any], name: str = "result.json") -> Path:
    (folder / name).write_text(json.dumps(result))
    return folder / name


def test_single_requests_are_judged_alike(tmp_path: Path) -> None:
    one = read(write(tmp_path, DETAILED), "max_ttft_ms<=150")
    assert (summary(one).requests.completed, summary(one).requests.failed) == (2, 1)
    assert summary(one).latency.ttft_ms.max == pytest.approx(200)
    assert summary(one).latency.tpot_ms.mean == pytest.approx(30)
    assert summary(one).latency.itl_ms.max == pytest.approx(40)
    assert verdicts(one) == {"max_ttft_ms": "fail"}
    assert "queue times" in said(one)


def test_a_wait_in_vllms_client_counts_from_the_schedule(tmp_path: Path) -> None:
    queued = DETAILED | {"queue_times": [0.0, 0.4, 0.0], "request_rate": 2.0, "max_concurrency": 1}
    one = read(write(tmp_path, queued), "max_ttft_ms<=500")
    assert summary(one).latency.ttft_sched_ms.max == pytest.approx(600)
    assert verdicts(one) == {"max_ttft_ms": "fail"}, "in an open loop the schedule counts"
    assert "queue times" not in said(one)


def test_sglang_without_start_times_has_the_window_it_states(tmp_path: Path) -> None:
    path = tmp_path / "sglang.jsonl"
    line = {key: value for key, value in DETAILED.items() if key != "start_times"}
    line |= {"random_range_ratio": 0.0, "request_rate": float("inf")}
    path.write_text(json.dumps(line) + "\n")
    one = read(path)
    assert summary(one).throughput.output_token_per_s == pytest.approx(6 / 2.0)
    assert one.run.engine.config["tool"] == one.run.engine.name == "SGLang"
    assert "start times" in said(one)


def test_every_line_of_a_file_that_a_tool_appends_to_is_a_result(tmp_path: Path) -> None:
    """Of a swept file only the last was judged, which hid a failure. FILE#2 is one of them."""
    path = tmp_path / "sweep.jsonl"
    rates = (10.0, 20.0, float("inf"))
    path.write_text(
        "".join(json.dumps(FLAT | {"request_rate": rate, "failed": int(rate == 20)}) + "\n" for rate in rates)
    )
    found = read_results(path, Judgement(parse_all(["failure_rate<=0"])))
    assert [one.run.sla[0].verdict for one in found] == ["pass", "fail", "pass"]
    assert [one.name.rpartition("· ")[2] for one in found] == ["1: 10 per s", "2: 20 per s", "3: all at once"]
    (second,) = read_results(Path(f"{path}#2"))
    assert second.name == found[1].name
    for number in (0, 4):
        with pytest.raises(CbbenchError, match=f"#{number}: the file has results 1 to 3"):
            read_results(Path(f"{path}#{number}"))


def test_what_was_asked_for_and_did_not_complete_has_failed(tmp_path: Path) -> None:
    """Some versions of vLLM write no `failed`: 8 of 10 read as 8 of 8."""
    flat = {key: value for key, value in FLAT.items() if key != "failed"} | {"num_prompts": 10, "completed": 8}
    one = read(write(tmp_path, flat))
    assert (summary(one).requests.completed, summary(one).requests.failed) == (8, 2)
    assert one.run.validity is not None
    assert one.run.validity.verdict == "invalid"


def test_a_value_that_is_no_number_is_not_known(tmp_path: Path) -> None:
    one = read(write(tmp_path, FLAT | {"p99_ttft_ms": math.nan}), "p99_ttft_ms<=100", "p50_ttft_ms<=100")
    assert summary(one).latency.ttft_ms.p99 is None
    assert summary(one).latency.ttft_ms.p50 == 30.0


def test_percentiles_alone_prove_nothing(tmp_path: Path) -> None:
    slas = ("p99_ttft_ms<=100", "p50_ttft_ms<=20", "p99_tpot_ms<=100", "failure_rate<=0.01", "output_token_per_s>=100",
            "attainment>=0.9")  # fmt: skip
    one = read(write(tmp_path, FLAT), *slas)
    assert list(verdicts(one).values()) == [
        "inconclusive",
        "inconclusive",
        "inconclusive",
        "pass",
        "pass",
        "inconclusive",
    ]
    assert "no single requests" in one.run.sla[0].reason
    assert one.record is None
    assert summary(one).latency.tpot_ms.mean is None, "they write 0 where nothing was measured"
    assert "save-detailed" in said(one)


def test_failures_are_beyond_every_percentile(tmp_path: Path) -> None:
    flat = dict.fromkeys(("mean_ttft_ms", "p95_ttft_ms", "p99_ttft_ms", "max_ttft_ms"), 1)
    flat |= {"duration": 2, "completed": 98, "failed": 2, "request_throughput": 1}
    slas = ("p99_ttft_ms<=100", "failure_rate<=0.01", "failure_rate<=0.1", "max_ttft_ms<=9", "p95_ttft_ms<=9")
    one = read(write(tmp_path, flat), *slas)
    assert [result.verdict for result in one.run.sla] == [
        "fail",
        "inconclusive",
        "inconclusive",
        "fail",
        "inconclusive",
    ]
    assert one.run.validity is not None
    assert one.run.validity.verdict == "invalid"


def test_sglangs_summary_does_not_say_how_many_failed(tmp_path: Path) -> None:
    flat = {"duration": 2.0, "completed": 400, "request_throughput": 200.0, "random_range_ratio": 0.0,
            "mean_e2e_latency_ms": 40.0, "p99_e2e_latency_ms": 90.0}  # fmt: skip
    one = read(write(tmp_path, flat), "failure_rate<=0.01")
    assert verdicts(one) == {"failure_rate": "inconclusive"}
    assert not one.failures_known
    assert summary(one).latency.e2el_ms.p99 == 90
    assert "output-details" in said(one)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("nothing", "not a result"),
        ("[1, 2]", "not an object"),
        ('{"p99_ttft_ms": 5.0}', "none of their keys"),
        (json.dumps(DETAILED | {"ttfts": [0.1]}), "differ in length"),
        (json.dumps(DETAILED | {"itls": [1, 2, 3]}), "unknown form of a result"),
        (json.dumps(DETAILED | {"ttfts": None}), "unknown form of a result"),
        (changed("ttfts", -1.0), "request 0: its first token came 1 s before it was sent"),
        (changed("ttfts", 1e15), "request 0: a time is out of range"),
        (changed("ttfts", math.inf), "unknown form of a result"),
        (changed("ttfts", math.nan), "unknown form of a result"),
        (changed("itls", [-0.5]), "request 0: a gap between its tokens is below 0"),
        (changed("output_lens", -4), "request 0: -4 output tokens"),
        (changed("output_lens", 4.5), "request 0: 4.5 output tokens"),
        (changed("output_lens", 10**25), "output tokens"),
        (json.dumps(DETAILED | {"model_id": ["x"]}), "model"),
        (json.dumps(FLAT | {"p99_ttft_ms": -5.0}), "latency.ttft_ms.p99 is -5.0"),
        (json.dumps(FLAT | {"p99_ttft_ms": math.inf}), "latency.ttft_ms.p99 is inf"),
        (json.dumps(FLAT | {"p99_ttft_ms": "5"}), "latency.ttft_ms.p99"),
        ('{"benchmarks": []}', "no benchmark"),
        ('{"metadata": {}, "metrics": {"request_latency": {"value": 1, "unit": "h"}}}', "lacks 'timestamp_ns'"),
        ('{"benchmarks": [{"metrics": {}}]}', "lacks 'request_totals'"),
        ('{"metadata": {"benchmark_phase": "warmup"}, "metrics": {}}', "all are of the warm-up"),
        ('{"request_latency": {"unit": "ms", "avg": 1}}', "no benchmark_duration"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(CbbenchError, match=match) as raised:
        read_results(tmp_path / "result.json")
    assert str(raised.value).startswith(str(tmp_path / "result.json"))


# guidellm


def test_guidellms_own_numbers_come_out_of_its_requests() -> None:
    name = "guidellm-0.8.1.json"
    theirs = json.loads((DATA / name).read_text())["benchmarks"][0]["metrics"]
    one = read(name, "p99_itl_ms<=1000")
    ours = summary(one).latency
    assert ours.ttft_ms.mean == pytest.approx(theirs["time_to_first_token_ms"]["successful"]["mean"], rel=1e-5)
    assert ours.e2el_ms.max is not None
    assert ours.e2el_ms.max <= 1000 * theirs["request_latency"]["successful"]["max"], "they count the end of the stream"
    # What they call ITL is our TPOT: of each request, then weighted by its tokens.
    assert one.record is not None
    tokens = one.record.column("output_tokens") - 1
    gaps_ms = (one.record.column_ns("last") - one.record.column_ns("first")) / 1e6
    assert gaps_ms.sum() / tokens.sum() == pytest.approx(
        theirs["inter_token_latency_ms"]["successful"]["mean"], rel=1e-5
    )
    assert ours.tpot_ms.mean == pytest.approx((gaps_ms / tokens).mean())
    assert ours.itl_ms.count == 0
    assert verdicts(one) == {"p99_itl_ms": "inconclusive"}
    assert summary(one).throughput.steady is None
    assert one.run.workload.pacing.open_loop
    assert ours.ttft_sched_ms.mean is not None
    assert ours.ttft_ms.mean is not None
    assert ours.ttft_sched_ms.mean > ours.ttft_ms.mean


def test_each_of_guidellms_loads_is_a_result() -> None:
    two, four = read_results(DATA / "guidellm-0.8.1-failures.json", Judgement(parse_all(["p99_itl_ms<=1000"])))
    assert two.name.endswith("1: 2 at once")
    assert four.run.workload.pacing.concurrency == 4
    for one in (two, four):
        assert (summary(one).requests.completed, summary(one).requests.failed) == (6, 2)
        assert any("503" in error for error in summary(one).requests.errors)
        assert verdicts(one) == {"p99_itl_ms": "inconclusive"}, "no gap was seen, so none was beyond the bound"


def test_a_sample_of_guidellms_requests_is_no_evidence(tmp_path: Path) -> None:
    report = json.loads((DATA / "guidellm-0.8.1.json").read_text())
    del report["benchmarks"][0]["requests"]["successful"][5:]
    one = read(write(tmp_path, report), "p99_ttft_ms<=1000", "p99_ttft_ms<=1")
    assert [result.verdict for result in one.run.sla] == ["inconclusive", "inconclusive"]
    assert summary(one).requests.completed == 10
    assert summary(one).latency.e2el_ms.mean == pytest.approx(29.93, abs=5)
    assert "sample" in said(one)


def test_guidellms_requests_of_warm_up_and_cool_down_are_left_out(tmp_path: Path) -> None:
    """Of 0.5: they are listed, and the totals do not count them, so that all single requests were thrown away."""
    report = json.loads((DATA / "guidellm-0.8.1.json").read_text())
    (benchmark,) = report["benchmarks"] = report["benchmarks"][:1]
    before = len(benchmark["requests"]["successful"])
    early = copy.deepcopy(benchmark["requests"]["successful"][0])
    timings = early["info"]["timings"]
    for name, at in timings.items():
        if isinstance(at, float) and at > 1e6:
            timings[name] = at - 1000.0
    benchmark["requests"]["successful"].insert(0, early)
    (tmp_path / "report.json").write_text(json.dumps(report))
    (one,) = read_results(tmp_path / "report.json")
    assert one.record is not None
    assert summary(one).requests.completed == before


def test_yaml_is_read_as_json_is(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "report.yaml"
    path.write_bytes(msgspec.yaml.encode(json.loads((DATA / "guidellm-0.8.1.json").read_text())))
    assert read(path).run.summary == read("guidellm-0.8.1.json").run.summary


# aiperf


def test_aiperfs_own_numbers_come_out_of_its_requests() -> None:
    one = read("aiperf-0.13.0")
    theirs = json.loads((DATA / "aiperf-0.13.0/profile_export_aiperf.json").read_text())
    ours = summary(one).latency
    assert summary(one).requests.completed == 10, "without the warm-up"
    for name, distribution, tolerance in (
        ("time_to_first_token", ours.ttft_ms, 1e-6),
        ("request_latency", ours.e2el_ms, 1e-6),
        ("effective_latency", ours.e2el_sched_ms, 1e-3),  # theirs ends on another clock
    ):
        for stat, value in (("avg", distribution.mean), ("p50", distribution.p50), ("p99", distribution.p99)):
            assert value == pytest.approx(theirs[name][stat], rel=tolerance), (name, stat)
    assert ours.itl_ms.mean == pytest.approx(theirs["inter_chunk_latency"]["avg"], rel=1e-3), "gaps between events"
    # One answer came in a single event: guidellm says its TPOT is 0, here it is unknown.
    assert ours.tpot_ms.count == 9
    assert ours.tpot_ms.mean == pytest.approx(theirs["inter_token_latency"]["avg"] * 10 / 9, rel=1e-3)
    assert one.run.workload.pacing.rate_per_s == 20
    assert one.run.engine.config["tool"] == "aiperf 0.13.0"


@pytest.mark.parametrize("file", ["profile_export.jsonl", "profile_export_aiperf.json"])
def test_aiperfs_two_files_and_their_folder_are_one_result(file: str) -> None:
    folder = DATA / "aiperf-0.13.0-failures"
    one = read(folder / file)
    assert one.run.summary == read(folder).run.summary
    assert (summary(one).requests.completed, summary(one).requests.failed) == (6, 2)
    assert one.run.workload.pacing.concurrency == 2


@pytest.mark.parametrize(
    ("file", "note"), [("profile_export.jsonl", "the pacing"), ("profile_export_aiperf.json", "alone")]
)
def test_one_of_aiperfs_files_says_what_it_lacks(tmp_path: Path, file: str, note: str) -> None:
    shutil.copy(DATA / "aiperf-0.13.0" / file, tmp_path)
    one = read(tmp_path / file, "p99_ttft_ms<=1000")
    assert verdicts(one) == {"p99_ttft_ms": "inconclusive"}
    assert summary(one).latency.ttft_ms.mean == pytest.approx(12.674, abs=1e-3)
    assert note in said(one)


# Both ways


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = [
        row(1, [40, 60.5, 90.25], scheduled_ms=10, sent_ms=12),
        row(0, [30, 50], prompt_tokens=7),
        row(2, scheduled_ms=20, end_ms=80, status="failed", finish_reason="error", error="boom"),
        row(3, [70], scheduled_ms=30, end_ms=70),
    ]
    with RunWriter(tmp_path / "run", header(num_requests=4, rate_per_s=100.0, sla=["p99_ttft_ms<=500"])) as writer:
        taken = record(made)
        for one in taken.rows:
            writer.request_ended(one, taken.event_values[one.events_at : one.events_at + one.events])
        writer.finish(taken)
    return tmp_path / "run"


def test_vllms_json_of_a_run_has_its_names_and_reads_back_the_same(run: Path) -> None:
    (ours,) = read_any([run])
    assert ours.record is not None
    result = as_vllm_json(ours.run, ours.record)
    assert [key for key in result if not key.startswith("cbbench_")] == VLLM_KEYS
    theirs = read(write(run.parent, result))
    for name in ("ttft_ms", "tpot_ms", "e2el_ms", "ttft_sched_ms", "e2el_sched_ms", "itl_ms"):
        assert getattr(summary(theirs).latency, name) == getattr(summary(ours).latency, name), name
    assert result["p99_ttft_ms"] == summary(ours).latency.ttft_ms.p99
    assert summary(theirs).throughput.output_token_per_s == pytest.approx(6 / 0.09025)
    assert theirs.run.workload.sha256 == ours.run.workload.sha256
    assert theirs.run.workload.pacing.rate_per_s == 100
    assert "allow_different" not in said(theirs)
    assert (result["errors"], result["output_lens"]) == (["", "", "boom", ""], [2, 3, 0, 1])
    assert (result["failed"], result["max_concurrent_requests"]) == (1, 3)
    assert result["max_output_tokens_per_s"] == 6


def test_vllms_json_of_a_run_in_steps(tmp_path: Path) -> None:
    made = bus_stop()
    with RunWriter(tmp_path / "run", header(event_unit="step")) as writer:
        for one in made.rows:
            writer.request_ended(one, made.event_values[one.events_at : one.events_at + one.events])
        writer.steps_recorded(made.steps)
        run = writer.finish(made)
    result = as_vllm_json(run, made)
    assert result["request_rate"] == "inf"
    assert result["itls"][0] == pytest.approx([0.01] * 9)
    assert result["max_output_tokens_per_s"] == 10 + 50 + 99
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_read_any_takes_runs_and_files_at_once(run: Path) -> None:
    found = read_any([run, run.parent, DATA / "guidellm-0.8.1-failures.json", DATA / "aiperf-0.13.0"])
    assert len(found) == 1 + 1 + 2 + 1
