"""The compiled core against the scheduler's own loop: the same record to the bit, over random settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engines.base import RunRecord, Signal, SilentObserver
from engines.ledger import StepArray
from engines.request_table import RequestRow
from engines.scheduling.config import SchedulerConfig
from engines.simulated.compiled_run import run_compiled, why_not
from engines.simulated.data_sheet import Deployment, step_times_of
from engines.simulated.engine import SimulatedEngine
from engines.simulated.hardware import find_hardware
from engines.simulated.shapes import find_shape
from engines.simulated.speculation import SpeculationTerms
from engines.simulated.step_time import StepTimeModel
from tests.engines.simulated.small_runs import STEP_TIMES
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.spec import build_plan

H100 = step_times_of("tiny", find_shape("llama-3.1-8b"), find_hardware("h100"), Deployment(hardware="h100"))
# A host that bounds the smaller steps, and steps that count for several: other terms, the same bits.
HELD = step_times_of(
    "tiny", find_shape("llama-3.1-8b"), find_hardware("h100"),
    Deployment(
        hardware="h100",
        host_floor_ms="eager",
        speculation=SpeculationTerms(draft_tokens=2, acceptance=0.6, draft_cost=0.1),
    ),
)  # fmt: skip
MODELS = {"fitted": STEP_TIMES, "analytical": H100, "held by its host, speculative": HELD}


@st.composite
def runs(draw: st.DrawFn) -> tuple[SchedulerConfig, RequestPlan, dict[str, Any]]:
    """A setting of the family that the core covers, with KV from one request's worth on."""
    prompt, output = draw(st.sampled_from([(40, 30), (200, 100), (1000, 60)]))
    block_size, slots = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([1, 2, 4, 8, 32]))
    chunked, pressure = draw(st.booleans()), draw(st.sampled_from(["recompute", "recompute", "delay"]))
    tokens = draw(st.sampled_from([8, 64, 256, 2048])) if chunked else prompt + draw(st.sampled_from([0, 100]))
    config = SchedulerConfig(
        kv_blocks=-(-(prompt + output) // block_size) * draw(st.sampled_from([1, 2, 3, 10])) + draw(st.integers(0, 5)),
        max_model_len=prompt + output + draw(st.sampled_from([1, 50])),
        max_num_seqs=slots,
        max_num_batched_tokens=max(slots, tokens),
        block_size=block_size,
        chunked_prefill=chunked,
        max_prompt_chunk=draw(st.sampled_from([None, 7, 100])) if chunked else None,
        admission=draw(st.sampled_from([None, "full-prompt", "full-reserve"])) if pressure == "recompute" else None,
        on_kv_pressure=pressure,
        watermark=draw(st.sampled_from([0.0, 0.01, 0.3])),
    )
    plan = build_plan(
        f"prompt=uniform(1,{prompt});output=uniform(1,{output})",
        num_requests=draw(st.sampled_from([1, 3, 40, 120])),
        seed=draw(st.integers(0, 1000)),
        arrival="poisson",
        max_model_len=prompt + output + 1,
    )
    pacing = draw(
        st.sampled_from([
            {}, {"rate_per_s": 1.0}, {"rate_per_s": 20.0}, {"rate_per_s": 2000.0}, {"concurrency": 1},
            {"concurrency": 10}, {"rate_per_s": 100.0, "concurrency": 5},
        ])
    )  # fmt: skip
    return config, plan, pacing


def both(config: SchedulerConfig, model: StepTimeModel, plan: RequestPlan, pacing: dict[str, Any]) -> list[Told]:
    """What observers are told and what is recorded: by the scheduler's loop, and by the core in short blocks."""
    told = []
    for compiled in (False, True):
        observer = Told()
        fresh = Pacing(plan.arrivals_ugap, **pacing)
        if compiled:
            tables = model.tables(config.max_num_seqs, config.max_num_batched_tokens)
            assert tables is not None
            observer.record = run_compiled(
                config, tables, plan, fresh, observer, front_end_ns=model.front_end_ns, block_steps=7
            )
        else:
            observer.record = SimulatedEngine(config, model).run_on_scheduler(plan, fresh, observer)
        told.append(observer)
    return told


class Told(SilentObserver):
    record: RunRecord

    def __init__(self) -> None:
        self.rows: list[RequestRow] = []
        self.events: list[list[int]] = []
        self.signals: list[Signal] = []
        self.steps: list[StepArray] = []

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        self.rows.append(row)
        self.events.append(events.tolist())

    def steps_recorded(self, steps: StepArray) -> None:
        self.steps.append(steps)

    def sampled(self, signal: Signal) -> None:
        self.signals.append(signal)


def assert_equal(loop: Told, core: Told) -> None:
    for name in loop.record.steps.dtype.names or ():
        np.testing.assert_array_equal(loop.record.steps[name], core.record.steps[name], name)
    np.testing.assert_array_equal(np.concatenate(loop.steps), np.concatenate(core.steps))
    assert core.rows == loop.rows
    assert list(core.record.rows) == list(loop.record.rows)
    assert core.events == loop.events
    assert np.asarray(core.record.event_values).tolist() == np.asarray(loop.record.event_values).tolist()
    assert core.signals == loop.signals == list(loop.record.signals)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=40, deadline=None)
@given(runs())
def test_the_core_equals_the_loop(model: str, run: tuple[SchedulerConfig, RequestPlan, dict[str, Any]]) -> None:
    config, plan, pacing = run
    assert_equal(*both(config, MODELS[model], plan, pacing))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=800, deadline=None)
@given(runs())
def test_the_core_equals_the_loop_over_thousands_of_settings(
    model: str, run: tuple[SchedulerConfig, RequestPlan, dict[str, Any]]
) -> None:
    config, plan, pacing = run
    assert_equal(*both(config, MODELS[model], plan, pacing))


def test_the_device_is_idle_where_the_host_bounds_the_step() -> None:
    config = SchedulerConfig(kv_blocks=400, max_model_len=200, max_num_seqs=8, max_num_batched_tokens=64)
    plan = build_plan(
        "prompt=fixed(80);output=fixed(70)", num_requests=20, seed=1, arrival="poisson", max_model_len=200
    )
    loop, core = both(config, HELD, plan, {})
    assert_equal(loop, core)
    steps = loop.record.steps
    busy = int(steps["busy_ns"].sum()) / int((steps["end_ns"] - steps["start_ns"]).sum())
    assert 0.2 < busy < 0.8


def test_preemption_is_among_what_is_compared() -> None:
    config = SchedulerConfig(kv_blocks=40, max_model_len=200, max_num_seqs=8, max_num_batched_tokens=64, block_size=4)
    plan = build_plan(
        "prompt=uniform(20,80);output=uniform(20,70)", num_requests=60, seed=1, arrival="poisson", max_model_len=200
    )
    loop, core = both(config, H100, plan, {})
    assert loop.record.column("preemptions").sum() > 30
    assert_equal(loop, core)


def test_a_run_that_is_stopped_ends_all_that_is_left() -> None:
    class Stopped(Told):
        @property
        def stopping(self) -> bool:  # type: ignore[override]
            return len(self.rows) >= 20

    config = SchedulerConfig(kv_blocks=400, max_model_len=200, max_num_seqs=8, max_num_batched_tokens=64)
    plan = build_plan(
        "prompt=uniform(20,80);output=uniform(20,70)", num_requests=60, seed=1, arrival="poisson", max_model_len=200
    )
    tables = H100.tables(8, 64)
    assert tables is not None
    record = run_compiled(config, tables, plan, Pacing(plan.arrivals_ugap), Stopped(), front_end_ns=0, block_steps=5)
    assert record.interrupted
    assert sorted(record.column("i").tolist()) == list(range(60))  # all were submitted at 0
    assert (record.where("status", "completed") | record.where("status", "cancelled")).all()
    assert record.where("finish_reason", "aborted").sum() == 60 - record.where("finish_reason", "length").sum() > 0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"mode": "static"}, "static batching"),
        ({"order": "shortest-prompt"}, "order shortest-prompt"),
        ({"prefix_caching": True}, "prefix caching"),
        ({"on_kv_pressure": "reject"}, "reject under KV pressure"),
        ({"max_model_len": 100}, "requests that never fit"),
        ({}, None),
    ],
)
def test_what_the_core_covers(changed: dict[str, Any], reason: str | None) -> None:
    config = replace(SchedulerConfig(kv_blocks=400, max_model_len=200, max_num_batched_tokens=64), **changed)
    plan = build_plan(
        "prompt=fixed(80);output=fixed(70)", num_requests=1000, seed=1, arrival="poisson", max_model_len=200
    )
    assert why_not(config, H100, plan, None) == reason
