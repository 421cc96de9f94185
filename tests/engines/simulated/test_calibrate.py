"""Calibration: known step times are recovered from few and noisy steps; unusable runs are refused with the reason."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from engines.ledger import LEDGER
from engines.simulated.calibrate import COLUMNS, MeasuredSteps, calibrate, fit_decode, measured_steps
from engines.simulated.step_time import DecodeTerms, FittedStepTimes, Origin, StepShape
from tests.engines.simulated.small_runs import STEP_TIMES
from workloads.errors import CbbenchError


def _steps(
    n: int, step_times: FittedStepTimes, *, noise: float = 0.0, seed: int = 0, swapping: float = 0.0
) -> MeasuredSteps:
    """Steps of random shapes, half of them decode-only, with the durations that `step_times` gives them, disturbed."""
    rng = np.random.default_rng(seed)
    decode = np.arange(n) % 2 == 0
    rows = rng.integers(1, 33, n)
    chunk = np.where(decode, 0, rng.integers(2, 500, n))
    start = np.where(decode, 0, rng.integers(0, 2000, n))
    kv = np.where(decode, rows, rows - 1) * rng.integers(100, 2000, n)
    tokens, pairs = np.where(decode, rows, rows - 1 + chunk), chunk * start + chunk * (chunk + 1) // 2
    swapped = np.where(rng.random(n) < swapping, rng.integers(1, 40, n), 0)
    shapes = [StepShape(*map(int, shape)) for shape in zip(tokens, rows, kv, start, pairs, swapped, strict=True)]
    exact = np.array([step_times.duration_ns(shape) for shape in shapes])
    gap_ns = np.array([step_times.gap_ns(int(r)) for r in rows])
    disturbed = np.exp(noise * rng.standard_normal((2, n)))
    return MeasuredSteps(
        tokens=tokens, rows=rows, kv=kv, prefill_kv=start, prefill_pairs=pairs, swapped_blocks=swapped,
        duration_ns=np.rint(exact * disturbed[0]).astype(np.int64),
        gap_ns=np.rint(gap_ns * disturbed[1]).astype(np.int64),
    )  # fmt: skip


def _errors(step_times: FittedStepTimes, truth: FittedStepTimes, seed: int) -> tuple[float, float]:
    """Mean relative error of `step_times` on fresh steps of the `truth`: (decode-only, mixed)."""
    fresh = _steps(400, truth, seed=seed)
    predicted = np.array([step_times.duration_ns(shape) for shape in fresh.shapes()])
    off = np.abs(predicted / fresh.duration_ns - 1)
    return float(off[fresh.decode_only].mean()), float(off[~fresh.decode_only].mean())


def test_forty_clean_steps_recover_the_step_times() -> None:
    step_times = calibrate(_steps(40, STEP_TIMES), Origin(source="a run"))
    decode, mixed = _errors(step_times, STEP_TIMES, seed=1)
    assert decode < 1e-4
    assert mixed < 0.01
    assert step_times.decode.kv == pytest.approx(STEP_TIMES.decode.kv, rel=1e-3)
    assert step_times.mixed.knee_tokens == 192
    assert step_times.gap.step == pytest.approx(STEP_TIMES.gap.step, rel=1e-3)
    assert step_times.calibrated
    assert step_times.origin.hold_out["decode"].mean < 1e-4


@pytest.mark.parametrize("seed", range(5))
def test_forty_noisy_steps_are_enough(seed: int) -> None:
    step_times = calibrate(_steps(40, STEP_TIMES, noise=0.05, seed=seed), Origin(source="a run"))
    decode, mixed = _errors(step_times, STEP_TIMES, seed=100 + seed)
    assert decode < 0.03
    assert mixed < 0.08


def test_noise_does_not_bias_the_total() -> None:
    """A relative fit leans to the short steps; scaled, the summed time of a noisy run is right."""
    noisy = _steps(4000, STEP_TIMES, noise=0.3)
    step_times = calibrate(noisy, Origin(source="a run"), max_mean_error=1.0)
    predicted = sum(step_times.duration_ns(shape) for shape in noisy.shapes())
    assert predicted == pytest.approx(int(noisy.duration_ns.sum()), rel=1e-3)


def test_hold_out_errors_are_told_by_regime() -> None:
    step_times = calibrate(_steps(400, STEP_TIMES, noise=0.05), Origin(source="a run"))
    for regime in ("decode", "mixed", "gap"):
        hold_out = step_times.origin.hold_out[regime]
        assert 0.02 < hold_out.mean < 0.07  # the mean of |N(0, 0.05)| is 0.04
        assert hold_out.p95 > hold_out.mean
        assert abs(hold_out.total) < 0.02
    assert step_times.origin.hold_out["decode"].steps == 200
    assert step_times.origin.fitted_on["rows"] == (1, 32)


def test_unpredictable_steps_are_refused_with_the_error() -> None:
    with pytest.raises(CbbenchError, match=r"predictions of held-out decode steps are \d+% off on average"):
        calibrate(_steps(100, STEP_TIMES, noise=1.0), Origin(source="runs/x"))


def test_a_refused_fit_says_what_would_be_better() -> None:
    short = msgspec.structs.replace(
        STEP_TIMES,
        decode=DecodeTerms(step=1e6, row=0.0, kv=0.0),
        mixed=msgspec.structs.replace(
            STEP_TIMES.mixed, step=1e6, token=0.0, beyond_knee=0.0, row=0.0, kv=0.0, pair=0.0
        ),
    )
    for step_times, model in ((STEP_TIMES, False), (short, True)):
        with pytest.raises(CbbenchError, match=r"nothing else runs .*`num_requests` \d+.*`max_error`") as refused:
            calibrate(_steps(100, step_times, noise=1.0), Origin(source="x", model="tiny"))
        assert ("decode step of tiny takes" in str(refused.value)) == ("larger `model`" in str(refused.value)) == model
    steps = _steps(60, STEP_TIMES)
    for drop_decode, hint in ((True, "longer outputs"), (False, "more requests than slots")):
        rows = steps.rows + 1  # a token more than rows: every step has a prompt in it
        tokens = np.where(steps.decode_only, rows + 1, steps.tokens + 1) if drop_decode else rows
        with pytest.raises(CbbenchError, match="at least 10 are needed; ") as refused:
            calibrate(replace(steps, tokens=tokens, rows=rows), Origin(source="x"))
        assert "cbbench run `num_requests` 64 `max_num_seqs` 8" in str(refused.value)
        assert hint in str(refused.value)


def test_too_few_steps_are_refused_with_the_number() -> None:
    with pytest.raises(CbbenchError, match=r"runs/x: 8 decode steps, at least 10 are needed"):
        calibrate(_steps(16, STEP_TIMES), Origin(source="runs/x"))


def test_a_run_with_one_batch_size_warns_that_others_are_a_guess() -> None:
    steps = _steps(200, STEP_TIMES)
    decode = steps.decode_only
    rows, kv = np.where(decode, 32, steps.rows), np.where(decode, steps.kv // steps.rows * 32, steps.kv)
    same = replace(steps, tokens=np.where(decode, 32, steps.tokens), rows=rows, kv=kv)
    same = replace(same, duration_ns=np.array([STEP_TIMES.duration_ns(shape) for shape in same.shapes()]))
    assert calibrate(same, Origin(source="x")).origin.warnings == (
        "decode-only steps had 32 to 32 rows: other batch sizes are extrapolated",
    )
    assert calibrate(steps, Origin(source="x")).origin.warnings == ()


def test_graph_buckets_explain_the_steps_between_them() -> None:
    padded = msgspec.structs.replace(
        STEP_TIMES, row_buckets=(1, 8, 16, 32), decode=msgspec.structs.replace(STEP_TIMES.decode, row=5e6)
    )
    steps = _steps(200, padded)
    step_times = calibrate(steps, Origin(source="x"), row_buckets=(1, 8, 16, 32))
    assert step_times.origin.hold_out["decode"].mean < 1e-4
    assert step_times.decode.row == pytest.approx(5e6, rel=1e-3)
    assert calibrate(steps, Origin(source="x"), max_mean_error=1.0).origin.hold_out["decode"].mean > 0.05


def test_moving_kv_blocks_has_a_cost_of_its_own() -> None:
    moving = msgspec.structs.replace(STEP_TIMES, swap_block_ns=250_000.0)
    step_times = calibrate(_steps(400, moving, swapping=0.2), Origin(source="x"))
    assert step_times.swap_block_ns == pytest.approx(250_000, rel=0.01)
    assert step_times.origin.hold_out["decode"].mean < 1e-4
    assert not calibrate(_steps(400, STEP_TIMES), Origin(source="x")).knows_swaps


def test_an_old_ledger_is_refused_by_the_names_it_lacks() -> None:
    old = np.zeros(5, [(name, LEDGER[name]) for name in LEDGER.names or () if name not in COLUMNS])
    with pytest.raises(CbbenchError, match="no decode_kv_positions, prefill_kv_positions, prefill_pairs"):
        measured_steps(old)


def test_rows_that_take_longer_beyond_a_knee_are_found() -> None:
    """A GPU reads its weights while it computes the first 64 rows; a straight line would be off at both ends."""
    decode = DecodeTerms(step=10e6, row=0.0, kv=100.0, beyond_knee=60_000.0, knee_rows=64)
    rng = np.random.default_rng(3)
    rows, kv = rng.integers(1, 256, 400), rng.integers(0, 100_000, 400)
    truth = FittedStepTimes(
        calibrated=True, decode=decode, mixed=STEP_TIMES.mixed, gap=STEP_TIMES.gap, origin=STEP_TIMES.origin
    )
    ns = np.array(
        [truth.duration_ns(StepShape(n, n, k, 0, 0)) for n, k in zip(rows.tolist(), kv.tolist(), strict=True)]
    )
    fitted = fit_decode(np.column_stack((np.ones(400), rows, kv)), ns.astype(np.float64))
    assert fitted.knee == 64
    assert fitted.ns.tolist() == pytest.approx([10e6, 0.0, 100.0, 60_000.0], rel=1e-3, abs=1.0)
    straight = fit_decode(np.column_stack((np.ones(400), rows, kv)), 10e6 + 40_000.0 * rows + 100.0 * kv)
    assert straight.knee is None
