"""One verdict from several runs of one setting."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from reports.checks import pooled_checks
from reports.pooled import pooled_result
from reports.schema import RunFile, SlaResult, Validity
from reports.summary import completed_run
from tests.reports.factory import header, ttft_record

SLA = ("p99_ttft_ms<=500", "mean_ttft_ms<=500", "max_ttft_ms<=500", "request_per_s>=1", "failure_rate<=0.02")


def run(seed: int, *, slow: int = 0, n: int = 200, sha256: str | None = None) -> RunFile:
    """n requests of 100 to 400 ms; so many, scattered, of 900."""
    waits_ms = np.random.default_rng(seed).uniform(100, 400, n)
    waits_ms[np.arange(slow) * n // max(slow, 1)] = 900
    made = completed_run(ttft_record(waits_ms.tolist()), header(sla=SLA))
    workload = msgspec.structs.replace(made.workload, sha256=sha256 or str(seed))
    return msgspec.structs.replace(made, workload=workload)


def pooled(*runs: RunFile) -> list[SlaResult]:
    found = [pooled_result(results) for results in zip(*(one.sla for one in runs), strict=True)]
    assert None not in found
    return [one for one in found if one is not None]


def test_what_one_run_cannot_prove_several_can() -> None:
    runs = [run(seed) for seed in range(3)]
    assert {one.sla[0].verdict for one in runs} == {"inconclusive"}
    assert [one.verdict for one in pooled(*runs)] == ["pass"] * 5
    assert pooled(*runs)[0].n == 600
    assert "none of 600 requests of 3 runs" in pooled(*runs)[0].reason


def test_a_pooled_fail_is_proven_as_well() -> None:
    runs = [run(seed, slow=6) for seed in range(4)]
    far, mean, most, *_ = pooled(*runs)
    assert (far.verdict, far.violations) == ("fail", 24)
    assert (mean.verdict, most.verdict) == ("pass", "fail")
    assert pooled(*(run(seed, slow=2) for seed in range(2)))[0].verdict == "inconclusive"


def test_the_most_dependent_run_counts_for_all() -> None:
    first, *others = (run(seed).sla[0] for seed in range(5))
    bursty = msgspec.structs.replace(first, n_eff=first.n / 50)
    one = pooled_result([bursty, *others])
    assert one is not None
    assert one.n_eff == pytest.approx(1000 / 50)
    assert one.verdict == "inconclusive"


def test_rare_bursts_are_counted_over_the_runs() -> None:
    results = [msgspec.structs.replace(run(seed).sla[0], bursts=(3, 5)) for seed in range(3)]
    few = pooled_result(results)
    enough = pooled_result([*results, msgspec.structs.replace(results[0], bursts=(20, 5))])
    assert few is not None
    assert enough is not None
    assert (few.verdict, enough.verdict) == ("inconclusive", "pass")
    assert "rare bursts" in few.reason


def test_what_does_not_add_up_is_not_pooled() -> None:
    one, two = run(1), run(2)
    assert pooled_checks([("a", one), ("b", two)]) is not None
    assert pooled_checks([("a", one), ("b", run(1))]) is None, "the same plan meets the same bursts"
    over = msgspec.structs.replace(two, validity=Validity("overloaded", ("why",)))
    assert pooled_checks([("a", one), ("b", over)]) is None
    old = msgspec.structs.replace(two.sla[0], violations=None)
    assert pooled_result([one.sla[0], old]) is None, "an older cbbench wrote it"
    (check, *_) = pooled_checks([("a", one), ("b", two)]) or []
    assert check.scenario == "a and 1 more of its setting"
