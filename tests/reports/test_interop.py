"""Other tools' result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.files import FolderError
from reports.interop import read_result
from reports.stored import Judgement

DETAILED = {
    "request_rate": "inf", "model_id": "m", "start_times": [100.0, 100.5, 101.0], "input_lens": [10, 10, 10],
    "output_lens": [3, 3, 0], "ttfts": [0.1, 0.2, 0.0], "itls": [[0.02, 0.04], [0.03, 0.03], []],
    "errors": ["", "", "boom"], "duration": 2.0,
}  # fmt: skip


def test_single_requests_are_judged_alike(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(DETAILED))
    stored = read_result(path, Judgement(("max_ttft_ms<=150",)))
    summary = stored.run.summary
    assert summary is not None
    assert (summary.requests.completed, summary.requests.failed) == (2, 1)
    assert summary.latency.ttft_ms.max == pytest.approx(200)
    assert summary.latency.tpot_ms.mean == pytest.approx(30)
    assert summary.latency.itl_ms.max == pytest.approx(40)
    assert stored.run.sla[0].verdict == "fail"
    assert "scheduled" in stored.notes[0]


def test_without_start_times_the_window_is_the_tools_own(tmp_path: Path) -> None:
    path = tmp_path / "sglang.jsonl"
    line = {key: value for key, value in DETAILED.items() if key != "start_times"}
    path.write_text(json.dumps(line | {"duration": 9.0}) + "\n" + json.dumps(line) + "\n")
    stored = read_result(path, Judgement())
    assert stored.run.summary is not None
    assert stored.run.summary.throughput.output_token_per_s == pytest.approx(6 / 2.0), "the last line counts"
    assert any("start times" in note for note in stored.notes)


def test_a_file_without_requests_says_which_flag_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"p99_ttft_ms": 5.0}))
    with pytest.raises(FolderError, match="--save-detailed"):
        read_result(path, Judgement())
    path.write_text("nothing")
    with pytest.raises(FolderError, match="no result"):
        read_result(path, Judgement())
