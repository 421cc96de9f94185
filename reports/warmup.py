"""How many requests at the start of a run differ from the rest: MSER-5, as a check.

MSER cuts where the standard error of the remaining mean is smallest: d* minimises

    sum over i >= d of (Y_i - mean of those)^2 / (n - d)^2,    0 <= d <= n / 2

(White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997); MSER-5
applies it to means of 5 consecutive values (Spratt 1998). Hoad, Robinson and Davies (WSC 2008) judged it fit for
automatic use. Here it is a check and not a cut: nothing is left out.
"""

from __future__ import annotations

import numpy as np

from reports.metrics import RequestTimes
from reports.quantiles import FloatArray
from reports.summary_schema import Warmup

BATCH = 5
# Of 500 lognormal (sigma 1) values without a warm-up, 4 % are called unsettled; of 500 exponential ones, none. Of 200
# it
# would be 1 in 8.
LEAST_VALUES = 500
NOTED = 0.1  # of the requests: a smaller share hardly changes a percentile, and may be chance
LATEST = 1 / 3  # of the series: with a later cut the warm-up may not have ended


def mser5(values: FloatArray) -> int:
    """How many values to cut from the start of a series in order of time; at most half of it, 0 for fewer than 10."""
    n = values.shape[0] // BATCH
    if n < 2:
        return 0
    batches = values[values.shape[0] - n * BATCH :].reshape(n, BATCH).mean(axis=1)
    batches = batches - batches.mean()  # else the sums of squares would lose digits
    left = np.arange(n, n - n // 2 - 1, -1)  # n - d
    sums, squares = (np.cumsum(series[::-1])[::-1][: left.shape[0]] for series in (batches, batches * batches))
    errors = (squares - sums * sums / left) / (left * left)
    cut = int(np.argmin(errors))
    return values.shape[0] - (n - cut) * BATCH if cut else 0


def warmup(times: RequestTimes) -> Warmup | None:
    """MSER-5 of E2EL from the scheduled time, in order of arrival. None under 500 completed requests."""
    done = np.flatnonzero(~np.isnan(times.e2el_sched_ms))
    if done.shape[0] < LEAST_VALUES:
        return None
    done = done[np.argsort(times.scheduled_ns[done], kind="stable")]
    cut = mser5(times.e2el_sched_ms[done])
    share = cut / done.shape[0]
    return Warmup(requests=cut, until_s=int(times.scheduled_ns[done[cut]]) / 1e9, share=share, settled=share < LATEST)


def warmup_note(found: Warmup) -> str | None:
    """A note where the warm-up is long enough to change percentiles; else None."""
    if not found.settled:
        return (
            f"latency did not settle: MSER-5 would cut the first {found.requests:,} requests ({found.share:.0%}), and "
            "the warm-up may not end there; run longer, or at a lower rate"
        )
    if found.share > NOTED:
        return (
            f"the first {found.requests:,} requests ({found.share:.0%}, until {found.until_s:.4g} s) differ from the "
            "rest (MSER-5 of E2EL); warm up before the run, or run longer"
        )
    return None
