"""The verdict on "at least a share p of all requests is within the bound", of one run or of several of one setting."""

from __future__ import annotations

import math
from typing import NamedTuple

from reports.quantiles import accepts, refuses, total_needed, total_to_refuse
from reports.schema import Verdict

FAR_TAIL = 0.95  # from this share on, rare bursts can decide the verdict


class Violations(NamedTuple):
    """How many of `total` requests (or gaps) were beyond a bound. n_eff: effective sample size of `total`."""

    total: int
    beyond: int
    n_eff: float


class ShareVerdict(NamedTuple):
    verdict: Verdict
    reason: str
    needed: int | None = None  # requests, where more could give a verdict


def share_verdict(
    counts: Violations, p: float, confidence: float, *, missed: bool, unit: str, bursts: str | None = None
) -> ShareVerdict:
    """By the binomial test on the effective sample and its mirror. missed: the measured value is beyond the bound;
    bursts: why rare bursts decide it, so that it cannot pass."""
    n, violations, n_eff = counts
    total = math.floor(n_eff + 1e-9)
    scaled = violations * n_eff / n  # rounded against each verdict
    passing, failing = min(total, math.ceil(scaled - 1e-9)), min(total, math.floor(scaled + 1e-9))
    said = f"{violations or 'none'} of {n} {unit} beyond it"
    if total < n:
        said += f"; they are correlated, and the effective sample size is {total}"
    if refuses(total, failing, p, confidence):
        return ShareVerdict("fail", said)
    if missed:
        to_fail = total_to_refuse(violations / n, p, confidence)
        said += "; the value is beyond the bound, but that may be chance"
        if to_fail is None:
            return ShareVerdict("inconclusive", said)
        needed = math.ceil(to_fail * n / n_eff - 1e-9)
        said += f": {confidence:.0%} confidence needs about {needed} {unit}"
        return ShareVerdict("inconclusive", said, needed)
    if accepts(total, passing, p, confidence):
        if bursts is not None:
            return ShareVerdict("inconclusive", f"{said}; {bursts}")
        return ShareVerdict("pass", said)
    needed = math.ceil(total_needed(passing, p, confidence) * n / n_eff - 1e-9)
    said += f"; {confidence:.0%} confidence needs at least {needed} {unit}"
    if bursts is not None:
        said += f", and more alone may not do: {bursts}"
    return ShareVerdict("inconclusive", said, needed)
