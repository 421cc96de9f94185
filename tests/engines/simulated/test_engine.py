"""The engine as a whole: the same bits every time and everywhere, what it tells about itself, and what it needs not."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from engines.base import RunRecord, SilentObserver
from engines.ledger import kv_usage
from engines.scheduling.config import SchedulerConfig
from engines.simulated.analytical import WindowTerms
from engines.simulated.data_sheet import Deployment, step_times_of
from engines.simulated.engine import SimulatedEngine
from engines.simulated.hardware import find_hardware
from engines.simulated.shapes import find_shape
from tests.engines.simulated.small_runs import STEP_TIMES, assert_same_record, run_step_by_step
from tests.ledger_identities import check_identities
from workloads.pacing import Pacing
from workloads.plan import UGAP, RequestPlan

H100 = step_times_of("llama-3.1-8b", find_shape("llama-3.1-8b"), find_hardware("h100"), Deployment(hardware="h100"))
CONFIG = SchedulerConfig(kv_blocks=120, max_model_len=512, max_num_seqs=16, max_num_batched_tokens=256)
PLAN = RequestPlan.of(
    [(17 * i) % 190 + 1 for i in range(200)],
    [(29 * i) % 140 + 1 for i in range(200)],
    arrivals_ugap=np.cumsum([(7919 * i) % (2 * UGAP) for i in range(200)]),
)


def _digest(record: RunRecord) -> str:
    """Of the times of all steps and requests and of all token events."""
    digest = hashlib.sha256()
    for values in (
        record.steps["start_ns"],
        record.steps["end_ns"],
        record.steps["preempted"],
        *(record.column_ns(name) for name in ("scheduled", "submitted", "first", "last", "end")),
        record.event_values,
    ):
        digest.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("rate_per_s", "golden"), [(None, "9780ad22b81c6f72"), (5.0, "4f68b2fbd5fc8c7e")], ids=["at-once", "rate"]
)
def test_the_same_bits_on_any_machine(rate_per_s: float | None, golden: str) -> None:
    """A golden digest: it changes with the scheduler's decisions or the step-time arithmetic, and with nothing else."""
    pacing = Pacing(PLAN.arrivals_ugap, rate_per_s=rate_per_s)
    record = SimulatedEngine(CONFIG, STEP_TIMES).run(PLAN, pacing, SilentObserver())
    assert record.steps["preempted"].sum() > 0
    check_identities(record.steps, CONFIG.max_num_seqs, CONFIG.kv_blocks)
    assert _digest(record) == golden


def test_signals_count_cached_blocks_as_free() -> None:
    """They are evictable: the usage in signals is that of the ledger, and of a run without a prefix cache."""
    config = dataclasses.replace(CONFIG, prefix_caching=True)
    record = SimulatedEngine(config, STEP_TIMES).run(PLAN, Pacing(PLAN.arrivals_ugap, rate_per_s=5.0), SilentObserver())
    newest = np.searchsorted(record.steps["end_ns"], [signal.t for signal in record.signals], side="right") - 1
    assert record.steps["kv_cached_blocks"][newest].max() > 10
    assert [signal.kv_usage for signal in record.signals] == pytest.approx(kv_usage(record.steps)[newest].tolist())


def test_planning_that_overlaps_the_running_step() -> None:
    overlapped = msgspec.structs.replace(STEP_TIMES, overlapped=True)
    record = SimulatedEngine(CONFIG, overlapped).run(PLAN, Pacing(PLAN.arrivals_ugap), SilentObserver())
    assert_same_record(record, run_step_by_step(PLAN, CONFIG, depth=1))
    assert {row.status for row in record.rows} == {"completed"}


def test_an_engine_may_run_again_and_starts_from_nothing() -> None:
    engine = SimulatedEngine(CONFIG, STEP_TIMES)
    first, second = (engine.run(PLAN, Pacing(PLAN.arrivals_ugap, concurrency=9), SilentObserver()) for _ in range(2))
    assert_same_record(first, second)


def test_it_says_what_it_ran_on() -> None:
    described = SimulatedEngine(CONFIG, STEP_TIMES).describe(PLAN, None)
    assert described["core"] == "scheduler: fewer than 1,000 requests"
    assert described["kv_blocks"] == 120
    assert described["law_label"] == "calibrated on a test"
    assert described["law"]["schema"] == "cbbench.step-time-model/1"
    assert described["law"]["decode"]["kv"] == STEP_TIMES.decode.kv


def test_it_says_which_core_a_run_takes_place_on() -> None:
    pytest.importorskip("numba")
    plan = RequestPlan.of([16] * 1000, [4] * 1000)
    sliding = msgspec.structs.replace(H100, window=WindowTerms(tokens=1024, kv=0.0, pair=0.0))
    for config, step_times, duration_s, core in (
        (CONFIG, STEP_TIMES, None, "compiled"),
        (CONFIG, H100, None, "compiled"),
        (CONFIG, H100, 60.0, "scheduler: a duration"),
        (CONFIG, sliding, None, "scheduler: sliding windows"),
        (dataclasses.replace(CONFIG, order="shortest-prompt"), H100, None, "scheduler: order shortest-prompt"),
    ):
        assert SimulatedEngine(config, step_times).describe(plan, duration_s)["core"] == core


def test_neither_torch_nor_scipy_is_needed_to_simulate() -> None:
    imports = "import sys, engines.simulated.engine, engines.simulated.selection"
    code = f"{imports}; print({{'torch', 'scipy'}} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
