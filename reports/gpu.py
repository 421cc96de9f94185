"""What the GPU said of itself during a run, summed up."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import msgspec

from engines.base import Signal
from reports.summary_schema import Signals


def with_gpu(signals: Signals, samples: Sequence[Signal]) -> Signals:
    """`signals` with the GPU's part filled in; None stays what no sample had."""

    def said(name: str) -> list[float]:
        return [value for one in samples if one.gpu is not None and (value := getattr(one.gpu, name)) is not None]

    used, memory, power, clock = map(said, ("utilization", "memory_used_bytes", "power_w", "sm_clock_mhz"))
    slowed = [float(bool(one.gpu.slowed_by)) for one in samples if one.gpu and one.gpu.slowed_by is not None]
    return msgspec.structs.replace(
        signals,
        gpu_utilization_mean=mean(used) if used else None,
        gpu_memory_peak_bytes=int(max(memory)) if memory else None,
        gpu_power_mean_w=mean(power) if power else None,
        gpu_sm_clock_mean_mhz=mean(clock) if clock else None,
        gpu_slowed_share=mean(slowed) if slowed else None,
    )
