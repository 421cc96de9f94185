"""Calibrate: a StepTimeModel from the ledger of a run, or the reason why that run cannot give one.

The mixed steps of one run often look alike (a full batch beside a chunk), and then nobody can tell a row's cost from a
step's. So what mixed steps share with decode-only ones is drawn, weakly, to what those cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from engines.base import EngineError
from engines.ledger import StepArray
from engines.scheduling.plan import IntArray
from engines.simulated.step_time import DecodeTerms, GapTerms, HoldOut, MixedTerms, Origin, StepShape, StepTimeModel

MIN_STEPS = 10  # of either regime
MAX_MEAN_ERROR = 0.25  # on steps left out, in either regime; kernels measured alone give 0.01 to 0.06
NARROW = 2.0  # below this ratio of most to fewest rows, the cost of a row is a guess
ENOUGH = (  # of either: 64 prompts of 264 tokens on average are over a hundred mixed steps alone
    "`cbbench run --num-requests 64 --max-num-seqs 8 --max-num-batched-tokens 128 "
    "--workload 'prompt=uniform(16,512);output=uniform(32,128)'`"
)
MORE_STEPS = {  # what to do where a run has too few steps of a kind
    "decode": f"these are steps without prompts, and longer outputs give more of them: {ENOUGH}",
    "mixed": "these are steps with prompts in them, and more requests than seats, fewer tokens a step or a --rate give "
    f"more of them: {ENOUGH}; several runs can be fitted together, `cbbench calibrate RUN RUN`",
}
SHORT_STEP_NS = 5e6  # below this the host's own noise may be what a CPU's step takes
COLUMNS = ("decode_kv_positions", "prefill_kv_positions", "prefill_pairs")  # of the ledger, needed beside the counts

FloatArray = NDArray[np.float64]
Fit = Callable[[FloatArray, FloatArray], "Terms"]  # columns [steps, k] and ns [steps] -> terms

FOLDS = 5  # contiguous parts of the run, each predicted from the others: neighbours in time are too alike to be fair
KNEES_TOKENS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TOKENS = 3  # where tokens stand among the columns of mixed steps
PRIOR_WEIGHT = 0.2  # of one step, against a term being twice its prior or nothing
NO_PRIOR: FloatArray = np.zeros(0)


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """What the law explains and what it explains it by, one value per step of a run."""

    tokens: IntArray
    rows: IntArray
    kv: IntArray
    prefill_kv: IntArray
    prefill_pairs: IntArray
    swapped_blocks: IntArray
    duration_ns: IntArray
    gap_ns: IntArray  # -1 where the engine may have been idle before the step

    @property
    def decode_only(self) -> NDArray[np.bool_]:
        return np.equal(self.tokens, self.rows)

    def shapes(self) -> list[StepShape]:
        columns = (self.tokens, self.rows, self.kv, self.prefill_kv, self.prefill_pairs, self.swapped_blocks)
        return [StepShape(*shape) for shape in zip(*(column.tolist() for column in columns), strict=True)]


def measured_steps(steps: StepArray) -> MeasuredSteps:
    """From a ledger. EngineError where it has no steps, or was written before the columns that the law needs."""
    if not len(steps):
        raise EngineError(
            "this run recorded no engine steps: calibrate on one of the reference engine, `cbbench run --model MODEL`"
        )
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
        swapped_blocks=steps["swap_in_blocks"].astype(np.int64) + steps["swap_out_blocks"],
        # With overlap a step is submitted while the one before runs: its own time begins when that one has ended.
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
) -> StepTimeModel:
    """The law of a run's steps. EngineError, with the reason, where the run cannot give a good one.

    origin: what is known of the run; the fit's errors, ranges and warnings are added to it.
    """
    moves_kv = measured.swapped_blocks > 0
    decode, mixed = measured.decode_only & ~moves_kv, ~measured.decode_only & ~moves_kv
    for regime, steps in (("decode", decode), ("mixed", mixed)):
        if (found := int(steps.sum())) < MIN_STEPS:
            raise EngineError(
                f"cannot calibrate on {origin.source}: {found} {regime} steps, at least {MIN_STEPS} are needed; "
                f"{MORE_STEPS[regime]}"
            )
    duration_ns = measured.duration_ns.astype(np.float64)
    rows = _launched_rows(measured.rows, row_buckets)
    in_decode = (_columns(rows, measured.kv)[decode], duration_ns[decode])
    in_mixed = _columns(rows, measured.kv, measured.tokens, measured.prefill_pairs, measured.prefill_kv)[mixed]
    regimes: dict[str, tuple[FloatArray, FloatArray, Fit]] = {
        "decode": (*in_decode, fit_linear),
        "mixed": (in_mixed, duration_ns[mixed], partial(fit_with_knee, prior_ns=fit_linear(*in_decode).ns)),
        "gap": (*_gap_samples(measured), fit_linear),
    }
    hold_out = {regime: hold_out_error(*samples) for regime, samples in regimes.items()}
    for regime in ("decode", "mixed"):
        if (error := hold_out[regime].mean) > max_mean_error:
            raise EngineError(
                f"cannot calibrate on {origin.source}: {regime} steps left out of the fit are predicted {error:.0%} "
                f"off on average, at most {max_mean_error:.0%} is accepted; {_steadier(measured, origin)}"
            )
    fitted = {regime: fit(x, y) for regime, (x, y, fit) in regimes.items()}
    law = StepTimeModel(
        calibrated=True,
        decode=_decode_terms(fitted["decode"]),
        mixed=_mixed_terms(fitted["mixed"]),
        gap=_gap_terms(fitted["gap"]),
        overlapped=overlapped,
        row_buckets=row_buckets,
        origin=msgspec.structs.replace(
            origin,
            hold_out=hold_out,
            fitted_on={name: _range(getattr(measured, name)) for name in ("rows", "tokens", "kv")},
            warnings=tuple(_warnings(measured)),
        ),
    )
    return msgspec.structs.replace(law, swap_block_ns=_swap_block_ns(law, measured)) if moves_kv.any() else law


# -- columns in, terms out ---------------------------------------------------------------------------------------


def _columns(*columns: IntArray) -> FloatArray:
    return np.column_stack((np.ones(len(columns[0])), *columns)).astype(np.float64)


def _gap_samples(measured: MeasuredSteps) -> tuple[FloatArray, FloatArray]:
    known = measured.gap_ns >= 0
    gaps_ns = np.maximum(measured.gap_ns[known], 1).astype(np.float64)
    return _columns(measured.rows[known]), gaps_ns


def _swap_block_ns(law: StepTimeModel, measured: MeasuredSteps) -> float:
    """What steps that move KV blocks take beyond the law without moves, per block."""
    moving = [i for i, blocks in enumerate(measured.swapped_blocks.tolist()) if blocks]
    shapes = measured.shapes()
    beyond_ns = sum(int(measured.duration_ns[i]) - law.duration_ns(shapes[i]) for i in moving)
    return _rounded(max(0.0, beyond_ns / sum(shapes[i].swapped_blocks for i in moving)))


def _steadier(measured: MeasuredSteps, origin: Origin) -> str:
    """What to do about steps that no law predicts, in words."""
    median_ns = float(np.median(measured.duration_ns[measured.decode_only]))
    advice = ["repeat the run while nothing else runs on the machine, with more requests (--num-requests 256)"]
    if median_ns < SHORT_STEP_NS:
        of = f" of {origin.model}" if origin.model else ""
        advice.append(
            f"decode steps{of} take {median_ns / 1e6:.2g} ms in the median, too short to time well, so take a "
            "larger --model"
        )
    return "; ".join([*advice, "--max-error accepts a worse fit"])


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
    step, row, kv, token, pair, prefill_kv, beyond = (_rounded(ns) for ns in fitted.ns.tolist())
    assert fitted.knee_tokens is not None
    return MixedTerms(
        step=step, token=token, beyond_knee=beyond, knee_tokens=fitted.knee_tokens,
        row=row, kv=kv, pair=pair, prefill_kv=prefill_kv,
    )  # fmt: skip


def _gap_terms(fitted: Terms) -> GapTerms:
    step, row = (_rounded(ns) for ns in fitted.ns.tolist())
    return GapTerms(step=step, row=row)


# -- fits ----


@dataclass(frozen=True, eq=False)
class Terms:
    """Coefficients in ns of [1, rows, ...]; with a knee, of [1, rows, kv, tokens, ..., tokens beyond the knee]."""

    ns: FloatArray
    knee_tokens: int | None = None

    def predict(self, x: FloatArray) -> FloatArray:
        out: FloatArray = (x if self.knee_tokens is None else _with_knee(x, self.knee_tokens)) @ self.ns
        return out


def fit_linear(x: FloatArray, y: FloatArray) -> Terms:
    return Terms(_non_negative(x, y)[0])


def fit_with_knee(x: FloatArray, y: FloatArray, prior_ns: FloatArray) -> Terms:
    """The knee that fits best, among a few, inside the range of tokens seen. prior_ns: for the first columns."""
    tokens = x[:, TOKENS]
    inside = [knee for knee in KNEES_TOKENS if tokens.min() < knee < tokens.max()] or [int(tokens.max())]
    fits = [(_non_negative(_with_knee(x, knee), y, prior_ns), knee) for knee in inside]
    (ns, _), knee = min(fits, key=lambda fit: fit[0][1])
    return Terms(ns, knee)


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


def _with_knee(x: FloatArray, knee_tokens: int) -> FloatArray:
    return np.column_stack((x, np.maximum(x[:, TOKENS] - knee_tokens, 0)))
