"""The reference engine: a paged-KV Llama-family runtime under the shared scheduler. Only this room imports torch."""

from __future__ import annotations

from importlib.util import find_spec

from engines.base import EngineError


def require_torch() -> None:
    """Raise EngineError (exit code 2) where the base install, which has no torch, is asked for this engine."""
    if find_spec("torch") is None:
        raise EngineError("the reference engine needs torch: pip install 'cbbench[engine]'")
