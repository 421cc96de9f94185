"""The SLA verdicts over whole runs of the batch simulator; benchmarks/verdicts.py prints the table of docs/gates.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulator import STEP_TIMES_8B
from benchmarks.verdicts import BOUNDS, LATENCIES, Engine, truth_ms, verdicts
from engines.simulated.step_time import save_step_times

RUNS = 150
# Three standard deviations above the claimed shares: 6.5 % false passes, 2 % false fails.
FALSE_PASSES, FALSE_FAILS = 0.065 + 0.06, 0.02 + 0.034


@pytest.mark.slow
@pytest.mark.parametrize(("load", "requests"), [(0.5, 2000), (0.85, 2000)])
def test_false_verdicts_are_rare_and_true_ones_are_not(tmp_path: Path, load: float, requests: int) -> None:
    pytest.importorskip("numba")
    path = tmp_path / "step-times.json"
    save_step_times(STEP_TIMES_8B, path)
    engine = Engine(path, 27_439, 16)
    rate = load * engine.capacity_per_s()
    runs = [truth_ms(engine, rate, run) for run in range(2)]
    truth = [float(np.nanquantile(np.concatenate(one), 0.99)) for one in zip(*runs, strict=True)]
    found = [verdicts(engine, rate, requests, seed, truth) for seed in range(RUNS)]
    for at, latency in enumerate(LATENCIES):
        columns = [Counter(one[at * len(BOUNDS) + bound] for one in found) for bound in range(len(BOUNDS))]
        counts = dict(zip(BOUNDS, columns, strict=True))
        assert counts["truth"]["pass"] / RUNS <= FALSE_PASSES, latency
        assert counts["10 % inside"]["fail"] / RUNS <= FALSE_FAILS, latency
        if latency == "tpot_ms":
            assert counts["1.67 x"]["pass"] / RUNS >= 0.8
            assert counts["0.6 x"]["fail"] / RUNS >= 0.9
