"""Which step times and pool a simulated run gets, and the error if none is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.simulated.data_sheet import Deployment
from engines.simulated.hardware import hardware_named
from engines.simulated.selection import default_context_tokens, default_kv_blocks, refuse_free_swaps, select_step_times
from engines.simulated.step_time import STEP_TIMES_FILE, FittedStepTimes, StepTimeModel, save_step_times
from tests.engines.simulated.small_runs import STEP_TIMES
from workloads.errors import CbbenchError

H100 = Deployment(hardware="h100")


def blocks(step_times: StepTimeModel, model: str, deployment: Deployment | None, **changed: Any) -> int | None:
    setting: dict[str, Any] = {"block_size": 16, "max_num_seqs": 32, "max_num_batched_tokens": 8192} | changed
    return default_kv_blocks(step_times, model, deployment, **setting)


def test_step_times_come_from_a_file_a_run_or_a_data_sheet(tmp_path: Path) -> None:
    save_step_times(STEP_TIMES, tmp_path / STEP_TIMES_FILE)
    assert (
        select_step_times(tmp_path, "tiny", None)
        == select_step_times(tmp_path / STEP_TIMES_FILE, "tiny", None)
        == STEP_TIMES
    )
    assert not select_step_times(None, "llama-3.1-8b", H100).calibrated


def test_the_run_knows_its_own_pool_and_context_best() -> None:
    origin = msgspec.structs.replace(STEP_TIMES.origin, kv_blocks=100, block_size=16, max_model_len=640)
    step_times = msgspec.structs.replace(STEP_TIMES, origin=origin)
    assert blocks(step_times, "tiny", None, block_size=8) == 200
    assert default_context_tokens(step_times, "tiny") == 640
    assert blocks(STEP_TIMES, "tiny", None) is None
    assert default_context_tokens(STEP_TIMES, "llama-3.1-8b") == 131_072


def test_a_share_of_the_memory_is_a_share_of_the_blocks() -> None:
    step_times = select_step_times(None, "llama-3.1-8b", H100)
    half, most = (blocks(step_times, "llama-3.1-8b", H100, memory_share=share) for share in (0.5, 0.9))
    assert half is not None
    assert most is not None
    # 81,559 MiB are on the card, and a block is 2 MiB: 16 tokens, 32 layers, 8 heads of 128, K and V, two bytes each.
    assert most - half == pytest.approx(0.4 * 81_559 / 2, abs=1)


def test_a_4090_has_the_blocks_that_vllm_counted() -> None:
    """2,588 blocks of 16 in LLMServingSim's run of vLLM 0.19: Llama 3.1 8B, 256 slots, 2,048 tokens a step."""
    deployment = Deployment(hardware="rtx4090")
    step_times = select_step_times(None, "llama-3.1-8b", deployment)
    found = blocks(step_times, "llama-3.1-8b", deployment, max_num_seqs=256, max_num_batched_tokens=2048)
    assert found == pytest.approx(2588, rel=0.01)


def test_a_calibration_knows_no_memory() -> None:
    with pytest.raises(CbbenchError, match=r"^gpu_memory_utilization: a calibration .* `kv_blocks`"):
        blocks(STEP_TIMES, "tiny", None, memory_share=0.5)


def test_a_calibration_without_swaps_refuses_them() -> None:
    with pytest.raises(CbbenchError, match=r"^on_kv_pressure: swap is not calibrated, as no step of a test moved"):
        refuse_free_swaps(STEP_TIMES)
    refuse_free_swaps(msgspec.structs.replace(STEP_TIMES, swap_block_ns=1.0))


def test_blocks_of_another_size_move_in_another_time() -> None:
    origin = msgspec.structs.replace(STEP_TIMES.origin, kv_blocks=100, block_size=16)
    step_times = msgspec.structs.replace(STEP_TIMES, origin=origin, swap_block_ns=1000.0)
    other = step_times.with_blocks_of(32)
    assert (other.swap_block_ns, other.origin.kv_blocks, other.origin.block_size) == (2000.0, 50, 32)
    assert blocks(other, "tiny", None, block_size=32) == 50
    assert step_times.with_blocks_of(16) is step_times


def test_usage_errors_are_one_line_with_the_choices(tmp_path: Path) -> None:
    a_cpu = tmp_path / "a-cpu.json"
    save_step_times(STEP_TIMES, a_cpu)
    for step_times, deployment, model, complaint in (
        (None, None, "tiny", r"^engine: simulated needs `step_time_model` RUN .* `hardware` a10\|"),
        (a_cpu, H100, "tiny", "^hardware: these step times were measured on an unknown device"),
        (
            None,
            H100,
            "my-model",
            "^model: .* no shape of 'my-model': give a config.json, or one of tiny",
        ),
        (tmp_path, None, "tiny", "cbbench calibrate RUN"),
    ):
        with pytest.raises(CbbenchError, match=complaint):
            select_step_times(step_times, model, deployment)


def test_choosing_loads_no_torch() -> None:
    code = "import sys, engines.simulated.selection; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_calibrated_step_times_move_to_other_hardware_by_the_data_sheets(tmp_path: Path) -> None:
    origin = msgspec.structs.replace(
        STEP_TIMES.origin, device="a100", model="llama-3.1-8b", kv_blocks=100, block_size=16
    )
    fitted = msgspec.structs.replace(STEP_TIMES, origin=origin)
    save_step_times(fitted, tmp_path / STEP_TIMES_FILE)
    moved = select_step_times(tmp_path, "tiny", H100)
    assert isinstance(moved, FittedStepTimes)
    assert moved.decode.kv == pytest.approx(fitted.decode.kv * 2039 / 3350)
    assert moved.mixed.pair == pytest.approx(fitted.mixed.pair * 312 / 989)
    assert moved.gap == fitted.gap
    assert moved.label == "UNCALIBRATED: a test, moved from a100 to h100 by their data sheets"
    found = blocks(moved, "tiny", H100)
    assert found is not None
    assert found > 20_000, "of an H100's memory beside the model that was measured"
    same = select_step_times(tmp_path, "tiny", Deployment(hardware="a100"))
    assert same == fitted
    with pytest.raises(CbbenchError, match="keep their number of GPUs"):
        select_step_times(tmp_path, "tiny", Deployment(hardware="h100", gpus=2))


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"),
        ("Tesla T4", None),
    ],
)
def test_a_gpu_is_known_by_the_name_that_its_driver_has_for_it(device: str, name: str | None) -> None:
    assert hardware_named(device) == name
