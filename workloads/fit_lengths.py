"""Length distributions fitted to token counts by likelihood: a lognormal mixture of up to three parts, gamma, Weibull.

The best is the one with the least AIC = 2 k - 2 ln L, with k parameters and likelihood L (Akaike 1974). Densities are
those of the continuous distribution at the counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workloads.columns import FloatColumn, IntColumn

_LEAST_SIGMA = 0.02  # so that no part of a mixture collapses onto one value
_ROUNDS = 300
_LEAST_WEIGHT = 1e-3


@dataclass(frozen=True)
class Fitted:
    """text: as length_distributions.py reads it"""

    family: str
    text: str
    aic: float


def fit_lengths(tokens: IntColumn) -> list[Fitted]:
    """Every family that can be fitted to int64[n] token counts from 1, the best first."""
    values, counts = np.unique(tokens, return_counts=True)
    if len(values) == 1:
        return [Fitted("fixed", f"fixed({values[0]})", 0.0)]
    x, weights = values.astype(np.float64), counts.astype(np.float64)
    within = f"min={values[0]},max={values[-1]}"
    fits = [_mixture(x, weights, parts, within) for parts in (1, 2, 3) if len(values) > 3 * parts or parts == 1]
    fits += [fit for fit in (_gamma(x, weights, within), _weibull(x, weights, within)) if fit is not None]
    return sorted(fits, key=lambda fit: fit.aic)


def _mixture(x: FloatColumn, weights: FloatColumn, parts: int, within: str) -> Fitted:
    """Expectation-maximisation on the logarithms, which are a mixture of normal distributions."""
    logs, total = np.log(x), float(weights.sum())
    upto = np.cumsum(weights) / total
    centres = np.interp((np.arange(parts) + 0.5) / parts, upto, logs)
    sigmas = np.full(parts, max(float(np.sqrt(np.cov(logs, aweights=weights))) / parts, _LEAST_SIGMA))
    shares = np.full(parts, 1 / parts)
    likelihood = -math.inf
    for _ in range(_ROUNDS):
        deviations = (logs[:, None] - centres) / sigmas
        densities = shares * np.exp(-0.5 * deviations**2) / (sigmas * math.sqrt(2 * math.pi))
        at = np.maximum(densities.sum(axis=1), 1e-300)
        new = float((weights * (np.log(at) - logs)).sum())
        if new - likelihood < 1e-8 * total:
            break
        likelihood = new
        belongs = densities / at[:, None] * weights[:, None]
        sums = np.maximum(belongs.sum(axis=0), 1e-300)
        shares = np.maximum(sums / total, _LEAST_WEIGHT)
        shares /= shares.sum()
        centres = (belongs * logs[:, None]).sum(axis=0) / sums
        sigmas = np.maximum(np.sqrt((belongs * (logs[:, None] - centres) ** 2).sum(axis=0) / sums), _LEAST_SIGMA)
    terms = [
        f"{share:.4f}*lognormal(median={math.exp(centre):.6g},sigma={min(sigma, 5.0):.4f},{within})"
        for share, centre, sigma in zip(shares, centres, sigmas, strict=True)
    ]
    text = "+".join(terms) if parts > 1 else terms[0].partition("*")[2]
    return Fitted(f"lognormal mixture of {parts}" if parts > 1 else "lognormal", text, 2 * (3 * parts - 1 - likelihood))


def _gamma(x: FloatColumn, weights: FloatColumn, within: str) -> Fitted | None:
    """Maximum likelihood: ln k - digamma(k) = ln mean - mean of ln x, by Newton's method (Minka 2002)."""
    from scipy.special import digamma, gammaln, polygamma  # slow to import

    total, mean = float(weights.sum()), float(np.average(x, weights=weights))
    mean_log = float(np.average(np.log(x), weights=weights))
    gap = math.log(mean) - mean_log
    shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(20):
        step = (math.log(shape) - float(digamma(shape)) - gap) / (1 / shape - float(polygamma(1, shape)))
        shape = max(shape - step, shape / 10)
    cv = 1 / math.sqrt(shape)
    if not 0.01 <= cv <= 10:
        return None
    scale = mean / shape
    log_likelihood = total * ((shape - 1) * mean_log - mean / scale - shape * math.log(scale) - float(gammaln(shape)))
    return Fitted("gamma", f"gamma(mean={mean:.6g},cv={cv:.4f},{within})", 2 * (2 - log_likelihood))


def _weibull(x: FloatColumn, weights: FloatColumn, within: str) -> Fitted | None:
    """Maximum likelihood: sum x^k ln x / sum x^k - 1 / k = mean of ln x, which rises with k, by bisection."""
    logs, total = np.log(x), float(weights.sum())
    mean_log = float(np.average(logs, weights=weights))
    spread = logs - logs.max()  # so that x^k does not overflow

    def excess(shape: float) -> float:
        powers = weights * np.exp(shape * spread)
        return float((powers * logs).sum() / powers.sum()) - 1 / shape - mean_log

    low, high = 0.05, 100.0
    if excess(low) > 0 or excess(high) < 0:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    shape = (low + high) / 2
    log_scale = float(logs.max() + np.log(np.average(np.exp(shape * spread), weights=weights)) / shape)
    log_likelihood = total * (math.log(shape) - shape * log_scale + (shape - 1) * mean_log - 1)
    return Fitted(
        "weibull", f"weibull(scale={math.exp(log_scale):.6g},shape={shape:.4f},{within})", 2 * (2 - log_likelihood)
    )
