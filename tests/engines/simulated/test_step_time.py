"""The law's arithmetic by hand, its bits in bulk, and its file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.base import EngineError
from engines.simulated.step_time import (
    DecodeTerms,
    GapTerms,
    MixedTerms,
    Origin,
    StepShape,
    StepTimeModel,
    load_step_times,
    save_step_times,
)
from tests.engines.simulated.small_runs import LAW

ROUND = StepTimeModel(
    calibrated=True,
    decode=DecodeTerms(step=1000.0, row=10.0, kv=1.0),
    mixed=MixedTerms(
        step=2000.0, token=5.0, beyond_knee=7.0, knee_tokens=100, row=11.0, kv=2.0, pair=0.5, prefill_kv=3.0
    ),
    gap=GapTerms(step=300.0, row=4.0),
    swap_block_ns=50.0,
    origin=Origin(source="a test"),
)


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
    law = msgspec.structs.replace(ROUND, row_buckets=(1, 2, 4, 8))
    cost = [law.duration_ns(StepShape(rows, rows, 0, 0, 0)) for rows in (1, 2, 3, 5, 8, 9)]
    assert cost == [1010, 1020, 1040, 1080, 1080, 1090]
    assert law.decode_durations_ns(3, np.array([0, 7])).tolist() == [1040, 1047]


def test_no_step_takes_no_time() -> None:
    nothing = msgspec.structs.replace(ROUND, decode=DecodeTerms(step=0.0, row=0.0, kv=0.0))
    assert nothing.duration_ns(StepShape(1, 1, 1, 0, 0)) == 1
    assert nothing.decode_durations_ns(1, np.array([1])).tolist() == [1]


@given(st.integers(1, 4096), st.lists(st.integers(0, 10**9), min_size=1, max_size=40))
def test_many_at_once_have_the_bits_of_one_at_a_time(rows: int, kv: list[int]) -> None:
    singly = [LAW.duration_ns(StepShape(rows, rows, positions, 0, 0)) for positions in kv]
    assert LAW.decode_durations_ns(rows, np.array(kv)).tolist() == singly


def test_a_law_survives_its_file(tmp_path: Path) -> None:
    save_step_times(LAW, tmp_path / "law.json")
    assert load_step_times(tmp_path / "law.json") == LAW
    assert '"schema": "cbbench.law/1"' in (tmp_path / "law.json").read_text()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('"cbbench.law/1"', '"cbbench.law/9"'), "not a step-time law"),
        (('"calibrated": true,', ""), "calibrated"),
        (('"row": 41613.7', '"row": -1.0'), "row must be a number of at least 0, got -1.0"),
        (('"row_buckets": []', '"row_buckets": [4, 2]'), "row_buckets must be increasing, got [4, 2]"),
        (("{", "["), "not a step-time law"),
    ],
)
def test_a_file_that_is_no_law_is_refused_by_name(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    path = tmp_path / "law.json"
    save_step_times(LAW, path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(EngineError) as refused:
        load_step_times(path)
    assert str(path) in str(refused.value)
    assert complaint in str(refused.value)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cbbench calibrate RUN"):
        load_step_times(tmp_path / "none.json")


def test_the_label_shouts_where_nothing_was_measured() -> None:
    assert ROUND.label == "calibrated on a test"
    assert msgspec.structs.replace(ROUND, calibrated=False).label.startswith("UNCALIBRATED")
