"""The one module that imports triton. The kernels take it from here, so that a missing triton fails in one place."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["launched", "tl", "triton", "wait"]


def launched(early: bool) -> dict[str, Any]:
    """How to launch a kernel that begins with `wait`. early: it takes its place while the kernel before it still ends,
    which saves the time between the two (programmatic dependent launch, compute capability 9.0)."""
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@triton.jit
def wait(EARLY: tl.constexpr):
    """Until the kernels before have ended. To come before all that reads or writes memory, in every program: what comes
    behind counts on this kernel not ending before them."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
