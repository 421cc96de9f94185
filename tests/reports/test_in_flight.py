"""Running and waiting over wall time: Little's law on every engine, and the scheduler's own count at every step."""

from __future__ import annotations

import numpy as np
import pytest

from engines.base import RunRecord, SilentObserver
from engines.scheduling.config import SchedulerConfig
from engines.simulated.engine import SimulatedEngine
from reports.breakdown import breakdown
from reports.in_flight import InFlight, Spans
from reports.metrics import request_times
from reports.summary import summarize
from reports.summary_schema import Signals
from tests.engines.simulated.small_runs import STEP_TIMES, run_step_by_step
from tests.engines.test_disaggregated import pair, run
from tests.reports.factory import header
from tests.wire.driving import load
from tests.wire.fake import DONE, END, HEAD, Call, FakeServer, chunk, text, usage
from workloads.arrivals import unit_arrivals
from workloads.pacing import Pacing
from workloads.plan import RequestPlan

NUMBER = 120


def plan_of(number: int = NUMBER) -> RequestPlan:
    return RequestPlan.of(
        [(17 * i) % 190 + 1 for i in range(number)],
        [(29 * i) % 140 + 2 for i in range(number)],
        arrivals_ugap=unit_arrivals("poisson", number, seed=3),
    )


def assert_littles_law(record: RunRecord, running_ms: np.ndarray) -> Signals:
    """L = λW, for those in flight by their E2EL, for the running ones by running_ms of each request."""
    summary = summarize(record, header(event_unit=record.event_unit))
    times, signals, window_ms = request_times(record), summary.signals, summary.throughput.window_s * 1e3
    assert signals.running_mean is not None
    assert signals.waiting_mean is not None
    per_ms = len(times) / window_ms
    in_flight = signals.running_mean + signals.waiting_mean
    assert in_flight == pytest.approx(per_ms * times.e2el_ms.mean(), rel=1e-3)
    assert signals.running_mean == pytest.approx(per_ms * running_ms.mean(), rel=1e-3)
    return signals


def running_ms(record: RunRecord) -> np.ndarray:
    parts = breakdown(record).e2el_ns()
    return (parts["prefill"] + parts["decode"]) / 1e6


def assert_counts_of_the_scheduler(record: RunRecord) -> None:
    """When a step is planned, as many run and wait as its ledger row says."""
    found, now_ns = InFlight.of(record), record.steps["now_ns"]

    def at(spans: Spans, time_ns: int) -> int:
        return int(((spans.begin_ns <= time_ns) & (spans.end_ns > time_ns)).sum())

    assert [at(found.running, one) for one in now_ns] == record.steps["running"].tolist()
    assert [at(found.waiting, one) for one in now_ns] == record.steps["waiting"].tolist()


@pytest.mark.parametrize("rate_per_s", [0.05, 1.5, 50.0])
@pytest.mark.parametrize("step_by_step", [True, False])
def test_simulated(rate_per_s: float, *, step_by_step: bool) -> None:
    """Idle most of the time, busy, and overloaded with preemptions; by the scheduler and by the compiled core."""
    config = SchedulerConfig(kv_blocks=60, max_model_len=512, max_num_seqs=16, max_num_batched_tokens=256)
    plan = plan_of()
    if step_by_step:
        record = run_step_by_step(plan, config, rate_per_s=rate_per_s)
    else:
        pacing = Pacing(plan.arrivals_ugap, rate_per_s=rate_per_s)
        record = SimulatedEngine(config, STEP_TIMES).run(plan, pacing, SilentObserver())
    signals = assert_littles_law(record, running_ms(record))
    assert_counts_of_the_scheduler(record)
    assert (record.steps["preempted"].sum() > 0) == (rate_per_s == 50.0)
    if rate_per_s == 0.05:
        assert signals.running_mean is not None
        assert signals.kv_usage_mean is not None
        assert signals.running_mean < 0.2, "it is idle most of the time"
        lasted_ns = record.steps["end_ns"] - record.steps["start_ns"]
        over_steps = float(np.average(record.steps["kv_used_blocks"] / 60, weights=lasted_ns))
        assert signals.kv_usage_mean < 0.2 * over_steps


def test_disaggregated() -> None:
    """The whole is the sum of the instances; KV on its way counts as waiting, for the decode instance."""
    record = run(
        pair({"kv_blocks": 40}, {"kv_blocks": 24, "max_num_seqs": 6}),
        [((7 * i) % 60 + 1, (11 * i) % 30 + 1) for i in range(60)],
        at_ms=[4 * i for i in range(60)],
    )
    summary = summarize(record, header(event_unit="step"))
    times, whole = request_times(record), summary.signals
    assert whole.running_mean is not None
    assert whole.waiting_mean is not None
    per_ms = len(times) / summary.throughput.window_s / 1e3
    assert whole.running_mean + whole.waiting_mean == pytest.approx(per_ms * times.e2el_ms.mean(), rel=1e-3)
    parts = [one.signals for one in summary.instances.values()]
    assert whole.running_mean == pytest.approx(sum(one.running_mean or 0.0 for one in parts))
    assert whole.waiting_mean == pytest.approx(sum(one.waiting_mean or 0.0 for one in parts))


def test_reference_on_a_cpu() -> None:
    pytest.importorskip("torch")
    from engines.reference.engine import ReferenceEngine
    from engines.reference.model.weights import load_model

    config = SchedulerConfig(kv_blocks=64, max_model_len=128, max_num_seqs=2)
    plan = RequestPlan.of([20] * 12, [12] * 12, arrivals_ugap=unit_arrivals("poisson", 12, seed=1))
    engine = ReferenceEngine(load_model("tiny", dtype="fp32", device="cpu"), config)
    record = engine.run(plan, Pacing(plan.arrivals_ugap, rate_per_s=60.0), SilentObserver())
    assert_littles_law(record, running_ms(record))


def test_over_http_by_the_clients_own_record() -> None:
    async def answer(call: Call) -> None:
        await call.pause(0.02)
        await call.send(HEAD + chunk(text("a")))
        await call.pause(0.03)
        await call.send(chunk(text("a", "length")) + chunk(usage(2)) + chunk(DONE) + END)

    arrivals = unit_arrivals("poisson", 12, seed=1)
    with FakeServer(answer) as server:
        record = load(server, 12, rate=40.0, arrivals_ugap=arrivals).record
    times = request_times(record)
    assert_littles_law(record, times.e2el_ms - times.ttft_ms)
