"""The model-assisted verdict, against long simulations of the engine that was measured."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
import pytest

from benchmarks.simulator import STEP_TIMES_8B
from engines.scheduling.config import SchedulerConfig
from engines.simulated.calibrate import MeasuredSteps, calibrate, measured_steps
from engines.simulated.replay import Replay, at_busy_time, predicted_ns, scaled
from engines.simulated.step_time import FittedStepTimes, Origin
from reports.assist import Correction, Simulations, Size, assisted, correction, is_assisted, simulate, times_of
from reports.metrics import RequestTimes
from reports.schema import SlaResult
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.spec import build_plan

pytest.importorskip("numba")
CONFIG = SchedulerConfig(kv_blocks=27_439, max_model_len=8192, max_num_seqs=16, max_num_batched_tokens=8192)
RATE_PER_S = 2.0  # of 2.5 that a burst is served at
REPLAY = Replay(CONFIG, 0, lambda plan: Pacing(plan.arrivals_ugap, rate_per_s=RATE_PER_S))
SMALL = Size(long_runs=4, long_requests=3000, draws=4, drawn_requests=1500)


def plan_of(requests: int, seed: int) -> RequestPlan:
    return build_plan("azure-conv", num_requests=requests, seed=seed, arrival="poisson", max_model_len=8192)


class Measured:
    """A run of 200 requests with noise of 5 % a step."""

    def __init__(self, seed: int) -> None:
        noise = np.exp(np.random.default_rng(seed).normal(0.0, 0.05, 9_973))
        self.plan = plan_of(200, seed)
        columns, ledger = REPLAY.run(STEP_TIMES_8B, self.plan, noise)
        self.times: RequestTimes = times_of(columns)
        self.steps: MeasuredSteps = measured_steps(ledger)
        self.model: FittedStepTimes = calibrate(self.steps, Origin(source="this run"))
        self.found: Simulations = simulate(REPLAY, self.model, self.steps, self.plan, plan_of, size=SMALL)

    def corrected(self) -> Correction:
        value = float(np.quantile(self.times.ttft_sched_ms, 0.99))
        found = correction(value, "ttft_sched_ms", 0.99, self.found)
        assert found is not None
        return found

    def judged(self, bound_ms: float) -> SlaResult:
        value = float(np.quantile(self.times.ttft_sched_ms, 0.99))
        measured = SlaResult(f"p99_ttft_ms<={bound_ms}", "p99_ttft_sched_ms", value, bound_ms, 0.95, 300, 40.0,
                             "inconclusive", "")  # fmt: skip
        return assisted(measured, self.found)


@pytest.fixture(scope="module")
def truth_ms() -> float:
    several = [times_of(REPLAY.run(STEP_TIMES_8B, plan_of(8_000, 900 + one))[0]).ttft_sched_ms for one in range(3)]
    return float(np.quantile(np.concatenate(several), 0.99))


@pytest.fixture(scope="module")
def runs() -> list[Measured]:
    return [Measured(seed) for seed in range(3)]


def test_the_correction_takes_the_bursts_that_were_met_out(runs: list[Measured], truth_ms: float) -> None:
    """The corrected values of several short runs are nearer to the truth than their own, and to each other."""
    plain = np.log([float(np.quantile(one.times.ttft_sched_ms, 0.99)) / truth_ms for one in runs])
    corrected = np.log([one.corrected().value / truth_ms for one in runs])
    assert np.abs(corrected).mean() < 0.5 * np.abs(plain).mean()
    assert corrected.std() < plain.std()


def test_verdicts_follow_the_interval_of_the_corrected_value(runs: list[Measured], truth_ms: float) -> None:
    for one in runs:
        fixed = one.corrected()
        assert fixed.agrees
        verdicts = [one.judged(fixed.value * factor).verdict for factor in (0.3, 1.0, 3.0)]
        assert verdicts == ["fail", "inconclusive", "pass"]
        label = one.judged(fixed.value)
        assert label.method == "model-assisted"
        assert label.value == pytest.approx(fixed.value)


def test_the_same_run_gives_the_same_verdict(runs: list[Measured]) -> None:
    small = Size(long_runs=2, long_requests=300, draws=2, drawn_requests=300)
    one = runs[1]
    first, second = (simulate(REPLAY, one.model, one.steps, one.plan, plan_of, size=small) for _ in range(2))
    assert correction(300.0, "tpot_ms", 0.99, first) == correction(300.0, "tpot_ms", 0.99, second)


def test_step_times_that_do_not_describe_the_run_give_no_verdict(runs: list[Measured]) -> None:
    value = float(np.quantile(runs[0].times.ttft_sched_ms, 0.99))
    fixed = correction(value * 3, "ttft_sched_ms", 0.99, runs[0].found)
    assert fixed is not None
    assert not fixed.agrees
    result = SlaResult("p99_ttft_ms<=1e9", "p99_ttft_sched_ms", value * 3, 1e9, 0.95, 300, 40.0, "pass", "")
    judged = assisted(result, runs[0].found)
    assert judged.verdict == "inconclusive"
    assert "do not describe this run" in judged.reason


def test_a_load_that_is_too_high_gives_no_verdict() -> None:
    too_much = Replay(CONFIG, 0, lambda plan: Pacing(plan.arrivals_ugap, rate_per_s=12.0))
    plan = plan_of(200, 0)
    _, ledger = too_much.run(STEP_TIMES_8B, plan)
    steps = measured_steps(ledger)
    model = calibrate(steps, Origin(source="this run"))
    found = simulate(too_much, model, steps, plan, plan_of, size=SMALL)
    result = SlaResult("p99_ttft_ms<=1e9", "p99_ttft_sched_ms", 1000.0, 1e9, 0.95, 200, 40.0, "pass", "")
    judged = assisted(result, found)
    assert judged.verdict == "inconclusive"
    assert "grows without end" in judged.reason


def test_scaled_to_the_busy_time(runs: list[Measured]) -> None:
    one = runs[0]
    other = scaled(one.model, partial(float, 1.3))
    busy = predicted_ns(at_busy_time(other, one.steps), one.steps).sum()
    assert busy == pytest.approx(one.steps.duration_ns.sum(), rel=1e-9)


@pytest.mark.parametrize(
    ("metric", "scope", "answer"),
    [
        ("p99_ttft_sched_ms", None, True),
        ("p50_tpot_ms", None, True),
        ("p99_ttft_sched_ms", "tenant=a", False),
        ("p99_itl_ms", None, False),
        ("mean_ttft_ms", None, False),
        ("attainment", None, False),
        ("output_token_per_s", None, False),
    ],
)
def test_what_is_assisted(metric: str, scope: str | None, answer: bool) -> None:
    result = SlaResult(f"{metric}<=1", metric, 1.0, 1.0, 0.95, 1, None, "pass", "", None)
    assert is_assisted(msgspec.structs.replace(result, scope=scope)) is answer


def test_predicted_as_the_model_itself(runs: list[Measured]) -> None:
    one = runs[0]
    whole = [one.model.duration_ns(shape) for shape in one.steps.shapes()]
    assert np.abs(predicted_ns(one.model, one.steps) - whole).max() <= 1
