"""Which law, pool and context a simulated run has: from a calibrated law, or from hardware and a model's shape."""

from __future__ import annotations

from pathlib import Path

from engines.base import EngineError
from engines.reference.model.config import SHAPES, ModelConfig  # a shape is numbers: no torch comes with it
from engines.simulated.law import StepLaw, load_law
from engines.simulated.roofline import HARDWARE, kv_blocks_in_memory, roofline_law


def choose_law(law: Path | None, hardware: str | None, model: str) -> StepLaw:
    """The law of a file or a run's folder, or the uncalibrated one of `model` on `hardware`. EngineError."""
    if law is not None and hardware is not None:
        raise EngineError("--law and --hardware: a law is either measured or a roofline; give one of them")
    if law is not None:
        return load_law(law)
    if hardware is None:
        raise EngineError(
            "--engine simulated needs --law RUN (after `cbbench calibrate RUN`) or, uncalibrated, --hardware "
            f"{'|'.join(HARDWARE)}"
        )
    return roofline_law(hardware, model, _shape(model))


def default_context_tokens(law: StepLaw, model: str) -> int:
    """The run's that the law was fitted to, else the model's."""
    return law.origin.max_model_len or _shape(model).max_position


def default_kv_blocks(law: StepLaw, hardware: str | None, model: str, block_size: int) -> int | None:
    """The pool's size where the law or the hardware tells it; None: nobody knows, so memory is no limit."""
    origin = law.origin
    if origin.kv_blocks is not None and origin.block_size is not None:
        return max(1, origin.kv_blocks * origin.block_size // block_size)
    return None if hardware is None else kv_blocks_in_memory(hardware, _shape(model), block_size)


def _shape(model: str) -> ModelConfig:
    if model not in SHAPES:
        raise EngineError(f"--model {model}: the simulator knows the shapes of {', '.join(SHAPES)}")
    return SHAPES[model]
