"""Which law and pool a simulated run gets, and what is said where none is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engines.base import EngineError
from engines.simulated.choose import choose_law, default_context_tokens, default_kv_blocks
from engines.simulated.law import LAW_FILE, save_law
from tests.engines.simulated.laws import LAW


def test_a_law_comes_from_a_file_a_run_or_a_data_sheet(tmp_path: Path) -> None:
    save_law(LAW, tmp_path / LAW_FILE)
    assert choose_law(tmp_path, None, "tiny") == choose_law(tmp_path / LAW_FILE, None, "tiny") == LAW
    assert not choose_law(None, "h100", "llama-3.1-8b").calibrated


def test_the_run_knows_its_own_pool_and_context_best() -> None:
    origin = msgspec.structs.replace(LAW.origin, kv_blocks=100, block_size=16, max_model_len=640)
    law = msgspec.structs.replace(LAW, origin=origin)
    assert default_kv_blocks(law, None, "tiny", block_size=8) == 200
    assert default_context_tokens(law, "tiny") == 640
    assert default_kv_blocks(LAW, None, "tiny", block_size=16) is None
    assert default_kv_blocks(LAW, "h100", "llama-3.1-8b", block_size=16) == 26_674
    assert default_context_tokens(LAW, "llama-3.1-8b") == 131_072


def test_usage_errors_are_one_line_with_the_choices(tmp_path: Path) -> None:
    for law, hardware, model, complaint in (
        (None, None, "tiny", r"--law RUN .* --hardware a10\|"),
        (tmp_path, "h100", "tiny", "give one of them"),
        (None, "h100", "my-model", "--model my-model: the simulator knows the shapes of tiny"),
        (tmp_path, None, "tiny", "cbbench calibrate RUN"),
    ):
        with pytest.raises(EngineError, match=complaint):
            choose_law(law, hardware, model)


def test_choosing_loads_no_torch() -> None:
    code = "import sys, engines.simulated.choose; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
