"""The one module that imports triton. The kernels take it from here, so that a missing triton fails in one place."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["launched", "tl", "triton", "wait"]


def launched(early: bool) -> dict[str, Any]:
    """Launch options of a kernel that begins with `wait`. early: it starts while the previous kernel still ends, which
    saves the gap between the two (programmatic dependent launch, compute capability 9.0)."""
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until the previous kernels have ended. Every program must call it before it reads or writes memory: later
    kernels rely on this one ending after the previous ones."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
