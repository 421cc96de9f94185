"""What planning a step costs, at 256 seats: decode-only steps, and steps that admit requests.

    python benchmarks/scheduler.py [--rows 256] [--steps 2000]

Targets: decode-only under 200 us, with admissions under 600 us (medians of schedule() alone; update() is shown beside).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import count

import numpy as np

from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepResult
from engines.scheduling.request import Request
from engines.scheduling.scheduler import Scheduler


def build(rows: int) -> Scheduler:
    return SchedulerConfig(
        kv_blocks=rows * 300, max_model_len=4096, max_num_seqs=rows, max_num_batched_tokens=8192
    ).build()


def timed_steps(scheduler: Scheduler, steps: int, refill: Iterator[Request] | None) -> tuple[list[int], list[int]]:
    """(schedule ns, update ns) per step. With `refill`, every ended request is replaced before the next step."""
    planning, updating = [], []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        plan = scheduler.schedule(0)
        planned = time.perf_counter_ns()
        assert plan is not None
        tokens = np.zeros(int(plan.samples.sum()), np.int32)
        middle = time.perf_counter_ns()
        outcome = scheduler.update(StepResult(plan.step, tokens, 0, 1, 1))
        updating.append(time.perf_counter_ns() - middle)
        planning.append(planned - begin)
        if refill is not None:
            for _ in outcome.finished:
                scheduler.submit(next(refill), 0)
    return planning, updating


def show(name: str, ns: list[int], target_us: float | None = None) -> None:
    us = np.array(ns) / 1000
    p50, p99 = np.percentile(us, [50, 99])
    print(f"{name:34} median {p50:7.1f} us   p99 {p99:7.1f} us" + (f"   target {target_us:g}" if target_us else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    rng = np.random.default_rng(0)

    scheduler = build(args.rows)
    for i in range(args.rows):
        scheduler.submit(Request(i, int(rng.integers(1, 200)), 3800), 0)
    timed_steps(scheduler, 20, None)  # everybody through the prompt
    planning, updating = timed_steps(scheduler, min(args.steps, 3500), None)
    show(f"decode-only, {args.rows} rows: schedule", planning, 200)
    show(f"decode-only, {args.rows} rows: update", updating)

    # About eight requests end, and as many are admitted, at every step.
    scheduler = build(args.rows)
    fresh = (Request(i, int(rng.integers(1, 200)), int(rng.integers(2, 62))) for i in count())
    for _ in range(args.rows + 64):
        scheduler.submit(next(fresh), 0)
    timed_steps(scheduler, 100, fresh)
    planning, updating = timed_steps(scheduler, args.steps, fresh)
    show(f"with admissions, {args.rows} rows: schedule", planning, 600)
    show(f"with admissions, {args.rows} rows: update", updating)


if __name__ == "__main__":
    main()
