"""Step times, KV pool and context of a simulated run: from a calibrated model, or from hardware and a model's shape."""

from __future__ import annotations

from pathlib import Path

from engines.simulated.data_sheet import Deployment, kv_blocks_in_memory, step_times_of
from engines.simulated.hardware import HARDWARE, find_hardware
from engines.simulated.shapes import find_shape
from engines.simulated.step_time import FIELD, FittedStepTimes, StepTimeModel, load_step_times
from workloads.errors import CbbenchError
from workloads.plan import RequestPlan

MEMORY_SHARE = 0.9  # of the card, for weights and KV, unless `gpu_memory_utilization` says another


def select_step_times(path: Path | None, model: str, deployment: Deployment | None) -> StepTimeModel:
    """Those of a file or a calibrated run's folder, moved to `deployment` where that is other hardware; without a file
    the analytical ones of `model` as deployed. Raises CbbenchError."""
    if path is not None:
        fitted = load_step_times(path)
        return fitted if deployment is None else _moved(fitted, deployment)
    if deployment is None:
        raise CbbenchError(
            "engine",
            f"simulated needs `{FIELD}` RUN (after `cbbench calibrate RUN`) or, uncalibrated, `hardware` "
            f"{'|'.join(HARDWARE)}",
        )
    return step_times_of(model, find_shape(model), find_hardware(deployment.hardware), deployment)


def _moved(fitted: FittedStepTimes, deployment: Deployment) -> FittedStepTimes:
    """Calibrated step times on other hardware. Raises CbbenchError where a data sheet cannot say what changes."""
    known = fitted.origin.device
    if known not in HARDWARE:
        raise CbbenchError(
            "hardware",
            f"these step times were measured on {known or 'an unknown device'}, which has no data sheet here, so they "
            f"cannot be moved; known are {', '.join(HARDWARE)}",
        )
    if deployment != Deployment(hardware=deployment.hardware):
        raise CbbenchError(
            "hardware",
            "calibrated step times keep their number of GPUs, precision, host and decoding; only the GPU moves",
        )
    if known == deployment.hardware:
        return fitted
    here, there = find_hardware(known), find_hardware(deployment.hardware)
    reading, computing = here.bytes_per_s / there.bytes_per_s, here.flop_per_s / there.flop_per_s
    return fitted.moved(reading, computing, deployment.hardware)


def refuse_free_swaps(step_times: StepTimeModel) -> None:
    """Raises CbbenchError if the cost of a swap is unknown: at no cost, swap would win every comparison."""
    if not step_times.knows_swaps:
        raise CbbenchError(
            "on_kv_pressure",
            f"swap is not calibrated, as no step of {step_times.origin.source} moved KV blocks; record a run that "
            "swaps (`cbbench run` with `on_kv_pressure` swap and `kv_blocks` too few for all slots) and calibrate on "
            "both: `cbbench calibrate RUN SWAPPING_RUN`",
        )


def refuse_untokenised(plan: RequestPlan, *, prefix_caching: bool) -> None:
    """Raises CbbenchError if the run needs the tokens of prompts that no tokenizer has read."""
    texts = plan.texts
    if texts is None or texts.ids is not None:
        return
    path, unknown = texts.file.path, "the model has no tokenizer here, so it is unknown"
    if not plan.prompts_counted:
        raise CbbenchError("workload", f"{path}: {unknown} how long its prompts are; give each line its prompt_tokens")
    if prefix_caching:
        raise CbbenchError("prefix_caching", f"{unknown} which tokens the prompts of {path} share")


def kv_link_bytes_per_s(step_times: StepTimeModel, hardware: str | None, gb_per_s: float | None) -> float:
    """Bandwidth of the link between two instances: as given, else the hardware's. Raises CbbenchError."""
    if step_times.origin.kv_bytes_per_token is None:
        raise CbbenchError(
            FIELD, "it does not have the KV bytes of a token, which `disaggregate` needs; calibrate its run again"
        )
    if gb_per_s is not None:
        return gb_per_s * 1e9
    if hardware is None:
        raise CbbenchError(
            "kv_link_gb_per_s", f"`disaggregate` with `{FIELD}` needs it: a calibration measures steps, not the link"
        )
    return find_hardware(hardware).link_bytes_per_s


def default_context_tokens(step_times: StepTimeModel, model: str) -> int:
    """The context of the calibrated run, else the model's."""
    return step_times.origin.max_model_len or find_shape(model).max_position


def default_kv_blocks(
    step_times: StepTimeModel,
    model: str,
    deployment: Deployment | None,
    *,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    memory_share: float | None = None,
) -> int | None:
    """Blocks of the pool of the calibrated run, or of the hardware's memory. None: unknown, so memory is no limit.

    memory_share: share of the card that weights, activations and KV may take. Raises CbbenchError if it is given with
    a calibrated model.
    """
    if memory_share is not None and deployment is None:
        raise CbbenchError(
            "gpu_memory_utilization",
            "a calibration measures the time of steps, not the size of the memory; set `kv_blocks` instead",
        )
    origin = step_times.origin
    if origin.kv_blocks is not None and origin.block_size is not None:
        return max(1, origin.kv_blocks * origin.block_size // block_size)
    if deployment is None:
        return None
    return kv_blocks_in_memory(
        find_shape(origin.model or model),
        find_hardware(deployment.hardware),
        deployment,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        memory_share=memory_share or MEMORY_SHARE,
    )
