"""The arithmetic of step times by hand, its bits in bulk, and its file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.simulated.step_time import (
    STEP_TIMES_FILE,
    DecodeTerms,
    FittedStepTimes,
    GapTerms,
    MixedTerms,
    Origin,
    StepShape,
    load_step_times,
    save_step_times,
)
from tests.engines.simulated.small_runs import STEP_TIMES
from workloads.errors import CbbenchError

ROUND = FittedStepTimes(
    calibrated=True,
    decode=DecodeTerms(step=1000.0, row=10.0, kv=1.0),
    mixed=MixedTerms(
        step=2000.0, token=5.0, beyond_knee=7.0, knee_tokens=100, row=11.0, kv=2.0, pair=0.5, prefill_kv=3.0
    ),
    gap=GapTerms(step=300.0, row=4.0),
    swap_block_ns=50.0,
    origin=Origin(source="a test"),
)

OLD_FILE = """{
  "schema": "cbbench.law/1",
  "calibrated": true,
  "decode": {"step": 1000.0, "row": 10.0, "kv": 1.0},
  "mixed": {
    "step": 2000.0, "token": 5.0, "beyond_knee": 7.0, "knee_tokens": 100, "row": 11.0, "kv": 2.0, "pair": 0.5,
   "prefill_kv": 3.0
  },
  "gap": {"step": 300.0, "row": 4.0},
  "swap_block_ns": 50.0,
  "overlapped": false,
  "row_buckets": [],
  "origin": {
    "source": "a test", "model": null, "device": null, "kv_blocks": null, "block_size": null, "max_model_len": null,
    "kv_bytes_per_token": null, "hold_out": {}, "fitted_on": {}, "warnings": []
  }
}"""


def test_decode_only() -> None:
    assert ROUND.duration_ns(StepShape(tokens=4, rows=4, kv=99, prefill_kv=0, prefill_pairs=0)) == 1000 + 40 + 99


def test_mixed_below_and_beyond_the_knee() -> None:
    shape = StepShape(tokens=80, rows=3, kv=20, prefill_kv=64, prefill_pairs=1000)
    assert ROUND.duration_ns(shape) == 2000 + 400 + 33 + 40 + 500 + 192
    assert ROUND.duration_ns(shape._replace(tokens=110)) == 2000 + 550 + 70 + 33 + 40 + 500 + 192


def test_swapped_blocks_and_the_gap() -> None:
    decode = StepShape(tokens=1, rows=1, kv=1, prefill_kv=0, prefill_pairs=0)
    assert ROUND.duration_ns(decode._replace(swapped_blocks=3)) == ROUND.duration_ns(decode) + 150
    assert ROUND.gap_ns(8) == 332


def test_graph_buckets_pad_decode_only_steps() -> None:
    """33 rows in a graph for 64 cost what 64 do; beyond the largest graph a step runs as it is."""
    step_times = msgspec.structs.replace(ROUND, row_buckets=(1, 2, 4, 8))
    cost = [step_times.duration_ns(StepShape(rows, rows, 0, 0, 0)) for rows in (1, 2, 3, 5, 8, 9)]
    assert cost == [1010, 1020, 1040, 1080, 1080, 1090]
    assert step_times.decode_device_ns(3, np.array([0, 7])).tolist() == [1040, 1047]


def test_no_step_takes_no_time() -> None:
    nothing = msgspec.structs.replace(ROUND, decode=DecodeTerms(step=0.0, row=0.0, kv=0.0))
    assert nothing.duration_ns(StepShape(1, 1, 1, 0, 0)) == 1
    assert nothing.decode_device_ns(1, np.array([1])).tolist() == [1]


@given(st.integers(1, 4096), st.lists(st.integers(0, 10**9), min_size=1, max_size=40))
def test_many_at_once_have_the_bits_of_one_at_a_time(rows: int, kv: list[int]) -> None:
    singly = [STEP_TIMES.duration_ns(StepShape(rows, rows, positions, 0, 0)) for positions in kv]
    assert STEP_TIMES.decode_device_ns(rows, np.array(kv)).tolist() == singly


def test_a_model_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / STEP_TIMES_FILE
    save_step_times(STEP_TIMES, path)
    assert load_step_times(path) == load_step_times(tmp_path) == STEP_TIMES
    assert '"schema": "cbbench.step-time-model/1"' in path.read_text()


def test_the_file_of_an_earlier_version_is_read_by_path_and_by_folder(tmp_path: Path) -> None:
    """law.json, as earlier versions wrote it; a file of this version beside it takes precedence."""
    path = tmp_path / "law.json"
    path.write_text(OLD_FILE)
    assert load_step_times(path) == load_step_times(tmp_path) == ROUND
    save_step_times(STEP_TIMES, tmp_path / STEP_TIMES_FILE)
    assert load_step_times(tmp_path) == STEP_TIMES


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('"cbbench.step-time-model/1"', '"cbbench.step-time-model/9"'), "not a step-time model"),
        (('"calibrated": true,', ""), "calibrated"),
        (('"row": 41613.7', '"row": -1.0'), "row must be a number of at least 0, got -1.0"),
        (('"row_buckets": []', '"row_buckets": [4, 2]'), "row_buckets must be increasing, got [4, 2]"),
        (("{", "["), "not a step-time model"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    path = tmp_path / STEP_TIMES_FILE
    save_step_times(STEP_TIMES, path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(CbbenchError) as refused:
        load_step_times(path)
    assert str(path) in str(refused.value)
    assert complaint in str(refused.value)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match="cbbench calibrate RUN"):
        load_step_times(tmp_path / "none.json")


def test_the_label_shouts_where_nothing_was_measured() -> None:
    assert ROUND.label == "calibrated on a test"
    assert msgspec.structs.replace(ROUND, calibrated=False).label.startswith("UNCALIBRATED")
