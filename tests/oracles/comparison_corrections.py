"""Which test a gate of several metrics should use: what each of five finds, and how often it is wrong.

    python -m tests.oracles.comparison_corrections        prints the second table of docs/gates.md (minutes)

Metrics of one run move together (the machine was slow, so all were), which Holm's procedure makes no use of.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from reports.paired import holm_levels
from reports.quantiles import FloatArray
from tests.oracles.comparison_statistics import ALPHA, METRICS, SLOWER, log_ratios

Rejected = NDArray[np.bool_]  # of each metric: shown to be worse
Test = Callable[[FloatArray], Rejected]  # of log-ratios [metric, pair]


def t_values(ratios: FloatArray) -> FloatArray:
    """Student's t along the last axis."""
    spread = ratios.std(axis=-1, ddof=1) / np.sqrt(ratios.shape[-1])
    return np.asarray(ratios.mean(axis=-1) / spread)


def one_sided(ratios: FloatArray) -> FloatArray:
    return np.asarray(stdtr(ratios.shape[-1] - 1, -t_values(ratios)))


def holm(p_values: FloatArray) -> Rejected:
    return p_values <= np.array(holm_levels(p_values.tolist(), ALPHA))


def hochberg(p_values: FloatArray) -> Rejected:
    """Steps up from the largest p: valid for independent or positively dependent metrics (Sarkar, 1998)."""
    ordered = np.sort(p_values)[::-1]
    accepted = ordered <= ALPHA / np.arange(1, ordered.size + 1)
    return p_values <= (ordered[np.argmax(accepted)] if accepted.any() else -1.0)


def max_t(ratios: FloatArray) -> Rejected:
    """Westfall and Young's step-down over all sign flips of whole pairs: exact where A and B are exchangeable,
    whatever the dependence."""
    flips = np.array(list(product((1, -1), repeat=ratios.shape[-1])))
    t = t_values(flips[:, None, :] * ratios)  # [flip, metric]; the first flip is none
    worse = np.zeros(ratios.shape[0], dtype=np.bool_)
    for at in np.argsort(-t[0]):
        if (t[:, ~worse].max(axis=1) >= t[0, at] - 1e-12).mean() > ALPHA:
            break
        worse[at] = True
    return worse


def two_sided(procedure: Callable[[FloatArray], Rejected]) -> Test:
    def test(ratios: FloatArray) -> Rejected:
        p = one_sided(ratios)
        return procedure(2 * np.minimum(p, 1 - p)) & (ratios.mean(axis=-1) > 0)

    return test


TESTS: dict[str, Test] = {
    "Holm, two-sided": two_sided(holm),
    "Holm, one-sided (the gate's)": lambda ratios: holm(one_sided(ratios)),
    "Hochberg, two-sided": two_sided(hochberg),
    "Hochberg, one-sided": lambda ratios: hochberg(one_sided(ratios)),
    "max-t over sign flips, one-sided": max_t,
}


def main() -> None:
    print("| test | load | pairs | A/A: some metric worse | +3 % of TPOT seen among 4 metrics |")
    print("| --- | --- | --- | --- | --- |")
    tpot = METRICS.index(("tpot_ms", "mean"))
    for load, pairs in product((0.5, 0.85), (6, 8)):
        same, slow = (list(log_ratios(load, pairs, 0.01, slower, 1000)) for slower in (1.0, SLOWER))
        for name, test in TESTS.items():
            alarms = np.mean([test(one).any() for one in same])
            seen = np.mean([test(one)[tpot] for one in slow])
            print(f"| {name} | {load} | {pairs} | {alarms:.1%} | {seen:.1%} |")


if __name__ == "__main__":
    main()
