"""How many requests prove a percentile: the binomial early-stopping test of MLPerf's loadgen (early_stopping.cc).

With t violations, "at least a share p of all requests is within the bound" takes

    the smallest h with I_p(h, t + 1) <= 1 - confidence

requests within the bound, where I is the regularised incomplete beta function.
"""

from __future__ import annotations

from scipy.special import betainc


def accepts(total: int, violations: int, p: float, confidence: float) -> bool:
    """Do `total` independent requests, `violations` of them beyond the bound, prove that a share p is within it?"""
    within = total - violations
    return within > 0 and float(betainc(within, violations + 1, p)) <= 1 - confidence


def total_needed(violations: int, p: float, confidence: float) -> int:
    """The smallest number of independent requests that proves it with this many violations (P99 at 0.95: 299, 473)."""
    high = 1
    while not accepts(high, violations, p, confidence):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepts(middle, violations, p, confidence) else (middle, high)
    return high
