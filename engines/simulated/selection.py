"""Which law, pool and context a simulated run has: from a calibrated law, or from hardware and a model's shape."""

from __future__ import annotations

from pathlib import Path

from engines.base import EngineError
from engines.reference.model.config import SHAPES, ModelConfig  # a shape is numbers: no torch comes with it
from engines.simulated.roofline import HARDWARE, MEMORY_SHARE, find_hardware, kv_blocks_in_memory, roofline_step_times
from engines.simulated.step_time import StepTimeModel, load_step_times
from workloads.plan import RequestPlan


def select_step_times(law: Path | None, hardware: str | None, model: str) -> StepTimeModel:
    """The law of a file or a run's folder, or the uncalibrated one of `model` on `hardware`. EngineError."""
    if law is not None and hardware is not None:
        raise EngineError("--law and --hardware: a law is either measured or a roofline; give one of them")
    if law is not None:
        return load_step_times(law)
    if hardware is None:
        raise EngineError(
            "--engine simulated needs --law RUN (after `cbbench calibrate RUN`) or, uncalibrated, --hardware "
            f"{'|'.join(HARDWARE)}"
        )
    return roofline_step_times(hardware, model, _shape(model))


def refuse_free_swaps(law: StepTimeModel) -> None:
    """EngineError where the law cannot say what swapping costs: for nothing, it would win every comparison."""
    if not law.knows_swaps:
        raise EngineError(
            f"--on-kv-pressure swap: what a swap costs is not calibrated, as no step of {law.origin.source} moved KV "
            "blocks; record a run that swaps (`cbbench run --on-kv-pressure swap --kv-blocks N`, N too few for all "
            "seats) and calibrate on both: `cbbench calibrate RUN SWAPPING_RUN`"
        )


def refuse_unread(plan: RequestPlan, *, prefix_caching: bool) -> None:
    """EngineError where it takes the tokens of prompts that no tokenizer has read."""
    texts = plan.texts
    if texts is None or texts.ids is not None:
        return
    path, nobody = texts.file.path, "the model has no tokenizer here, so nobody knows"
    if not plan.prompts_counted:
        raise EngineError(f"--workload {path}: {nobody} how long its prompts are; give each line its prompt_tokens")
    if prefix_caching:
        raise EngineError(f"--prefix-caching: {nobody} what the prompts of {path} share")


def kv_link_bytes_per_s(law: StepTimeModel, hardware: str | None, gb_per_s: float | None) -> float:
    """Of the link between two instances. EngineError where neither a person nor the hardware says."""
    if law.origin.kv_bytes_per_token is None:
        raise EngineError(
            "--disaggregate: this law does not say how many bytes a token's KV has; `cbbench calibrate` its run again"
        )
    if gb_per_s is not None:
        return gb_per_s * 1e9
    if hardware is None:
        raise EngineError(
            "--disaggregate with --law needs --kv-link-gb-per-s N: a law knows steps, not what joins two devices"
        )
    return find_hardware(hardware).link_bytes_per_s


def default_context_tokens(law: StepTimeModel, model: str) -> int:
    """The run's that the law was fitted to, else the model's."""
    return law.origin.max_model_len or _shape(model).max_position


def default_kv_blocks(
    law: StepTimeModel, hardware: str | None, model: str, block_size: int, memory_share: float | None = None
) -> int | None:
    """The pool's size where the law or the hardware tells it; None: nobody knows, so memory is no limit.

    memory_share: of what the weights leave of the hardware's memory. EngineError beside a law of a run.
    """
    if memory_share is not None and hardware is None:
        raise EngineError(
            "--gpu-memory-utilization: a law says how long steps take, not how much memory there is; "
            "--kv-blocks N sets its KV cache"
        )
    origin = law.origin
    if origin.kv_blocks is not None and origin.block_size is not None:
        return max(1, origin.kv_blocks * origin.block_size // block_size)
    if hardware is None:
        return None
    return kv_blocks_in_memory(hardware, _shape(model), block_size, memory_share or MEMORY_SHARE)


def _shape(model: str) -> ModelConfig:
    if model not in SHAPES:
        raise EngineError(f"--model {model}: the simulator knows the shapes of {', '.join(SHAPES)}")
    return SHAPES[model]
