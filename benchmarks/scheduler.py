"""What planning a step costs, at 256 slots and 1,000 waiting requests: decode-only steps, and steps that admit.

    python benchmarks/scheduler.py [--rows 256] [--waiting 1000] [--steps 1500]

Targets: decode-only under 200 us, with admissions under 600 us, for every policy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from engines.scheduling.config import SchedulerConfig
from engines.scheduling.plan import StepResult
from engines.scheduling.request import Request
from engines.scheduling.resource_gate import Quota
from engines.scheduling.scheduler import Scheduler

POLICIES: dict[str, dict[str, Any]] = {
    "fcfs": {},
    "prefill first": {"prefill": "prefill-first"},
    "shortest predicted, ageing": {"order": "shortest-predicted", "ageing": 100.0},
    "priority, preempting": {"order": "priority", "preempt_for_priority": True},
    "fair, 8 tenants": {"order": "fair"},
    "quotas, 8 tenants": {"quotas": {f"t{i}": Quota(max_num_seqs=40) for i in range(8)}},
    "peak admission": {"admission": "peak"},
    "optimistic, swap": {"admission": "optimistic", "on_kv_pressure": "swap", "swap_blocks": 1000},
    "buckets, chunk cap, skip-ahead": {"prompt_buckets": (64, 128), "max_prompt_chunk": 512, "skip_ahead": 4},
    "prefix cache": {"prefix_caching": True},
    "full reserve": {"on_kv_pressure": "delay"},
    "static padded": {"mode": "static"},
}


def build(rows: int, **policy: Any) -> Scheduler:
    return SchedulerConfig(
        kv_blocks=rows * 300, max_model_len=4096, max_num_seqs=rows, max_num_batched_tokens=8192, **policy
    ).build()


def request(index: int, prompt: int, output: int) -> Request:
    ids = np.full(prompt, index % 7, np.int32)
    return Request(index, prompt, output, prompt=ids, tenant=f"t{index % 8}", priority=index % 3)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    rng = np.random.default_rng(0)

    print(f"{args.rows} slots, {args.waiting} waiting; medians of schedule() / update() in us")
    print(f"{'policy':32} {'decode-only (target 200)':>26} {'with admissions (target 600)':>30}")
    for name, policy in POLICIES.items():
        scheduler = build(args.rows, **policy)
        for i in range(args.rows + args.waiting):
            scheduler.submit(request(i, int(rng.integers(1, 200)), 3800), 0)
        timed_steps(scheduler, 120, None)  # all that can be admitted are through their prompts
        decode = timed_steps(scheduler, args.steps, None)

        # Outputs of about 32 tokens: some eight requests end, and as many are admitted, at every step.
        scheduler = build(args.rows, **policy)
        fresh = (request(i, int(rng.integers(1, 200)), int(rng.integers(2, 62))) for i in count())
        for _ in range(args.rows + args.waiting):
            scheduler.submit(next(fresh), 0)
        timed_steps(scheduler, 100, fresh)
        admitting = timed_steps(scheduler, args.steps, fresh)
        cells = [
            f"{np.median(plan) / 1000:.0f} / {np.median(update) / 1000:.0f}" for plan, update in (decode, admitting)
        ]
        print(f"{name:32} {cells[0]:>26} {cells[1]:>30}", flush=True)


if __name__ == "__main__":
    main()
