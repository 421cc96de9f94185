"""Compile for a GPU that is not there what a wrapper would launch, and read what became of it.

`recorded` replaces a kernel by a recorder and calls the wrapper with CPU tensors, so that the types, the divisibility
by 16 and the constants are those of a real launch: without them loads are not vectorised and the code is another one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64",
    torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_pdl")


@dataclass(frozen=True)
class Launch:
    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]


@dataclass(frozen=True)
class Compiled:
    ptx: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int


def recorded(module: ModuleType, kernel_name: str, call: Callable[[], object]) -> Launch:
    """The last launch of one kernel of a module during a call; its other kernels do nothing meanwhile."""
    kernels = {name: value for name, value in vars(module).items() if isinstance(value, triton.runtime.JITFunction)}
    launches: list[Launch] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: object) -> Callable[..., None]:
            return self.launch

        def launch(self, *args: Any, **kwargs: Any) -> None:
            if self.name == kernel_name:
                kernel = kernels[self.name]
                options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
                launches.append(Launch(kernel, {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}, options))

    for name in kernels:
        setattr(module, name, Recorder(name))
    try:
        call()
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)
    return launches[-1]


def compiled(launch: Launch, capability: int, scratch: Path) -> Compiled:
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible = {}
    for index, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, launch.arguments[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (special and type(value) is int and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name], by_16 = "*" + TYPES[value.dtype], value.data_ptr() % 16 == 0
        elif isinstance(value, float):
            signature[name], by_16 = "fp32", False
        else:
            signature[name], by_16 = ("i32" if abs(value) < 2**31 else "i64"), value % 16 == 0
        if by_16 and special:
            divisible[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, divisible)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    registers, stack = _resources(built.asm["cubin"], scratch)
    return Compiled(built.asm["ptx"], registers, stack, built.metadata.shared, 32 * built.metadata.num_warps)


def _resources(cubin: bytes, scratch: Path) -> tuple[int, int]:
    """(registers per thread, bytes of stack): what spills has a place on the stack."""
    binary = scratch / "kernel.cubin"
    binary.write_bytes(cubin)
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    command = [str(cuobjdump), "--dump-resource-usage", str(binary)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [(registers, stack)] = re.findall(r"REG:(\d+) STACK:(\d+)", said)
    return int(registers), int(stack)
