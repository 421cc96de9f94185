"""Which law and pool a simulated run gets, and what is said where none is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engines.base import EngineError
from engines.simulated.selection import default_context_tokens, default_kv_blocks, refuse_free_swaps, select_step_times
from engines.simulated.step_time import STEP_TIMES_FILE, save_step_times
from tests.engines.simulated.small_runs import LAW


def test_a_law_comes_from_a_file_a_run_or_a_data_sheet(tmp_path: Path) -> None:
    save_step_times(LAW, tmp_path / STEP_TIMES_FILE)
    assert (
        select_step_times(tmp_path, None, "tiny") == select_step_times(tmp_path / STEP_TIMES_FILE, None, "tiny") == LAW
    )
    assert not select_step_times(None, "h100", "llama-3.1-8b").calibrated


def test_the_run_knows_its_own_pool_and_context_best() -> None:
    origin = msgspec.structs.replace(LAW.origin, kv_blocks=100, block_size=16, max_model_len=640)
    law = msgspec.structs.replace(LAW, origin=origin)
    assert default_kv_blocks(law, None, "tiny", block_size=8) == 200
    assert default_context_tokens(law, "tiny") == 640
    assert default_kv_blocks(LAW, None, "tiny", block_size=16) is None
    assert default_kv_blocks(LAW, "h100", "llama-3.1-8b", block_size=16) == 27_439
    assert default_context_tokens(LAW, "llama-3.1-8b") == 131_072


def test_a_share_of_the_memory_is_a_share_of_the_blocks() -> None:
    law = select_step_times(None, "h100", "llama-3.1-8b")
    half, most = (default_kv_blocks(law, "h100", "llama-3.1-8b", 16, share) for share in (0.5, 0.9))
    assert half == 15_244
    assert most == 27_439
    with pytest.raises(EngineError, match=r"^--gpu-memory-utilization: a law .* --kv-blocks N"):
        default_kv_blocks(LAW, None, "tiny", 16, 0.5)


def test_a_law_that_has_seen_no_swap_does_not_sell_them_for_nothing() -> None:
    with pytest.raises(EngineError, match=r"^--on-kv-pressure swap: .* not calibrated, as no step of a test moved"):
        refuse_free_swaps(LAW)
    refuse_free_swaps(msgspec.structs.replace(LAW, swap_block_ns=1.0))


def test_blocks_of_another_size_move_in_another_time() -> None:
    origin = msgspec.structs.replace(LAW.origin, kv_blocks=100, block_size=16)
    law = msgspec.structs.replace(LAW, origin=origin, swap_block_ns=1000.0)
    other = law.with_blocks_of(32)
    assert (other.swap_block_ns, other.origin.kv_blocks, other.origin.block_size) == (2000.0, 50, 32)
    assert default_kv_blocks(other, None, "tiny", block_size=32) == 50
    assert law.with_blocks_of(16) is law


def test_usage_errors_are_one_line_with_the_choices(tmp_path: Path) -> None:
    for law, hardware, model, complaint in (
        (None, None, "tiny", r"--law RUN .* --hardware a10\|"),
        (tmp_path, "h100", "tiny", "give one of them"),
        (None, "h100", "my-model", "--model my-model: the simulator knows the shapes of tiny"),
        (tmp_path, None, "tiny", "cbbench calibrate RUN"),
    ):
        with pytest.raises(EngineError, match=complaint):
            select_step_times(law, hardware, model)


def test_choosing_loads_no_torch() -> None:
    code = "import sys, engines.simulated.selection; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
