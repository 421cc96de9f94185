"""The one module that imports triton. The kernels take it from here, so that a missing triton fails in one place."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["tl", "triton"]
