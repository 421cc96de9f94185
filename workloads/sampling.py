"""How the random numbers of a plan are drawn: bit streams, and quantile grids to look a draw up in.

A quantile grid is a distribution as its values at 65,536 evenly spaced probabilities.

A draw is `grid[raw >> 48]` with `raw` straight from the bit generator, so no draw does any floating-point arithmetic.
The grids themselves are made with +, -, *, /, sqrt and rounding alone, which IEEE 754 defines to the last bit; the exp
and log of a C library differ between machines in their last bit, which now and then turns a 412 into a 413 and so
changes a plan's hash. Hence the `exp` below, and inverse CDFs by integrating the density instead of by special
functions. A grid ends at the quantile 1 - 1/131072: rarer values are not drawn.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from workloads.columns import FloatColumn, IntColumn

RawDraws = NDArray[np.uint64]

# Keys of the bit streams: one for each thing that is drawn. A tenant draws its own requests from a seed of its own.
LENGTHS, ARRIVALS, TENANTS, ROW_ORDER, SESSIONS = 1, 2, 3, 4, 4
PHASES = 5
TICKS, ROWS, PREFIXES = 6, 7, 8
THINK_TIMES = 9

CELLS = 65_536
_KNOTS = 131_072  # of the densities integrated here


def bit_stream(seed: int, key: int) -> np.random.PCG64:
    """An independent bit stream for each (seed, key), so that a change of the lengths leaves the arrivals
    as they are, and vice versa."""
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key,)))


def cell_of(raw: RawDraws, cells: int = CELLS) -> NDArray[np.int64]:
    """The cell, 0..cells-1, that each raw draw falls into; `cells` is a power of two: all are equally likely."""
    if cells <= 0 or cells & (cells - 1):
        raise ValueError(f"a grid has a power of two cells, not {cells}")
    return (raw >> np.uint64(65 - cells.bit_length())).astype(np.int64) if cells > 1 else np.zeros(len(raw), np.int64)


def midpoints(cells: int = CELLS) -> FloatColumn:
    """The probabilities a grid stands for: (i + 1/2) / cells."""
    return (np.arange(cells) + 0.5) / cells


def whole(values: FloatColumn) -> IntColumn:
    """Rounded to whole numbers, halves up."""
    return np.floor(values + 0.5).astype(np.int64)


def resample(ordered: IntColumn, cells: int = CELLS) -> IntColumn:
    """The quantile grid of a sorted sample: its values at the midpoints, by whole-number arithmetic."""
    return ordered[(2 * np.arange(cells, dtype=np.int64) + 1) * len(ordered) // (2 * cells)]


def exp(x: FloatColumn) -> FloatColumn:
    """e**x by x = k ln 2 + r with |r| <= 0.35 and a Taylor series for e**r; the same bits on every machine.

    x is cut off at ±700; the relative error stays below 1e-15.
    """
    x = np.clip(x, -700.0, 700.0)
    k = np.rint(x / 0.6931471805599453)
    # ln 2 in two parts: k times the first is exact (fdlibm's constants).
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    series = np.ones_like(r)
    for n in range(14, 0, -1):
        series = 1.0 + series * r / n
    return np.asarray(np.ldexp(series, k.astype(np.int32)), dtype=np.float64)


@cache
def normal() -> FloatColumn:
    """Quantiles of the standard normal distribution."""
    z = _spread(-9.0, 9.0)
    return _invert(z, exp(-0.5 * z * z))


@cache
def gamma(cv: float) -> FloatColumn:
    """Quantiles of the gamma distribution with mean 1 and coefficient of variation `cv`; cv 1 is the exponential one.

    With shape a = 1/cv², the logarithm y of such a variable has a density proportional to exp(a (y - e^y)), which is
    smooth for every shape, unlike the gamma density itself.
    """
    return exp(_log_gamma(1.0 / (cv * cv)))


@cache
def log_exponential() -> FloatColumn:
    """Quantiles of the logarithm of an exponential variable with mean 1."""
    return _log_gamma(1.0)


def _log_gamma(shape: float) -> FloatColumn:
    """Quantiles of the logarithm of a gamma variable with mean 1."""
    low = -34.0 / shape - math.sqrt(68.0 / shape)
    # e**high is beyond the largest value that counts: v < 2**exponent.
    exponent = math.frexp(1.0 + 12.0 / math.sqrt(shape) + 50.0 / shape)[1]
    y = _spread(low, 0.7 * exponent)
    return _invert(y, exp(shape * (y - exp(y) + 1.0)))


def _spread(low: float, high: float) -> FloatColumn:
    return low + np.arange(_KNOTS, dtype=np.float64) * ((high - low) / (_KNOTS - 1))


def _invert(x: FloatColumn, density: FloatColumn) -> FloatColumn:
    """Quantiles at the midpoints of the distribution with this density (of any scale) at evenly spaced x."""
    mass = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    cdf = mass / mass[-1]
    p = midpoints()
    right = np.searchsorted(cdf, p)
    left = right - 1
    part: FloatColumn = (p - cdf[left]) / (cdf[right] - cdf[left])
    return x[left] + part * (x[right] - x[left])
