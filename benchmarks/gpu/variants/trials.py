"""Runs variants beside the shipped one and compares their results and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from benchmarks.gpu.replays import Replays, Work
from benchmarks.gpu.setting import Task
from benchmarks.gpu.variants.choice import Trial, compared

LEAST_S = 1.5  # to compile and time another way in


@dataclass(frozen=True)
class Way:
    result: Callable[[], torch.Tensor]  # memory of its own; all ways have the same input
    works: Sequence[Work]  # what is timed: the same on inputs that no cache holds


def tried(
    task: Task, replays: Replays, shipped: Way, others: Mapping[str, Callable[[], Way]], passes: int
) -> dict[str, Any]:
    """others: constructed one after the other, so that only one holds memory."""
    first = replays.each(shipped.works, passes)
    with torch.inference_mode():
        expected = shipped.result()
    trials: list[Trial] = []
    for name, make in others.items():
        if task.left_s() < LEAST_S and not task.setting.quick:
            break
        trials.append(_trial(name, make, replays, expected, passes))
    again = replays.each(shipped.works, passes)
    left_out = len(others) - len(trials)
    return compared((first.us, again.us), trials) | {"launches": first.launches, "not_tried": left_out}


def _trial(name: str, make: Callable[[], Way], replays: Replays, expected: torch.Tensor, passes: int) -> Trial:
    try:
        with torch.inference_mode():
            way = make()
            error = error_of(way.result(), expected)
        return Trial(name, replays.each(way.works, passes).us, error)
    except Exception as problem:  # too little shared memory, say; what spoils CUDA fails the shipped way's turn too
        return Trial(name, problem=" ".join(f"{type(problem).__name__}: {problem}".split())[:200])


def error_of(result: torch.Tensor, expected: torch.Tensor) -> float | None:
    if result.shape != expected.shape:
        return None
    error = float((result.float() - expected.float()).norm() / expected.float().norm())
    return error if isfinite(error) else None
