"""Which step times and pool a simulated run gets, and the error if none is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engines.simulated.selection import default_context_tokens, default_kv_blocks, refuse_free_swaps, select_step_times
from engines.simulated.step_time import STEP_TIMES_FILE, save_step_times
from tests.engines.simulated.small_runs import STEP_TIMES
from workloads.errors import CbbenchError


def test_step_times_come_from_a_file_a_run_or_a_data_sheet(tmp_path: Path) -> None:
    save_step_times(STEP_TIMES, tmp_path / STEP_TIMES_FILE)
    assert (
        select_step_times(tmp_path, None, "tiny")
        == select_step_times(tmp_path / STEP_TIMES_FILE, None, "tiny")
        == STEP_TIMES
    )
    assert not select_step_times(None, "h100", "llama-3.1-8b").calibrated


def test_the_run_knows_its_own_pool_and_context_best() -> None:
    origin = msgspec.structs.replace(STEP_TIMES.origin, kv_blocks=100, block_size=16, max_model_len=640)
    step_times = msgspec.structs.replace(STEP_TIMES, origin=origin)
    assert default_kv_blocks(step_times, None, "tiny", block_size=8) == 200
    assert default_context_tokens(step_times, "tiny") == 640
    assert default_kv_blocks(STEP_TIMES, None, "tiny", block_size=16) is None
    assert default_kv_blocks(STEP_TIMES, "h100", "llama-3.1-8b", block_size=16) == 27_439
    assert default_context_tokens(STEP_TIMES, "llama-3.1-8b") == 131_072


def test_a_share_of_the_memory_is_a_share_of_the_blocks() -> None:
    step_times = select_step_times(None, "h100", "llama-3.1-8b")
    half, most = (default_kv_blocks(step_times, "h100", "llama-3.1-8b", 16, share) for share in (0.5, 0.9))
    assert half == 15_244
    assert most == 27_439
    with pytest.raises(CbbenchError, match=r"^gpu_memory_utilization: a calibration .* `kv_blocks`"):
        default_kv_blocks(STEP_TIMES, None, "tiny", 16, 0.5)


def test_a_calibration_without_swaps_refuses_them() -> None:
    with pytest.raises(CbbenchError, match=r"^on_kv_pressure: swap is not calibrated, as no step of a test moved"):
        refuse_free_swaps(STEP_TIMES)
    refuse_free_swaps(msgspec.structs.replace(STEP_TIMES, swap_block_ns=1.0))


def test_blocks_of_another_size_move_in_another_time() -> None:
    origin = msgspec.structs.replace(STEP_TIMES.origin, kv_blocks=100, block_size=16)
    step_times = msgspec.structs.replace(STEP_TIMES, origin=origin, swap_block_ns=1000.0)
    other = step_times.with_blocks_of(32)
    assert (other.swap_block_ns, other.origin.kv_blocks, other.origin.block_size) == (2000.0, 50, 32)
    assert default_kv_blocks(other, None, "tiny", block_size=32) == 50
    assert step_times.with_blocks_of(16) is step_times


def test_usage_errors_are_one_line_with_the_choices(tmp_path: Path) -> None:
    for step_times, hardware, model, complaint in (
        (None, None, "tiny", r"^engine: simulated needs `step_time_model` RUN .* `hardware` a10\|"),
        (tmp_path, "h100", "tiny", "give one of them"),
        (None, "h100", "my-model", "^model: the simulator knows the shapes of tiny"),
        (tmp_path, None, "tiny", "cbbench calibrate RUN"),
    ):
        with pytest.raises(CbbenchError, match=complaint):
            select_step_times(step_times, hardware, model)


def test_choosing_loads_no_torch() -> None:
    code = "import sys, engines.simulated.selection; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
