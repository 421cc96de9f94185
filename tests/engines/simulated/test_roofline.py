"""The uncalibrated step times: data sheets in, the right shape and the right label out."""

from __future__ import annotations

import pytest

from engines.reference.model.config import SHAPES
from engines.simulated.roofline import HARDWARE, kv_blocks_in_memory, roofline_step_times
from engines.simulated.step_time import StepShape
from workloads.errors import CbbenchError

LLAMA = SHAPES["llama-3.1-8b"]


def test_reading_the_weights_is_what_a_small_batch_costs() -> None:
    step_times = roofline_step_times("h100", "llama-3.1-8b", LLAMA)
    assert not step_times.calibrated
    assert step_times.label == "UNCALIBRATED: roofline of llama-3.1-8b on h100"
    one_row = step_times.duration_ns(StepShape(1, 1, 1, 0, 0))
    assert 5.5e6 < one_row < 5.7e6  # 15 GB at 80 % of 3.35 TB/s
    many_positions = step_times.duration_ns(StepShape(1, 1, 100_000, 0, 0))
    assert many_positions - one_row == pytest.approx(100_000 * 131_072 / (3.35e12 * 0.8) * 1e9, rel=1e-3)


def test_a_chunk_is_free_up_to_the_knee_and_costs_its_flops_beyond() -> None:
    step_times = roofline_step_times("h100", "llama-3.1-8b", LLAMA)
    knee = step_times.mixed.knee_tokens
    assert 100 < knee < 300
    below, at, beyond = (step_times.duration_ns(StepShape(tokens, 1, 0, 0, 0)) for tokens in (2, knee, knee + 1000))
    assert below == at
    assert beyond - at == pytest.approx(1000 * 2 * 7.5e9 / (989e12 * 0.6) * 1e9, rel=0.01)


def test_faster_hardware_is_never_slower() -> None:
    shapes = [StepShape(8, 8, 4000, 0, 0), StepShape(2048, 9, 4000, 512, 2048 * 1024)]
    for slow, fast in (("l4", "l40s"), ("a100", "h100"), ("h100", "h200")):
        for shape in shapes:
            slow_ns, fast_ns = (roofline_step_times(name, "", LLAMA).duration_ns(shape) for name in (slow, fast))
            assert slow_ns >= fast_ns


def test_swapping_a_block_takes_its_bytes_over_the_link() -> None:
    """2 MiB of an 8B model's KV: 42 us over PCIe 5, twice that over PCIe 4, half of that for blocks of 8 tokens."""
    newer, older = (roofline_step_times(name, "", LLAMA) for name in ("h200", "a100"))
    stays, moves = (StepShape(4, 4, 4000, 0, 0, swapped_blocks=blocks) for blocks in (0, 100))
    took_ns = newer.duration_ns(moves) - newer.duration_ns(stays)
    assert took_ns == pytest.approx(100 * 16 * 131_072 / 50e9 * 1e9, abs=1)
    assert older.swap_block_ns == 2 * newer.swap_block_ns
    assert newer.with_blocks_of(8).swap_block_ns == newer.swap_block_ns / 2
    assert all(roofline_step_times(name, "", LLAMA).knows_swaps for name in HARDWARE)


def test_kv_blocks_fill_the_memory_beside_the_weights() -> None:
    room_bytes = 80e9 - LLAMA.parameters * 2
    assert kv_blocks_in_memory("h100", LLAMA, 16) == int(room_bytes * 0.9 / (16 * 131_072))
    assert kv_blocks_in_memory("h100", LLAMA, 16, 0.5) == int(room_bytes * 0.5 / (16 * 131_072))
    with pytest.raises(CbbenchError, match=r"no room for KV \(`gpu_memory_utilization` 0.9\)"):
        kv_blocks_in_memory("a10", SHAPES["llama-3.1-8b"].__class__(**{**_fields(), "layers": 60}), 16)


def test_unknown_hardware_is_refused_with_the_choices() -> None:
    with pytest.raises(CbbenchError, match=", ".join(HARDWARE)):
        roofline_step_times("tpu", "llama-3.1-8b", LLAMA)


def _fields() -> dict[str, object]:
    return {name: getattr(LLAMA, name) for name in LLAMA.__dataclass_fields__}
