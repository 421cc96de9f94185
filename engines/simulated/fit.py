"""Fits of step times: non-negative terms with the least *relative* error, and errors on steps left out.

An absolute fit would be right for large batches only. A relative one leans to the low side of noisy steps, so it is
scaled until the summed time of the fitted steps is right: that is what throughput follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from engines.simulated.law import HoldOut

FloatArray = NDArray[np.float64]
Fit = Callable[[FloatArray, FloatArray], "Terms"]  # columns [steps, k] and ns [steps] -> terms

FOLDS = 5  # contiguous parts of the run, each predicted from the others: neighbours in time are too alike to be fair
KNEES_TOKENS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TOKENS = 3  # where tokens stand among the columns of mixed steps
PRIOR_WEIGHT = 0.2  # of one step, against a term being twice its prior or nothing
NO_PRIOR: FloatArray = np.zeros(0)


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
