"""Replay of a log: which rows, at which times, with which content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.errors import CbbenchError
from workloads.plan import RequestPlan, realised, reusable_tokens
from workloads.prompts import Prompts
from workloads.selection import Selection
from workloads.spec import build_plan, open_workload
from workloads.workload_files import Reading

IDS = np.arange(1000, dtype=np.int32)


def log_of(tmp_path: Path, rows: int = 3600, gap_s: float = 1.0, first: str | None = "2026-03-01T09:30:00") -> str:
    path = tmp_path / "log.csv"
    start = np.datetime64(first or 0, "ms")
    stamps = [start + np.timedelta64(round(index * gap_s * 1000), "ms") for index in range(rows)]
    column = stamps if first else [index * gap_s for index in range(rows)]
    name = "timestamp" if first else "arrival_s"
    lines = [f"{at},{index + 1},1" for index, at in enumerate(column)]
    path.write_text("\n".join([f"{name},prompt_tokens,output_tokens", *lines]) + "\n")
    return str(path)


def taken(spec: str, seed: int = 0, **what: Any) -> list[int]:
    """Prompt lengths, which number the rows of the log."""
    return open_workload(spec).taken(Selection(**what), seed).lengths.prompt_tokens.tolist()


def test_a_window_by_the_clock_and_since_the_start(tmp_path: Path) -> None:
    spec = log_of(tmp_path)
    assert taken(spec, window="10:00-10:10") == list(range(1801, 2401))
    assert taken(spec, window="10:00-10:00:02") == [1801, 1802]
    assert taken(spec, window="5m-301s") == [301]
    relative = log_of(tmp_path, first=None)
    assert taken(relative, window="0s-3s") == [1, 2, 3]


@pytest.mark.parametrize(
    ("window", "says"),
    [
        ("10:00", "want two times"),
        ("10:00-", "want two times"),
        ("10:00-30m", "want two times in order"),
        ("11:00-10:00", "want two times in order"),
        ("18:00-19:00", "no row is in it; the log goes from 09:30 to 10:29 UTC"),
        ("2h-3h", "no row is in it; the log lasts 3,599 s"),
    ],
)
def test_windows_that_cannot_be(tmp_path: Path, window: str, says: str) -> None:
    with pytest.raises(CbbenchError, match=says):
        taken(log_of(tmp_path), window=window)


def test_a_log_without_a_clock_has_no_time_of_day(tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match="no time of day"):
        taken(log_of(tmp_path, first=None), window="10:00-11:00")


def test_a_sample_is_contiguous_and_thinning_keeps_the_span(tmp_path: Path) -> None:
    spec = log_of(tmp_path)
    sample = taken(spec, sample=100)
    assert sample == list(range(sample[0], sample[0] + 100))
    assert taken(spec, seed=1, sample=100) != sample
    assert taken(spec, sample=100) == sample
    thin = taken(spec, thin=360)
    assert len(thin) == 360
    assert thin == sorted(set(thin))
    workload = open_workload(spec).taken(Selection(thin=360), 0)
    assert workload.gaps is not None
    assert workload.gaps.rate_per_s == pytest.approx(0.1, rel=0.05), "a tenth of the rows at a tenth of the rate"
    assert workload.gaps.cv == pytest.approx(1, abs=0.15), "gaps of a thinned process are geometric"
    assert taken(spec, window="10:00-10:10", sample=600) == list(range(1801, 2401))
    for what in ({"sample": 3601}, {"thin": 3601}):
        with pytest.raises(CbbenchError, match="3,601 rows of 3,600"):
            taken(spec, **what)
    with pytest.raises(CbbenchError, match="give one of them"):
        taken(spec, sample=1, thin=1)


def test_what_is_of_files_alone(tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match=r"^sample: takes rows of a file"):
        open_workload("azure-conv").taken(Selection(sample=3), 0)
    with pytest.raises(CbbenchError, match=r"^time_unit: says how to read a file"):
        open_workload("azure-conv", Reading(time_unit="s"))
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens\n1,2\n")
    with pytest.raises(CbbenchError, match=r"^time_unit: .*has no time stamps"):
        open_workload(str(path), Reading(time_unit="s"))


def test_rows_that_all_arrive_together_need_no_rate(tmp_path: Path) -> None:
    plan = _plan(log_of(tmp_path, rows=3, gap_s=0), 3, arrival="trace")
    assert plan.arrivals_ugap.tolist() == [0, 0, 0]
    assert plan.trace_rate_per_s is None


def test_a_note_says_how_stamps_were_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("timestamp,prompt_tokens,output_tokens,why\n1700000000,1,2,x\n1700000004,1,2,y\n")
    notes = {note.kind: note.text for note in _plan(str(path), 2, arrival="trace").notes}
    assert "read as seconds, which count from 1970: 0.25 requests/s" in notes["times"]
    assert "not used: why" in notes["reading"]
    assert "times" not in {note.kind for note in _plan(str(path), 2, arrival="constant").notes}


def _plan(spec: str, count: int, arrival: str = "constant") -> RequestPlan:
    return build_plan(spec, num_requests=count, seed=0, arrival=arrival, max_model_len=None)


# hash_ids: prompts that share the tokens which the traced ones shared

TRACE = (
    {"input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
    {"input_length": 1536, "output_length": 5, "hash_ids": [7, 8, 4]},
    {"input_length": 600, "output_length": 5, "hash_ids": [2, 8]},
    {"input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
)


def trace(tmp_path: Path, *rows: dict[str, Any]) -> str:
    path = tmp_path / "mooncake.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or TRACE))
    return str(path)


def test_blocks_with_equal_ids_are_equal_tokens(tmp_path: Path) -> None:
    plan = _plan(trace(tmp_path), 4)
    assert plan.blocks is not None
    assert plan.blocks.block_tokens == 512
    prompts = Prompts(plan, IDS, prompt_seed=3)
    texts = [prompts.ids(index) for index in range(4)]
    assert [len(text) for text in texts] == plan.prompt_tokens.tolist()
    assert np.array_equal(texts[0][:1024], texts[1][:1024])
    assert not np.array_equal(texts[0][1024:], texts[1][1024:1100])
    assert not np.array_equal(texts[0][:512], texts[2][:512])
    assert np.array_equal(texts[0], texts[3])
    assert np.array_equal(texts[2][512:], texts[0][512:600]), "the same block is the same tokens wherever it stands"
    assert not np.array_equal(texts[0], Prompts(plan, IDS, prompt_seed=4).ids(0))


def test_a_plan_says_what_an_infinite_cache_could_reuse(tmp_path: Path) -> None:
    plan = _plan(trace(tmp_path), 4)
    shared = reusable_tokens(plan)
    assert shared is not None
    assert shared.tolist() == [0, 1024, 0, 1100], "a block counts where all before it are shared"
    assert realised(plan)["reusable_prompt_tokens"] == 2124
    other = [dict(row) for row in TRACE]
    other[1]["hash_ids"] = [5, 6, 4]
    assert _plan(trace(tmp_path, *other), 4).sha256 != plan.sha256
    assert "reusable_prompt_tokens" not in realised(_plan("azure-conv", 4))


def test_ids_that_fit_no_block_size_are_said(tmp_path: Path) -> None:
    plan = _plan(trace(tmp_path, {"input_length": 1000, "output_length": 5, "hash_ids": [1, 2, 3, 4, 5]}), 1)
    assert plan.blocks is None
    assert "hash_ids are not used" in str(plan.notes[0])


def test_sharing_of_prefixes_and_sessions() -> None:
    plan = RequestPlan.of(
        [50, 80, 20, 90, 60],
        [1] * 5,
        prefix=np.array([0, 0, 0, 0, -1]),
        session=np.array([-1, 4, -1, 4, -1]),
        prefix_tokens=(30,),
    )
    shared = reusable_tokens(plan)
    assert shared is not None
    assert shared.tolist() == [0, 30, 20, 80, 0]
    prompts = [Prompts(plan, IDS).ids(index).tolist() for index in range(5)]
    for index, tokens in enumerate(shared.tolist()):
        common = max((_common(prompts[index], one) for one in prompts[:index]), default=0)
        assert common in range(tokens, tokens + 2), "and by the tokens themselves, but for chance"


def _common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_a_share_of_the_requests_begins_alike() -> None:
    plan, plain = (_plan(f"azure-conv{part}", 4000) for part in (";prefix=0.6x300x4", ""))
    for name in ("prompt_tokens", "output_tokens", "arrivals_ugap"):
        assert np.array_equal(getattr(plan, name), getattr(plain, name))
    assert (plan.prefix >= 0).mean() == pytest.approx(0.6, abs=5 * np.sqrt(0.24 / 4000))
    assert set(plan.prefix.tolist()) == {-1, 0, 1, 2, 3}
    assert plan.prefix_tokens == (300,) * 4
    shared = reusable_tokens(plan)
    assert shared is not None
    alike = np.minimum(plan.prompt_tokens, 300)[plan.prefix >= 0].sum()
    assert alike - 4 * 300 * 5 < shared.sum() < alike, "all but the first of each group"
    assert plan.sha256 != plain.sha256


@pytest.mark.parametrize("part", ["0.6", "0.6x0", "1.2x5", "0.6x5x0", "0.6x", "x5", "-1x5"])
def test_prefixes_that_cannot_be(part: str, tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match="want SHARExTOKENS"):
        open_workload(f"azure-conv;prefix={part}")
    with pytest.raises(CbbenchError, match="says itself how its prompts begin"):
        open_workload(f"{trace(tmp_path)};prefix=0.5x5")
