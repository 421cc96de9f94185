"""The state of a GPU during a run: NVIDIA's management library (NVML), read four times a second.

A reading takes 0.1 to a few ms and waits for a lock of the driver, while an engine has less than 0.1 ms between two
steps. So a thread of its own reads (ctypes releases the interpreter lock), and a signal takes the newest reading.

Only this module imports pynvml (nvidia-ml-py, in the `gpu` extra). Without it, or without a driver, `open_gpus` returns
an empty list. A value that the driver does not support is None.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from engines.base import GpuSample

PERIOD_S = 0.25
STALE_NS = 1_000_000_000  # an older reading is not used

# NVML's bits for why clocks are reduced. Idling and clocks set by an administrator are left out.
SLOWED_BY = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "temperature, hardware",
    0x80: "power brake",
}


class GpuInfo(msgspec.Struct, frozen=True):
    """Constant during a run."""

    index: int
    name: str | None
    uuid: str | None
    driver: str | None
    cuda: str | None  # the newest CUDA that the driver supports
    memory_total_bytes: int | None
    sm_clock_max_mhz: int | None
    memory_clock_max_mhz: int | None
    power_limit_w: float | None


class Gpu:
    """One device. nvml: the module pynvml, or a fake of it."""

    def __init__(self, nvml: Any, index: int) -> None:
        """nvml.NVMLError where there is no such device."""
        self._nvml = nvml
        self._index = index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def info(self) -> GpuInfo:
        n, handle = self._nvml, self._handle
        cuda = self._query(n.nvmlSystemGetCudaDriverVersion)
        limit_mw = self._query(n.nvmlDeviceGetEnforcedPowerLimit, handle)
        memory = self._query(n.nvmlDeviceGetMemoryInfo, handle)
        return GpuInfo(
            index=self._index,
            name=self._query(n.nvmlDeviceGetName, handle),
            uuid=self._query(n.nvmlDeviceGetUUID, handle),
            driver=self._query(n.nvmlSystemGetDriverVersion),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            memory_total_bytes=None if memory is None else int(memory.total),
            sm_clock_max_mhz=self._query(n.nvmlDeviceGetMaxClockInfo, handle, n.NVML_CLOCK_SM),
            memory_clock_max_mhz=self._query(n.nvmlDeviceGetMaxClockInfo, handle, n.NVML_CLOCK_MEM),
            power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        )

    def read(self) -> GpuSample | None:
        """None where no value can be read, as of a device that has fallen off the bus."""
        n, handle = self._nvml, self._handle
        rates = self._query(n.nvmlDeviceGetUtilizationRates, handle)
        memory = self._query(n.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._query(n.nvmlDeviceGetPowerUsage, handle)
        reasons = self._query(n.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        sample = GpuSample(
            utilization=None if rates is None else rates.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            sm_clock_mhz=self._query(n.nvmlDeviceGetClockInfo, handle, n.NVML_CLOCK_SM),
            memory_clock_mhz=self._query(n.nvmlDeviceGetClockInfo, handle, n.NVML_CLOCK_MEM),
            power_w=None if power_mw is None else power_mw / 1e3,
            temperature_c=self._query(n.nvmlDeviceGetTemperature, handle, n.NVML_TEMPERATURE_GPU),
            slowed_by=None if reasons is None else tuple(name for bit, name in SLOWED_BY.items() if reasons & bit),
        )
        return None if sample == GpuSample() else sample

    def _query(self, question: Callable[..., Any], *about: Any) -> Any:
        try:
            return question(*about)
        except self._nvml.NVMLError:
            return None


def open_gpus(driver: Any = None) -> list[Gpu]:
    """All GPUs of this machine; none without the package, the driver or a device. NVML stays open."""
    nvml = driver or _pynvml()
    if nvml is None:
        return []
    gpus: list[Gpu] = []
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        gpus.extend(Gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    return gpus


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def first_visible(gpus: list[Gpu], environment: Mapping[str, str] = os.environ) -> Gpu | None:
    """The device that CUDA calls 0: the first of CUDA_VISIBLE_DEVICES, an index or (the beginning of) a UUID.

    NVML counts by bus, CUDA by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID: on a machine with different GPUs, set a UUID.
    None where there is no such device, or it is a slice of a GPU (MIG), which has no telemetry.
    """
    wanted = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if wanted.isdigit():
        return gpus[int(wanted)] if int(wanted) < len(gpus) else None
    if not wanted.startswith("GPU-"):
        return None
    return next((gpu for gpu in gpus if (gpu.info().uuid or "").startswith(wanted)), None)


class Telemetry:
    """Reads a GPU on a thread of its own while it is open; `latest` may be called from any other."""

    def __init__(self, gpu: Gpu | None, period_s: float = PERIOD_S) -> None:
        self._gpu = gpu
        self._period_s = period_s
        self._latest: tuple[int, GpuSample] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu-telemetry", daemon=True)

    @property
    def watching(self) -> bool:
        return self._gpu is not None

    def latest(self) -> GpuSample | None:
        """None: no GPU, or no reading for a second."""
        latest = self._latest
        return latest[1] if latest is not None and time.monotonic_ns() - latest[0] < STALE_NS else None

    def _watch(self) -> None:
        assert self._gpu is not None
        while True:
            sample = self._gpu.read()
            if sample is not None:
                self._latest = (time.monotonic_ns(), sample)
            if self._over.wait(self._period_s):
                return

    def __enter__(self) -> Telemetry:
        if self._gpu is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
