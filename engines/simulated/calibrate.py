"""Calibration: fits a FittedStepTimes to measured steps, of the ledgers of runs or of a server's file.

The mixed steps of a run are often alike (a full batch and a chunk), so that the costs of a row and of a step cannot be
separated. Therefore the coefficients that both regimes have get a weak prior: their values in decode-only steps.

The fit is non-negative with the least *relative* error; an absolute one would be right for large batches only. A
relative fit underestimates noisy steps, so it is scaled until the summed time of the fitted steps is right, as
throughput follows from that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from engines.ledger import StepArray
from engines.scheduling.plan import IntArray
from engines.simulated.step_time import DecodeTerms, FittedStepTimes, GapTerms, HoldOut, MixedTerms, Origin, StepShape
from workloads.errors import CbbenchError

MIN_STEPS = 10  # of either regime
MAX_MEAN_ERROR = 0.25  # on held-out steps, in either regime; kernels measured alone give 0.01 to 0.06
NARROW = 2.0  # below this ratio of most to fewest rows, the cost of a row is extrapolated
ENOUGH_STEPS = (  # of both: 64 prompts of 264 tokens on average give over a hundred mixed steps
    "cbbench run `num_requests` 64 `max_num_seqs` 8 `max_num_batched_tokens` 128 "
    "`workload` 'prompt=uniform(16,512);output=uniform(32,128)'"
)
MORE_STEPS = {  # advice for a run with too few steps of a regime
    "decode": f"these are steps without prompts, and longer outputs give more of them: {ENOUGH_STEPS}",
    "mixed": "these are steps with prompts, and more requests than slots, fewer tokens a step or a `rate` give more "
    f"of them: {ENOUGH_STEPS}; several runs can be fitted together, `cbbench calibrate RUN RUN`",
}
SHORT_STEP_NS = 5e6  # the time of a shorter step on a CPU may be mostly noise of the host
COLUMNS = ("decode_kv_positions", "prefill_kv_positions", "prefill_pairs")  # old ledgers lack them

FloatArray = NDArray[np.float64]
Fit = Callable[[FloatArray, FloatArray], "Terms"]  # columns [steps, k] and ns [steps] -> terms

FOLDS = 5  # contiguous parts of the run, each predicted from the others: steps close in time are too similar
KNEES_TOKENS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TOKENS = 3  # the column of tokens in mixed steps
ROWS = 1
KNEES_ROWS = (4, 8, 16, 32, 64, 128, 256)
KNEE_GAIN = 0.9  # a knee in the rows must leave at most this share of the error without it
PRIOR_WEIGHT = 0.2  # of one step, against a coefficient of twice its prior or 0
NO_PRIOR: FloatArray = np.zeros(0)


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """The times to fit and what they depend on, one value per step of a run."""

    tokens: IntArray
    rows: IntArray
    kv: IntArray
    prefill_kv: IntArray
    prefill_pairs: IntArray
    swapped_blocks: IntArray
    duration_ns: IntArray
    gap_ns: IntArray  # -1 if the engine may have been idle before the step

    @property
    def decode_only(self) -> NDArray[np.bool_]:
        return np.equal(self.tokens, self.rows)

    def shapes(self) -> list[StepShape]:
        columns = (self.tokens, self.rows, self.kv, self.prefill_kv, self.prefill_pairs, self.swapped_blocks)
        return [StepShape(*shape) for shape in zip(*(column.tolist() for column in columns), strict=True)]


def measured_steps(steps: StepArray) -> MeasuredSteps:
    """From a ledger. Raises CbbenchError if it has no steps or lacks columns that the fit needs."""
    if not len(steps):
        raise CbbenchError(None, "this run recorded no engine steps; calibrate on a run with `engine` reference")
    if missing := [name for name in COLUMNS if name not in (steps.dtype.names or ())]:
        raise CbbenchError(None, f"this run's ledger has no {', '.join(missing)}; record it again with this version")
    before_ns = np.concatenate(([0], steps["end_ns"][:-1]))
    gap_ns = np.maximum(steps["start_ns"] - before_ns, 0)
    # If all requests of the batch were just admitted, the engine may have been idle until they arrived.
    carried_over = steps["running"] > steps["admitted"]
    carried_over[:1] = False
    return MeasuredSteps(
        tokens=steps["launched_tokens"],
        rows=steps["prefill_rows"] + steps["decode_rows"] + steps["dead_slots"].astype(np.int64),
        kv=steps["decode_kv_positions"],
        prefill_kv=steps["prefill_kv_positions"],
        prefill_pairs=steps["prefill_pairs"],
        swapped_blocks=steps["swap_in_blocks"].astype(np.int64) + steps["swap_out_blocks"],
        # With overlap a step is submitted while the one before runs; its own time starts when that one ends.
        duration_ns=steps["end_ns"] - np.maximum(steps["start_ns"], before_ns),
        gap_ns=np.where(carried_over, gap_ns, -1),
    )


def pooled(runs: Sequence[MeasuredSteps]) -> MeasuredSteps:
    """The steps of several runs of one engine on one machine."""
    return MeasuredSteps(
        **{one.name: np.concatenate([getattr(run, one.name) for run in runs]) for one in fields(MeasuredSteps)}
    )


def calibrate(
    measured: MeasuredSteps,
    origin: Origin,
    *,
    overlapped: bool = False,
    row_buckets: tuple[int, ...] = (),
    max_mean_error: float = MAX_MEAN_ERROR,
) -> FittedStepTimes:
    """The model of a run's steps. Raises CbbenchError, with the reason, if the run gives no good one.

    origin: facts about the run; errors, ranges and warnings of the fit are added to it.
    """
    moves_kv = measured.swapped_blocks > 0
    decode, mixed = measured.decode_only & ~moves_kv, ~measured.decode_only & ~moves_kv
    for regime, steps in (("decode", decode), ("mixed", mixed)):
        if (found := int(steps.sum())) < MIN_STEPS:
            raise CbbenchError(
                None,
                f"cannot calibrate on {origin.source}: {found} {regime} steps, at least {MIN_STEPS} are needed; "
                f"{MORE_STEPS[regime]}",
            )
    duration_ns = measured.duration_ns.astype(np.float64)
    rows = _launched_rows(measured.rows, row_buckets)
    in_decode = (_columns(rows, measured.kv)[decode], duration_ns[decode])
    in_mixed = _columns(rows, measured.kv, measured.tokens, measured.prefill_pairs, measured.prefill_kv)[mixed]
    regimes: dict[str, tuple[FloatArray, FloatArray, Fit]] = {
        "decode": (*in_decode, fit_decode),
        "mixed": (in_mixed, duration_ns[mixed], partial(fit_with_knee, prior_ns=fit_linear(*in_decode).ns)),
    }
    if (measured.gap_ns >= 0).any():
        regimes["gap"] = (*_gap_samples(measured), fit_linear)
    hold_out = {regime: hold_out_error(*samples) for regime, samples in regimes.items()}
    for regime in ("decode", "mixed"):
        if (error := hold_out[regime].mean) > max_mean_error:
            raise CbbenchError(
                None,
                f"cannot calibrate on {origin.source}: predictions of held-out {regime} steps are {error:.0%} off on "
                f"average, at most {max_mean_error:.0%} is accepted; {_steadier(measured, origin)}",
            )
    fitted = {regime: fit(x, y) for regime, (x, y, fit) in regimes.items()}
    model = FittedStepTimes(
        calibrated=True,
        decode=_decode_terms(fitted["decode"]),
        mixed=_mixed_terms(fitted["mixed"]),
        gap=_gap_terms(fitted["gap"]) if "gap" in fitted else GapTerms(step=0.0, row=0.0),
        overlapped=overlapped,
        row_buckets=row_buckets,
        origin=msgspec.structs.replace(
            origin,
            hold_out=hold_out,
            fitted_on={name: _range(getattr(measured, name)) for name in ("rows", "tokens", "kv")},
            warnings=(*origin.warnings, *_warnings(measured)),
        ),
    )
    if not moves_kv.any():
        return model
    return msgspec.structs.replace(model, swap_block_ns=_swap_block_ns(model, measured))


# -- columns in, terms out ---------------------------------------------------------------------------------------


def _columns(*columns: IntArray) -> FloatArray:
    return np.column_stack((np.ones(len(columns[0])), *columns)).astype(np.float64)


def _gap_samples(measured: MeasuredSteps) -> tuple[FloatArray, FloatArray]:
    known = measured.gap_ns >= 0
    gaps_ns = np.maximum(measured.gap_ns[known], 1).astype(np.float64)
    return _columns(measured.rows[known]), gaps_ns


def _swap_block_ns(model: FittedStepTimes, measured: MeasuredSteps) -> float:
    """Time per moved block of the steps that move KV blocks, beyond the time of the same steps without moves."""
    moving = [i for i, blocks in enumerate(measured.swapped_blocks.tolist()) if blocks]
    shapes = measured.shapes()
    beyond_ns = sum(int(measured.duration_ns[i]) - model.duration_ns(shapes[i]) for i in moving)
    return _rounded(max(0.0, beyond_ns / sum(shapes[i].swapped_blocks for i in moving)))


def _steadier(measured: MeasuredSteps, origin: Origin) -> str:
    """Advice for steps that no model predicts well."""
    median_ns = float(np.median(measured.duration_ns[measured.decode_only]))
    advice = ["repeat the run while nothing else runs on the machine, with more requests (`num_requests` 256)"]
    if median_ns < SHORT_STEP_NS:
        of = f" of {origin.model}" if origin.model else ""
        advice.append(
            f"the median decode step{of} takes {median_ns / 1e6:.2g} ms, too short to time well, so use a larger "
            "`model`"
        )
    return "; ".join([*advice, "a larger `max_error` accepts a worse fit"])


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
    """Six digits: more than the fit is accurate to, and readable."""
    return float(f"{ns:.6g}")


def _decode_terms(fitted: Terms) -> DecodeTerms:
    step, row, kv, *beyond = (_rounded(ns) for ns in fitted.ns.tolist())
    return DecodeTerms(step=step, row=row, kv=kv, beyond_knee=beyond[0] if beyond else 0.0, knee_rows=fitted.knee or 0)


def _mixed_terms(fitted: Terms) -> MixedTerms:
    step, row, kv, token, pair, prefill_kv, beyond = (_rounded(ns) for ns in fitted.ns.tolist())
    assert fitted.knee is not None
    return MixedTerms(
        step=step, token=token, beyond_knee=beyond, knee_tokens=fitted.knee,
        row=row, kv=kv, pair=pair, prefill_kv=prefill_kv,
    )  # fmt: skip


def _gap_terms(fitted: Terms) -> GapTerms:
    step, row = (_rounded(ns) for ns in fitted.ns.tolist())
    return GapTerms(step=step, row=row)


# -- fits ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Terms:
    """Coefficients in ns of [1, rows, kv, ...]; with a knee, the last one is of the column's part beyond it."""

    ns: FloatArray
    knee: int | None = None  # of `column`
    column: int = 0

    def predict(self, x: FloatArray) -> FloatArray:
        out: FloatArray = (x if self.knee is None else _with_knee(x, self.knee, self.column)) @ self.ns
        return out


def fit_linear(x: FloatArray, y: FloatArray) -> Terms:
    return Terms(_non_negative(x, y)[0])


def fit_decode(x: FloatArray, y: FloatArray) -> Terms:
    """Linear in the rows, or with the best of a few knees where that is clearly better: a GPU computes a few rows in
    the time in which it reads the weights, and beyond them each row takes longer."""
    rows, (linear, error) = x[:, ROWS], _non_negative(x, y)
    fits = [
        (*_non_negative(_with_knee(x, knee, ROWS), y), knee) for knee in KNEES_ROWS if rows.min() < knee < rows.max()
    ]
    best = min(fits, key=lambda fit: fit[1], default=None)
    if best is None or best[1] > KNEE_GAIN * error:
        return Terms(linear)
    return Terms(best[0], best[2], ROWS)


def fit_with_knee(x: FloatArray, y: FloatArray, prior_ns: FloatArray) -> Terms:
    """The best of a few knees inside the range of tokens seen. prior_ns: expected coefficients of the first columns."""
    tokens = x[:, TOKENS]
    inside = [knee for knee in KNEES_TOKENS if tokens.min() < knee < tokens.max()] or [int(tokens.max())]
    fits = [(_non_negative(_with_knee(x, knee, TOKENS), y, prior_ns), knee) for knee in inside]
    (ns, _), knee = min(fits, key=lambda fit: fit[0][1])
    return Terms(ns, knee, TOKENS)


def _non_negative(x: FloatArray, y: FloatArray, prior_ns: FloatArray = NO_PRIOR) -> tuple[FloatArray, float]:
    """(coefficients >= 0 with the least relative error and the right total, that error)"""
    known = np.flatnonzero(prior_ns)
    pull = np.zeros((len(known), x.shape[1]))
    pull[np.arange(len(known)), known] = PRIOR_WEIGHT / prior_ns[known]
    relative = np.vstack((x / y[:, None], pull))
    size = np.linalg.norm(relative, axis=0)
    size[size == 0] = 1.0
    scaled, error = nnls(relative / size, np.concatenate((np.ones(len(y)), np.full(len(known), PRIOR_WEIGHT))))
    ns = scaled / size
    total = float((x @ ns).sum())
    return ns * (float(y.sum()) / total if total else 1.0), float(error)


def hold_out_error(x: FloatArray, y: FloatArray, fit: Fit) -> HoldOut:
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


def _with_knee(x: FloatArray, knee: int, column: int) -> FloatArray:
    return np.column_stack((x, np.maximum(x[:, column] - knee, 0)))
