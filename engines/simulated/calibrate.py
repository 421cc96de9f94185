"""Calibrate: a StepLaw from the ledger of one run, or the reason why that run cannot give one.

The fit minimises the *relative* error (an absolute one would be right for big batches only) under non-negative terms,
then scales each regime so that the fitted steps' total time is right: throughput follows the mean, and a relative fit
leans to the low side of noisy steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from engines.base import EngineError
from engines.scheduling.ledger import StepArray
from engines.scheduling.plan import IntArray
from engines.simulated.law import DecodeTerms, GapTerms, HoldOut, MixedTerms, Origin, StepLaw

FloatArray = NDArray[np.float64]
Fit = Callable[[FloatArray, FloatArray], "Terms"]

FOLDS = 5  # contiguous parts of the run, each predicted from the others: neighbours in time are too alike to be fair
MIN_STEPS = 10  # of either regime
MAX_MEAN_ERROR = 0.25  # on steps left out, in either regime; a quiet machine gives 0.01 to 0.06
KNEES_TOKENS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
NARROW = 2.0  # below this ratio of most to fewest rows, the cost of a row is a guess
COLUMNS = ("decode_kv_positions", "prefill_kv_positions", "prefill_pairs")  # of the ledger, needed beside the counts


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """What the law explains and what it explains it by, one value per step of a run."""

    tokens: IntArray
    rows: IntArray
    kv: IntArray
    prefill_kv: IntArray
    prefill_pairs: IntArray
    duration_ns: IntArray
    gap_ns: IntArray  # -1 where the engine may have been idle before the step

    @property
    def decode_only(self) -> NDArray[np.bool_]:
        return np.equal(self.tokens, self.rows)


def measured_steps(steps: StepArray) -> MeasuredSteps:
    """From a ledger. EngineError where it was written before the columns that the law needs."""
    if missing := [name for name in COLUMNS if name not in (steps.dtype.names or ())]:
        raise EngineError(f"this run's ledger has no {', '.join(missing)}: record it again with this version")
    before_ns = np.concatenate(([0], steps["end_ns"][:-1]))
    gap_ns = np.maximum(steps["start_ns"] - before_ns, 0)
    # Where everybody in the batch has just been seated, the engine may have waited for them.
    carried_over = steps["running"] > steps["admitted"]
    carried_over[:1] = False
    return MeasuredSteps(
        tokens=steps["launched_tokens"],
        rows=steps["prefill_rows"] + steps["decode_rows"] + steps["dead_slots"].astype(np.int64),
        kv=steps["decode_kv_positions"],
        prefill_kv=steps["prefill_kv_positions"],
        prefill_pairs=steps["prefill_pairs"],
        # With overlap a step is submitted while the one before runs: its own time begins when that one has ended.
        duration_ns=steps["end_ns"] - np.maximum(steps["start_ns"], before_ns),
        gap_ns=np.where(carried_over, gap_ns, -1),
    )


def calibrate(
    measured: MeasuredSteps,
    *,
    source: str,
    model: str | None = None,
    device: str | None = None,
    overlapped: bool = False,
    row_buckets: tuple[int, ...] = (),
    max_mean_error: float = MAX_MEAN_ERROR,
) -> StepLaw:
    """The law of a run's steps. EngineError, with the reason, where the run cannot give a good one."""
    decode, mixed = measured.decode_only, ~measured.decode_only
    for regime, steps in (("decode", decode), ("mixed", mixed)):
        if (found := int(steps.sum())) < MIN_STEPS:
            raise EngineError(
                f"cannot calibrate on {source}: {found} {regime} steps, at least {MIN_STEPS} are needed; run more "
                f"requests, with prompts and outputs of many tokens"
            )
    duration_ns = measured.duration_ns.astype(np.float64)
    rows = _launched_rows(measured.rows, row_buckets)
    regimes = {
        "decode": (_columns(rows, measured.kv)[decode], duration_ns[decode], _fit_linear),
        "mixed": (
            _columns(measured.tokens, rows, measured.kv, measured.prefill_pairs, measured.prefill_kv)[mixed],
            duration_ns[mixed],
            _fit_with_knee,
        ),
        "gap": _gap_samples(measured),
    }
    hold_out = {regime: _hold_out(*samples) for regime, samples in regimes.items()}
    for regime in ("decode", "mixed"):
        if (error := hold_out[regime].mean) > max_mean_error:
            raise EngineError(
                f"cannot calibrate on {source}: {regime} steps left out of the fit are predicted {error:.0%} off on "
                f"average, at most {max_mean_error:.0%} is accepted; the machine was disturbed, or its steps follow "
                f"another law"
            )
    fitted = {regime: fit(x, y) for regime, (x, y, fit) in regimes.items()}
    return StepLaw(
        calibrated=True,
        decode=_decode_terms(fitted["decode"]),
        mixed=_mixed_terms(fitted["mixed"]),
        gap=_gap_terms(fitted["gap"]),
        overlapped=overlapped,
        row_buckets=row_buckets,
        origin=Origin(
            source=source,
            model=model,
            device=device,
            hold_out=hold_out,
            fitted_on={name: _range(getattr(measured, name)) for name in ("rows", "tokens", "kv")},
            warnings=tuple(_warnings(measured)),
        ),
    )


# -- the fits ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Terms:
    """Coefficients in ns of [1, columns...]; with a knee, of [1, columns..., tokens beyond the knee]."""

    ns: FloatArray
    knee_tokens: int | None = None

    def predict(self, x: FloatArray) -> FloatArray:
        out: FloatArray = (x if self.knee_tokens is None else _with_knee(x, self.knee_tokens)) @ self.ns
        return out


def _fit_linear(x: FloatArray, y: FloatArray) -> Terms:
    return Terms(_non_negative(x, y)[0])


def _fit_with_knee(x: FloatArray, y: FloatArray) -> Terms:
    """The knee that fits best, among a few, inside the range of tokens seen."""
    tokens = x[:, 1]
    inside = [knee for knee in KNEES_TOKENS if tokens.min() < knee < tokens.max()] or [int(tokens.max())]
    fits = [(_non_negative(_with_knee(x, knee), y), knee) for knee in inside]
    (ns, _), knee = min(fits, key=lambda fit: fit[0][1])
    return Terms(ns, knee)


def _non_negative(x: FloatArray, y: FloatArray) -> tuple[FloatArray, float]:
    """(coefficients >= 0 with the least relative error and the right total, that error)"""
    relative = x / y[:, None]
    size = np.linalg.norm(relative, axis=0)
    size[size == 0] = 1.0
    scaled, error = nnls(relative / size, np.ones(len(y)))
    ns = scaled / size
    total = float((x @ ns).sum())
    return ns * (float(y.sum()) / total if total else 1.0), float(error)


def _hold_out(x: FloatArray, y: FloatArray, fit: Fit) -> HoldOut:
    predicted = np.zeros_like(y)
    for part in np.array_split(np.arange(len(y)), FOLDS):
        rest = np.setdiff1d(np.arange(len(y)), part)
        predicted[part] = fit(x[rest], y[rest]).predict(x[part])
    off = np.abs(predicted / y - 1)
    return HoldOut(
        steps=len(y),
        mean=float(off.mean()),
        p95=float(np.percentile(off, 95)),
        total=float(predicted.sum() / y.sum() - 1),
    )


# -- columns in, terms out ---------------------------------------------------------------------------------------


def _columns(*columns: IntArray) -> FloatArray:
    return np.column_stack((np.ones(len(columns[0])), *columns)).astype(np.float64)


def _with_knee(x: FloatArray, knee_tokens: int) -> FloatArray:
    return np.column_stack((x, np.maximum(x[:, 1] - knee_tokens, 0)))


def _gap_samples(measured: MeasuredSteps) -> tuple[FloatArray, FloatArray, Fit]:
    known = measured.gap_ns >= 0
    gaps_ns = np.maximum(measured.gap_ns[known], 1).astype(np.float64)
    return _columns(measured.rows[known]), gaps_ns, _fit_linear


def _launched_rows(rows: IntArray, buckets: tuple[int, ...]) -> IntArray:
    if not buckets:
        return rows
    sizes = np.array(buckets)
    at = np.searchsorted(sizes, rows)
    return np.where(at < len(sizes), sizes[np.minimum(at, len(sizes) - 1)], rows)


def _range(values: IntArray) -> tuple[int, int]:
    return int(values.min()), int(values.max())


def _warnings(measured: MeasuredSteps) -> list[str]:
    fewest, most = _range(measured.rows[measured.decode_only])
    if most < NARROW * fewest:
        return [f"decode-only steps had {fewest} to {most} rows: other batch sizes are extrapolated"]
    return []


def _rounded(ns: float) -> float:
    """Six digits are more than the fit knows, and a person can read them."""
    return float(f"{ns:.6g}")


def _decode_terms(fitted: Terms) -> DecodeTerms:
    step, row, kv = (_rounded(ns) for ns in fitted.ns.tolist())
    return DecodeTerms(step=step, row=row, kv=kv)


def _mixed_terms(fitted: Terms) -> MixedTerms:
    step, token, row, kv, pair, prefill_kv, beyond = (_rounded(ns) for ns in fitted.ns.tolist())
    assert fitted.knee_tokens is not None
    return MixedTerms(
        step=step, token=token, beyond_knee=beyond, knee_tokens=fitted.knee_tokens,
        row=row, kv=kv, pair=pair, prefill_kv=prefill_kv,
    )  # fmt: skip


def _gap_terms(fitted: Terms) -> GapTerms:
    step, row = (_rounded(ns) for ns in fitted.ns.tolist())
    return GapTerms(step=step, row=row)
