"""The GPU's samples, summed up and shown."""

from __future__ import annotations

import msgspec
import pytest

from engines.base import GpuSample, Signal
from reports.metrics import definitions
from reports.render.run import gpu_line
from reports.summary import with_gpu
from reports.summary_schema import Signals


def signal(gpu: GpuSample | None) -> Signal:
    return Signal(0, 1, 0, None, None, 0.0, None, 0, 0, gpu=gpu)


def test_means_and_peak_are_over_the_samples_that_said_so() -> None:
    samples = [
        signal(None),
        signal(GpuSample(utilization=0.5, memory_used_bytes=3 << 30, power_w=300.0, sm_clock_mhz=1700, slowed_by=())),
        signal(GpuSample(utilization=1.0, memory_used_bytes=2 << 30, sm_clock_mhz=1800, slowed_by=("power cap",))),
    ]
    one = with_gpu(Signals(steps=4), samples)
    assert (one.steps, one.gpu_utilization_mean, one.gpu_memory_peak_bytes) == (4, 0.75, 3 << 30)
    assert (one.gpu_power_mean_w, one.gpu_sm_clock_mean_mhz, one.gpu_slowed_share) == (300.0, 1750, 0.5)
    assert gpu_line(one) == (
        "GPU in use 75% · memory peak 3.0 GiB · 300 W · 1750 MHz · clocks throttled in 50% of samples"
    )


@pytest.mark.parametrize("samples", [[], [signal(None)], [signal(GpuSample())]])
def test_without_a_gpu_everything_is_none(samples: list[Signal]) -> None:
    assert with_gpu(Signals(), samples) == Signals()
    assert gpu_line(Signals()) == ""


def test_every_number_has_a_definition() -> None:
    ours = {f"signals.{name}" for name in Signals.__struct_fields__ if name.startswith("gpu_")}
    assert ours <= set(definitions())


def test_a_sample_survives_the_file() -> None:
    one = signal(GpuSample(utilization=0.5, slowed_by=("power cap",)))
    assert msgspec.json.decode(msgspec.json.encode(one), type=Signal) == one
