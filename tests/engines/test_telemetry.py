"""The real pynvml on a machine without a driver, and a stand-in driver for the numbers."""

from __future__ import annotations

import threading
import time

import pynvml
import pytest

from engines.base import GpuSample
from engines.telemetry import Telemetry, first_visible, open_gpus
from tests.engines.gpu_driver import Driver, not_supported

try:
    pynvml.nvmlInit()
    DRIVER = True
except pynvml.NVMLError:
    DRIVER = False


@pytest.mark.skipif(DRIVER, reason="there is a driver here")
def test_without_a_driver_there_is_no_gpu() -> None:
    assert open_gpus() == []


def test_without_the_package_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert open_gpus() == []


def test_a_reading() -> None:
    gpu = open_gpus(Driver())[0]
    assert gpu.read() == GpuSample(0.93, 5 << 30, 1755, 3201, 412.5, 61, ("power cap",))
    info = gpu.info()
    assert (info.name, info.driver, info.cuda, info.power_limit_w) == ("Card", "580.1", "13.1", 700.0)
    assert (info.sm_clock_max_mhz, info.memory_total_bytes) == (1980, 8 << 30)


def test_what_the_driver_does_not_tell_is_none_and_not_zero() -> None:
    driver = Driver(nvmlDeviceGetPowerUsage=not_supported, nvmlDeviceGetUtilizationRates=not_supported)
    sample = open_gpus(driver)[0].read()
    assert sample is not None
    assert (sample.power_w, sample.utilization, sample.sm_clock_mhz) == (None, None, 1755)


def test_a_gpu_that_says_nothing_gives_no_sample() -> None:
    silent = {name: not_supported for name in dir(Driver) if name.startswith("nvmlDeviceGet")}
    silent |= {"nvmlDeviceGetHandleByIndex": lambda index: index, "nvmlDeviceGetCount": lambda: 1}
    assert open_gpus(Driver(**silent))[0].read() is None


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [(None, "GPU-0abc"), ("1,0", "GPU-1abc"), ("GPU-1a", "GPU-1abc"), ("", None), ("7", None), ("MIG-0abc", None)],
)
def test_the_device_that_cuda_sees_first(visible: str | None, uuid: str | None) -> None:
    found = first_visible(open_gpus(Driver()), {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert (found.info().uuid if found else None) == uuid


def test_the_thread_reads_until_it_is_closed() -> None:
    reads = threading.Semaphore(0)

    def power(handle: int) -> int:
        reads.release()
        return 1000

    with Telemetry(open_gpus(Driver(nvmlDeviceGetPowerUsage=power))[0], period_s=0.001) as telemetry:
        for _ in range(3):
            assert reads.acquire(timeout=10)
        sample = telemetry.latest()
    assert sample is not None
    assert sample.power_w == 1.0
    assert "gpu-telemetry" not in {thread.name for thread in threading.enumerate()}


def test_an_old_reading_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Telemetry(open_gpus(Driver())[0], period_s=0.001) as telemetry:
        pass
    assert telemetry.latest() is not None
    later = time.monotonic_ns() + 2_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: later)
    assert telemetry.latest() is None


def test_without_a_gpu_there_is_nothing_to_read() -> None:
    with Telemetry(None) as telemetry:
        assert telemetry.latest() is None
