"""The reference engine: a paged-KV Llama-family runtime under the shared scheduler. Only this room imports torch."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from workloads.errors import CbbenchError

if TYPE_CHECKING:
    from engines.reference.model.weights import LoadedModel


def require_torch() -> None:
    """Raise CbbenchError (exit code 2) where torch, which the base install lacks, is not installed."""
    if find_spec("torch") is None:
        raise CbbenchError(None, "the reference engine needs torch: pip install 'cbbench[engine]'")


def load_model(
    name: str, *, weights: str = "auto", dtype: str = "auto", device: str = "auto", seed: int = 0
) -> LoadedModel:
    """See engines.reference.model.weights.load_model. Importing this package loads no torch; this call does."""
    require_torch()
    if "OMP_WAIT_POLICY" not in os.environ:
        # Read when torch loads. By default a thread spins for milliseconds at a barrier while its partner waits for a
        # core that another process holds; a bound costs nothing on a quiet machine and saves a lot on a busy one.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from engines.reference.model import weights as loading

    return loading.load_model(name, weights=weights, dtype=dtype, device=device, seed=seed)
