"""A stand-in for pynvml with a driver behind it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml


class Driver:
    """Two GPUs, as far as they answer; constants and errors are the real package's."""

    nvmlDeviceGetUtilizationRates = staticmethod(lambda handle: SimpleNamespace(gpu=93, memory=40))
    nvmlDeviceGetMemoryInfo = staticmethod(lambda handle: SimpleNamespace(total=8 << 30, used=5 << 30))
    nvmlDeviceGetPowerUsage = staticmethod(lambda handle: 412_500)
    nvmlDeviceGetTemperature = staticmethod(lambda handle, sensor: 61)
    nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda handle: 0x4 | 0x1)
    nvmlDeviceGetName = staticmethod(lambda handle: "Card")
    nvmlDeviceGetUUID = staticmethod(lambda handle: f"GPU-{handle}abc")
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlInit = staticmethod(lambda: None)
    nvmlSystemGetCudaDriverVersion = staticmethod(lambda: 13010)
    nvmlSystemGetDriverVersion = staticmethod(lambda: "580.1")
    nvmlDeviceGetEnforcedPowerLimit = staticmethod(lambda handle: 700_000)

    def __init__(self, **answers: Callable[..., Any]) -> None:
        vars(self).update(answers)

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 3201}[clock]

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[clock]

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)


def not_supported(*about: object) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
