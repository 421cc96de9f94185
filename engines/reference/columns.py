"""Columns: named arrays side by side in one piece of memory, so that a step's inputs reach a graph in one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

ALIGNMENT_BYTES = 16  # for which Triton compiles faster code


@dataclass(frozen=True, slots=True)
class Column:
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    part: slice  # bytes


class Columns:
    def __init__(self, **columns: tuple[tuple[int, ...], DTypeLike]) -> None:
        """name: (shape, type), in their order in memory."""
        self._columns: dict[str, Column] = {}
        used = 0
        for name, (shape, of_type) in columns.items():
            dtype = np.dtype(of_type)
            part = slice(used, used + math.prod(shape) * dtype.itemsize)
            self._columns[name] = Column(shape, dtype, part)
            used = -(-part.stop // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.nbytes = used

    def on_host(self, memory: NDArray[np.uint8]) -> Mapping[str, NDArray[np.generic]]:
        """memory: [>= nbytes]"""
        return {name: memory[one.part].view(one.dtype).reshape(one.shape) for name, one in self._columns.items()}

    def on_device(self, memory: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """memory: uint8[>= nbytes], on any device"""
        return {
            name: memory[one.part].view(torch.from_numpy(np.empty(0, one.dtype)).dtype).view(one.shape)
            for name, one in self._columns.items()
        }
