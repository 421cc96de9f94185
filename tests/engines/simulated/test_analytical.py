"""Step times from a shape and a data sheet: every term against its formula, and what the old model got wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.simulated.analytical import AnalyticalStepTimes, narrow_pairs
from engines.simulated.data_sheet import Deployment, step_times_of
from engines.simulated.hardware import HARDWARE, find_hardware
from engines.simulated.kernel_efficiency import H100
from engines.simulated.power import blend, power, whole_power
from engines.simulated.shapes import find_shape
from engines.simulated.speculation import SpeculationTerms
from engines.simulated.step_time import StepShape
from workloads.errors import CbbenchError

GOLDEN_POWER = "0x1.6e3f64d1c92d6p+0"
GOLDEN_NS = [19173730, 85992384, 11345101]


def model(name: str = "llama-3.1-8b", hardware: str = "h100", **deployed: object) -> AnalyticalStepTimes:
    deployment = Deployment(hardware=hardware, **deployed)  # type: ignore[arg-type]
    return step_times_of(name, find_shape(name), find_hardware(hardware), deployment)


def decode_ms(step_times: AnalyticalStepTimes, rows: int, context: int = 0) -> float:
    return step_times.duration_ns(StepShape(rows, rows, rows * context, 0, 0)) / 1e6


def test_one_row_reads_the_weights_and_launches_the_layers() -> None:
    body, head = 6_979_321_856, 128_256 * 4096
    bandwidth = 3350e9 * H100.weights
    expected_ms = (body + head) * 2 / bandwidth * 1e3 + 32 * H100.layer_s * 1e3
    assert decode_ms(model(), 1) == pytest.approx(expected_ms, rel=0.01)


@pytest.mark.parametrize("hardware", HARDWARE)
def test_no_batch_computes_faster_than_the_chip(hardware: str) -> None:
    """The old model had no compute term in a decode step: 1,024 rows took 1,596 of an H100's 989 TFLOP/s."""
    step_times, shape = model(hardware=hardware), find_shape("llama-3.1-8b")
    for rows in (256, 1024, 4096):
        flop = 2 * rows * (shape.dense_parameters + shape.vocab * shape.d_model)
        reached = flop / (decode_ms(step_times, rows) / 1e3)
        assert reached < 1.2 * find_hardware(hardware).flop_per_s  # an RTX 4090 was measured above its data sheet
    assert decode_ms(step_times, 4096) > 3 * decode_ms(step_times, 1024)


def test_throughput_flattens_where_computing_takes_longer_than_reading() -> None:
    step_times = model(hardware="a100")
    gains = [2 * decode_ms(step_times, rows) / decode_ms(step_times, 2 * rows) for rows in (4, 64, 512, 1024)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.95
    assert gains[-1] < 1.1


def test_a_prompt_does_not_pay_for_the_head_of_every_token() -> None:
    step_times = model()
    assert step_times.head_row * 2048 > 1e6  # 2,048 tokens would cost over a millisecond
    one, many = (step_times.duration_ns(StepShape(2048, rows, 0, 0, 0)) for rows in (1, 2048))
    assert many - one == pytest.approx(step_times.head_row * 2048 - step_times.head, rel=0.01)


def test_gpus_share_weights_and_kv_and_pay_for_joining() -> None:
    one, four = model("llama-3.1-70b"), model("llama-3.1-70b", gpus=4)
    assert four.weights == pytest.approx(one.weights / 4)
    assert four.kv == pytest.approx(one.kv / 4)
    assert four.fixed - one.fixed == pytest.approx(2 * 80 * 5.1e3)
    sixteen_heads = model("qwen3-30b-a3b", gpus=8)  # four KV heads: eight GPUs hold each twice
    assert sixteen_heads.kv == pytest.approx(model("qwen3-30b-a3b").kv / 4)


@pytest.mark.parametrize(("hardware", "gpus"), [("rtx4090", 4), ("h100", 3), ("l40s", 4)])
def test_gpus_that_no_request_measured_together_are_refused(hardware: str, gpus: int) -> None:
    with pytest.raises(CbbenchError, match="no measured all-reduce") as raised:
        model(hardware=hardware, gpus=gpus)
    assert raised.value.field == "tensor_parallel"


def test_fp8_halves_what_is_read() -> None:
    bf16, fp8 = model(), model(weights="fp8", kv="fp8")
    assert fp8.weights == pytest.approx(bf16.weights / 2)
    assert fp8.token < bf16.token
    assert fp8.kv == pytest.approx(bf16.kv / 2 * H100.kv / H100.fp8_kv)
    with pytest.raises(CbbenchError, match="has no FP8 arithmetic"):
        model(hardware="a100", weights="fp8")


def test_a_step_reads_the_experts_that_its_tokens_touch() -> None:
    experts = model("mixtral-8x7b").experts
    assert experts is not None
    assert experts.touched(1) == pytest.approx(2)
    assert experts.touched(2) == pytest.approx(8 * (1 - 0.75**2))
    assert experts.touched(100) == pytest.approx(8, abs=1e-6)


def test_layers_with_a_window_read_no_more_than_it() -> None:
    gemma = model("gemma-3-27b")
    assert gemma.window is not None
    near, far, farther = (decode_ms(gemma, 8, context) for context in (1024, 2048, 3072))
    assert far - near == pytest.approx(farther - far, abs=2e-6)  # ns are whole
    assert far - near < near - decode_ms(gemma, 8, 0)


def test_vectorised_durations_are_those_of_single_steps() -> None:
    for name in ("llama-3.1-8b", "gemma-3-27b", "mixtral-8x7b"):
        step_times, kv = model(name), np.arange(0, 40_000, 1777)
        singly = [step_times.duration_ns(StepShape(8, 8, positions, 0, 0)) for positions in kv.tolist()]
        assert step_times.decode_device_ns(8, kv).tolist() == singly


def test_a_short_chunk_does_not_fill_the_gpu() -> None:
    tokens, pairs = np.array([128, 512, 4096]), np.array([1000, 1000, 1000])
    assert narrow_pairs(tokens, pairs) == 1000  # √(512 / 128) = 2 times as long, and none for the others


@given(st.floats(1e-6, 1e9), st.floats(0.2, 4.0))
def test_power_is_that_of_the_c_library_to_fourteen_digits(x: float, y: float) -> None:
    assert power(x, y) == pytest.approx(x**y, rel=1e-13)


def test_powers_at_their_ends() -> None:
    assert power(0.0, 2.0) == 0.0
    assert whole_power(0.5, 10) == 0.5**10
    assert blend(0.0, 3.0, 1.5) == blend(3.0, 0.0, 1.5) == 3.0
    assert blend(3.0, 4.0, 2.0) == 5.0


def test_the_bits_are_the_same_on_every_machine() -> None:
    """A golden value: the powers above are made of + - * / alone."""
    assert power(1.2345, 1.7).hex() == GOLDEN_POWER
    shape = StepShape(700, 40, 30_000, 512, 200_000, 0, 1000)
    assert [model(name).duration_ns(shape) for name in ("llama-3.1-8b", "mixtral-8x7b", "gemma-3-4b")] == GOLDEN_NS


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ("h100", "mean error against published dense bf16 layers 3 %, FP8 runs of TensorRT-LLM 11 %"),
        ("rtx4090", "mean error against published dense bf16 steps 3 %, a run of vLLM 1 %"),
        ("h200", "no published table of this GPU was checked"),  # its constants are the H100's
        ("l4", "no published table of this GPU was checked"),
    ],
)
def test_a_prediction_says_how_far_the_nearest_published_tables_are(hardware: str, said: str) -> None:
    assert model(hardware=hardware).label == f"UNCALIBRATED: data sheet of {hardware}, shape of llama-3.1-8b; {said}"


def test_a_host_that_is_slower_than_the_gpu_bounds_the_step_and_leaves_it_idle() -> None:
    plain, held = model(), model(host_floor_ms=20.0)
    small, large = StepShape(1, 1, 100, 0, 0), StepShape(8192, 4, 0, 0, 10_000_000)
    assert plain.duration_ns(small) == plain.device_ns(small) == held.device_ns(small) < 20_000_000
    assert held.duration_ns(small) == 20_000_000
    assert held.duration_ns(large) == plain.duration_ns(large) > 20_000_000


def test_an_eager_host_takes_its_time_for_every_layer_and_row() -> None:
    eager = model("llama-3.1-70b", "a100", gpus=8, host_floor_ms="eager")
    one, eight = (eager.duration_ns(StepShape(rows, rows, 0, 0, 0)) for rows in (1, 8))
    assert one == pytest.approx(80 * 0.55e6 + 0.27e6)
    assert eight - one == pytest.approx(7 * 0.27e6)
    newer = model("llama-3.1-70b", "h100", gpus=8, host_floor_ms="eager")
    assert newer.duration_ns(StepShape(1, 1, 0, 0, 0)) == pytest.approx(80 * 0.38e6 + 0.27e6)


@given(st.integers(1, 16), st.floats(0.0, 0.99))
def test_accepted_tokens_follow_the_formula(tokens: int, acceptance: float) -> None:
    terms = SpeculationTerms(draft_tokens=tokens, acceptance=acceptance, draft_cost=0.0)
    assert terms.tokens_per_step == pytest.approx((1 - acceptance ** (tokens + 1)) / (1 - acceptance), rel=1e-12)


def test_certain_acceptance_gives_every_drafted_token() -> None:
    assert SpeculationTerms(draft_tokens=4, acceptance=1.0, draft_cost=0.0).tokens_per_step == 5.0


def test_speculation_is_acceptance_over_cost_where_reading_weights_takes_longest() -> None:
    """Leviathan et al.: (1 - p^(K+1)) / (1 - p) / (1 + K c), as verifying five tokens reads the weights once."""
    terms = SpeculationTerms(draft_tokens=4, acceptance=0.8, draft_cost=0.05)
    gain = decode_ms(model(), 1) / decode_ms(model(speculation=terms), 1)
    assert gain == pytest.approx((1 - 0.8**5) / (1 - 0.8) / (1 + 4 * 0.05), rel=0.02)


def test_speculation_loses_where_computing_takes_longest() -> None:
    terms = SpeculationTerms(draft_tokens=4, acceptance=0.5, draft_cost=0.05)
    assert decode_ms(model(speculation=terms), 512) > 1.5 * decode_ms(model(), 512)


def test_speculation_changes_no_step_with_prompts() -> None:
    terms = SpeculationTerms(draft_tokens=4, acceptance=0.5, draft_cost=0.05)
    shape = StepShape(700, 40, 30_000, 512, 200_000, 0, 1000)
    assert model(speculation=terms).duration_ns(shape) == model().duration_ns(shape)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b"])
def test_vectorised_durations_with_speculation_are_those_of_single_steps(name: str) -> None:
    step_times = model(name, speculation=SpeculationTerms(draft_tokens=3, acceptance=0.7, draft_cost=0.1))
    kv = np.arange(0, 40_000, 1777)
    singly = [step_times.device_ns(StepShape(8, 8, positions, 0, 0)) for positions in kv.tolist()]
    assert step_times.decode_device_ns(8, kv).tolist() == singly


def test_two_gpus_on_pcie_are_estimated_and_say_so() -> None:
    one, two = model(hardware="l40s"), model(hardware="l40s", gpus=2)
    assert two.weights == pytest.approx(one.weights / 2)
    assert two.fixed - one.fixed == pytest.approx(2 * 32 * 20e3)
    assert two.activation > 2 * 32 * 4096 * 2 / 25  # ns per token, at 25 GB/s
    assert two.label.endswith("no published table of GPUs joined by PCIe was checked: their all-reduce is assumed")
