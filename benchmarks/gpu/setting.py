"""The device of a check and the sizes of its cells: plain data without torch, sent from one process to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Row = tuple[str, dict[str, Any]]  # a cell of a stage, and its numbers
Results = dict[str, dict[str, Any]]  # stage -> rows so far


class Skip(Exception):
    """Why a stage or a cell does not run here. Not a failure."""


@dataclass(frozen=True)
class Setting:
    device: str  # "cuda" or "cpu"
    quick: bool  # toy sizes: does it all still run?

    @property
    def dtypes(self) -> tuple[str, ...]:
        return ("bf16", "fp16")

    @property
    def large(self) -> str:
        return "tiny" if self.quick else "llama-3.1-8b"

    @property
    def small(self) -> str:
        return "tiny" if self.quick else "qwen3-0.6b"

    @property
    def shapes(self) -> tuple[str, ...]:
        """The models whose kernels are checked."""
        return ("smollm2-135m", "tiny") if self.quick else (self.large, self.small)

    @property
    def decode_cells(self) -> tuple[tuple[int, int], ...]:
        """(batch, context), the ones with a target first"""
        if self.quick:
            return ((2, 20), (4, 40))
        near = tuple((batch, context) for batch in (64, 8, 1) for context in (512, 4096))
        return ((256, 512), (256, 2048), *near)

    @property
    def operator_cells(self) -> tuple[tuple[int, int], ...]:
        """The decode cells whose steps are measured in parts."""
        return self.decode_cells if self.quick else ((256, 512), (64, 512), (64, 4096), (256, 2048), (1, 512))

    @property
    def mixed_cells(self) -> tuple[tuple[int, int, int], ...]:
        """(decodes, their context, tokens of a prompt beside them)"""
        return ((3, 20, 9),) if self.quick else ((63, 1024, 128), (63, 1024, 1024))

    @property
    def tuning_cells(self) -> tuple[tuple[int, int], ...]:
        return ((2, 20),) if self.quick else ((64, 4096), (256, 512), (256, 2048))

    @property
    def product_rows(self) -> tuple[int, ...]:
        return (1, 4) if self.quick else (64, 256, 8, 1)

    @property
    def decode_steps(self) -> int:
        return 6 if self.quick else 40


@dataclass(frozen=True)
class Task:
    """The input of a stage: the setting, the results of earlier stages, and its time limit."""

    setting: Setting
    results: Results = field(default_factory=dict)
    left_s: Callable[[], float] = lambda: float("inf")

    def number(self, stage: str, row: str, name: str) -> float | None:
        """A result of an earlier stage; None where it has none."""
        return self.results.get(stage, {}).get(row, {}).get(name)


@dataclass(frozen=True)
class Stage:
    name: str
    title: str
    limit_s: float
    run: str  # "module:function", a generator of rows; imported by the worker alone
