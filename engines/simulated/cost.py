"""CostExecutor: an executor that computes nothing and says how long the step would have taken."""

from __future__ import annotations

from collections import deque

import numpy as np

from engines.loop import Clock
from engines.scheduling.plan import IntArray, StepPlan, StepResult
from engines.simulated.analytical import narrow_pairs
from engines.simulated.step_time import StepShape, StepTimeModel


def shape_of(plan: StepPlan) -> StepShape:
    """What the time of a plan's step depends on. All are integers, so the order of summation does not matter."""
    counts, starts, dead = plan.counts, plan.starts, len(plan.dead_slots)
    rows = len(counts) + dead
    tokens = plan.launched_tokens
    dead_kv = int(plan.dead_lengths.sum()) if dead else 0
    swapped = len(plan.swap_out) + len(plan.swap_in)
    if tokens == rows:  # every row has one token, its own or (with count 0) one of padding, which reads nothing
        return StepShape(tokens, rows, int((counts * (starts + 1)).sum()) + dead_kv, 0, 0, swapped)
    chunk = counts > 1
    pairs = counts * starts + counts * (counts + 1) // 2
    chunk_pairs = int(pairs[chunk].sum())
    return StepShape(
        tokens=tokens,
        rows=rows,
        kv=int(pairs.sum()) - chunk_pairs + dead_kv,
        prefill_kv=int(starts[chunk].sum()),
        prefill_pairs=chunk_pairs,
        swapped_blocks=swapped,
        narrow_pairs=narrow_pairs(counts[chunk], pairs[chunk]),
    )


class CostExecutor:
    """Steps run one after another, each behind the gap in which the host plans. Tokens have no values here."""

    def __init__(self, step_times: StepTimeModel, clock: Clock) -> None:
        self._step_times = step_times
        self._clock = clock
        self._submitted: deque[StepResult] = deque()
        self._end_ns = 0  # of the newest step

    def submit(self, plan: StepPlan) -> None:
        shape = shape_of(plan)
        start_ns = max(self._clock.now_ns(), self._end_ns) + self._step_times.gap_ns(shape.rows)
        device_ns = self._step_times.device_ns(shape)
        floor_ns = self._step_times.floor_ns(shape.rows, decode_only=shape.decode_only)
        self._end_ns = start_ns + max(device_ns, floor_ns)
        self._submitted.append(StepResult(plan.step, None, start_ns, self._end_ns, device_ns))

    def collect(self) -> StepResult:
        return self._submitted.popleft()

    def ends_ns(self) -> int | None:
        """When the oldest step ends that was not collected."""
        return self._submitted[0].end_ns if self._submitted else None

    def decode_times(
        self, steps: int, rows: int, kv: int, kv_per_step: int, due_ns: int | None
    ) -> tuple[IntArray, IntArray, IntArray]:
        """(start_ns, end_ns, busy_ns) of at most `steps` decode-only steps, up to the one that runs when something is
        due.

        They begin now, with nothing in flight; `rows` are launched in each, the first reads `kv` positions and each one
        `kv_per_step` more. `ran_until` accepts them.
        """
        begin_ns = max(self._clock.now_ns(), self._end_ns)
        gap_ns, floor_ns = self._step_times.gap_ns(rows), self._step_times.floor_ns(rows, decode_only=True)
        if due_ns is not None:  # no step is shorter than the first, which bounds their number
            shortest_ns = gap_ns + max(self._step_times.device_ns(StepShape(rows, rows, kv, 0, 0)), floor_ns)
            steps = min(steps, max(0, due_ns - begin_ns) // shortest_ns + 1)
        kvs = kv + kv_per_step * np.arange(steps, dtype=np.int64)
        device_ns = self._step_times.decode_device_ns(rows, kvs)
        durations_ns = np.maximum(device_ns, floor_ns)
        ends_ns = begin_ns + np.cumsum(durations_ns + gap_ns)
        if due_ns is not None:
            steps = int(np.searchsorted(ends_ns, due_ns)) + 1
        return (ends_ns - durations_ns)[:steps], ends_ns[:steps], device_ns[:steps]

    def ran_until(self, end_ns: int) -> None:
        self._end_ns = end_ns
