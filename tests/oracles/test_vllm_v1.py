"""With `like` vllm-v1 our scheduler makes the schedule of vLLM v1, to the ns; without it, some of them differ."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from cbbench.settings.build import build_settings
from cbbench.settings.scheduler_config import scheduler_config
from engines.base import RunRecord, SilentObserver
from engines.scheduling.config import SchedulerConfig
from engines.simulated.engine import SimulatedEngine
from engines.simulated.step_time import DecodeTerms, FittedStepTimes, GapTerms, MixedTerms, Origin
from tests.oracles.vllm_v1 import Sequence, Settings, Step, simulate
from workloads.pacing import Pacing
from workloads.plan import UGAP, RequestPlan

# Every term counts, and as all are whole numbers no sum is ever rounded.
STEP_TIMES = FittedStepTimes(
    calibrated=False,
    decode=DecodeTerms(step=2_000_003, row=20_011, kv=17, beyond_knee=5_003, knee_rows=5),
    mixed=MixedTerms(
        step=2_500_009, token=3_001, beyond_knee=1_009, knee_tokens=40, row=11_003, kv=19, pair=3, prefill_kv=7
    ),
    gap=GapTerms(step=150_001, row=1_009),
    row_buckets=(1, 2, 4, 8),
    origin=Origin(source="made up"),
)


class Trace:
    """A random one: lengths, arrivals and settings by its number."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(number)
        count = int(rng.integers(1, 50))
        longest, outputs = int(rng.choice([20, 100, 400])), int(rng.choice([4, 40, 120]))
        self.prompts = np.where(
            rng.random(count) < 0.3, rng.integers(1, longest + 1, count), rng.integers(1, 21, count)
        )
        self.outputs = rng.integers(1, outputs + 1, count)
        self.arrivals = np.sort(rng.integers(0, int(rng.choice([1, 300, 3000])) * UGAP, count))  # in ms
        block_size, num_seqs = int(rng.choice([1, 4, 16])), int(rng.choice([1, 3, 8, 16]))
        most = -(-int((self.prompts + self.outputs).max()) // block_size)
        blocks = most + int(rng.choice([0, 1, 0.3 * most, most, 4 * most]))
        watermark = float(rng.choice([0.0, 0.0, 0.01, 0.1]))
        self.vllm = Settings(
            num_seqs=num_seqs,
            budget=max(num_seqs, int(rng.choice([16, 33, 64, 256]))),
            blocks=blocks,
            block_size=block_size,
            chunk=int(rng.choice([0, 0, 7, 24])),
            watermark_blocks=int(watermark * blocks),
            whole_must_fit=bool(rng.random() < 0.7),
        )
        self.given = {
            "engine": "simulated", "hardware": "h100", "block_size": block_size, "max_num_seqs": num_seqs,
            "watermark": 100 * watermark, "max_prompt_chunk": self.vllm.chunk or None,
        }  # fmt: skip
        if not self.vllm.whole_must_fit:
            self.given["admission"] = "optimistic"

    def config(self, **like: str) -> SchedulerConfig:
        return scheduler_config(
            build_settings(self.given | like),
            kv_blocks=self.vllm.blocks,
            max_model_len=int((self.prompts + self.outputs).max()),
            max_num_batched_tokens=self.vllm.budget,
        )

    def theirs(self) -> tuple[list[Step], list[Sequence]]:
        arrives_ns = self._pacing.schedule_ns
        assert arrives_ns is not None
        sequences = [
            Sequence(index, prompt, outputs, at_ns)
            for index, (prompt, outputs, at_ns) in enumerate(
                zip(self.prompts.tolist(), self.outputs.tolist(), arrives_ns.tolist(), strict=True)
            )
        ]
        return simulate(self.vllm, STEP_TIMES, sequences), sequences

    def ours(self, config: SchedulerConfig) -> RunRecord:
        plan = RequestPlan.of(self.prompts.tolist(), self.outputs.tolist(), arrivals_ugap=self.arrivals)
        return SimulatedEngine(config, STEP_TIMES).run(plan, self._pacing, SilentObserver())

    @property
    def _pacing(self) -> Pacing:
        return Pacing(self.arrivals, rate_per_s=1000.0)


def equal(record: RunRecord, steps: list[Step], sequences: list[Sequence]) -> bool:
    """The same steps at the same times, and in them the same admissions, preemptions and tokens."""
    theirs = {
        "start_ns": [one.start_ns for one in steps],
        "end_ns": [one.end_ns for one in steps],
        "launched_tokens": [one.tokens for one in steps],
        "preempted": [one.preempted for one in steps],
    }
    if any(record.steps[name].tolist() != column for name, column in theirs.items()):
        return False
    ends_ns = np.array([step.end_ns for step in steps])
    events = record.event_times_ns()
    for row in record.rows:
        one = sequences[row.i]
        if [stint.admitted for stint in row.stints] != one.admitted_steps:
            return False
        tokens_ns = ends_ns[np.array(one.token_steps) - 1].tolist()
        if events[row.events_at : row.events_at + row.events].tolist() != tokens_ns:
            return False
    return len(record.rows) == len(sequences)


def compare(numbers: Iterable[int]) -> tuple[list[int], list[int], int, int]:
    """(traces that differ with the flag, that differ without it, steps, preemptions)."""
    differ, plain_differ = [], []
    num_steps = preempted = 0
    for number in numbers:
        trace = Trace(number)
        steps, sequences = trace.theirs()
        num_steps += len(steps)
        preempted += sum(step.preempted for step in steps)
        if not equal(trace.ours(trace.config(like="vllm-v1")), steps, sequences):
            differ.append(number)
        if not equal(trace.ours(trace.config()), steps, sequences):
            plain_differ.append(number)
    return differ, plain_differ, num_steps, preempted


def test_schedules_are_those_of_vllm() -> None:
    differ, plain_differ, _, preempted = compare(range(24))
    assert differ == []
    assert len(plain_differ) > 2
    assert preempted > 20


@pytest.mark.slow
def test_500_schedules_are_those_of_vllm() -> None:
    differ, plain_differ, num_steps, preempted = compare(range(500))
    print(f"{num_steps:,} steps, {preempted:,} preemptions; without `like` {len(plain_differ)} traces differ")
    assert differ == []
    assert len(plain_differ) > 50
    assert preempted > 500
