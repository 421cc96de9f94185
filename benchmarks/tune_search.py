"""How near the search of `cbbench tune` comes to the best of 69 settings, on the same plan and number of requests.

    python benchmarks/tune_search.py [--cases first|second|both] [--requests 500] [--most-runs 48]

Brute force runs max_num_seqs 4 to 256 x max_num_batched_tokens 128 to 8192 on the simulator (azure-conv, sharegpt and
azure-code under five bounds and loads each; first: an H100, second: an A100 with other bounds). The ratio is that of
requests/s within the SLA. Exit code 1 if a ratio is below 0.98, or if tune finds none where brute force does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cbbench.experiment.tune import TuneSearch, start_of
from cbbench.settings.build import build_settings
from reports.tuning.trials import Setting

SLOTS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
LEAST_RATIO = 0.98
# (workload, P99 TTFT in ms, P99 TPOT in ms, requests/s; None: 128 in flight)
FIRST = (
    ("azure-conv", 500, 30, 8), ("azure-conv", 500, 20, 12), ("azure-conv", 300, 15, 10), ("azure-conv", 1000, 25, 15),
    ("azure-conv", 2000, 40, None), ("sharegpt", 1000, 25, 6.05), ("sharegpt", 500, 15, 5), ("sharegpt", 300, 12, 4),
    ("sharegpt", 1000, 30, 9), ("sharegpt", 2000, 20, None), ("azure-code", 500, 40, 4), ("azure-code", 1000, 60, 6),
    ("azure-code", 1000, 25, 5), ("azure-code", 2000, 100, 8), ("azure-code", 5000, 60, None),
)  # fmt: skip
SECOND = (
    ("azure-conv", 1000, 40, 3), ("azure-conv", 800, 25, 4), ("azure-conv", 2000, 60, 6), ("azure-conv", 500, 50, 5),
    ("azure-conv", 5000, 50, None), ("sharegpt", 1000, 40, 2), ("sharegpt", 800, 20, 2), ("sharegpt", 2000, 30, 3),
    ("sharegpt", 500, 30, 1.5), ("sharegpt", 4000, 30, None), ("azure-code", 1000, 80, 1.5),
    ("azure-code", 2000, 50, 2), ("azure-code", 3000, 120, 3), ("azure-code", 1500, 40, 1.5),
    ("azure-code", 9000, 100, None),
)  # fmt: skip


def search(case: tuple[Any, ...], hardware: str, requests: int, folder: str) -> TuneSearch:
    workload, ttft_ms, tpot_ms, rate = case
    load = {"concurrency": 128} if rate is None else {"rate": rate}
    given = {
        "engine": "simulated", "hardware": hardware, "model": "llama-3.1-8b", "workload": workload,
        "num_requests": requests, "sla": [f"p99_ttft_ms<={ttft_ms}", f"p99_tpot_ms<={tpot_ms}"], **load,
    }  # fmt: skip
    return TuneSearch("explore", build_settings(given), Path(folder))


def brute_force(found: TuneSearch) -> tuple[float, str]:
    """(requests/s within the SLA, setting) of the best; 0 where none meets it."""
    settings = [Setting(slots, tokens) for slots in SLOTS for tokens in TOKENS if tokens >= slots]
    trials = [trial for one in settings if (trial := found.attempt(one, 1)) is not None]
    fit = [one for one in trials if one.meets]
    best = max(fit, key=lambda one: one.goodput_per_s, default=None)
    return (0.0, "none") if best is None else (best.goodput_per_s, best.setting.label())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", choices=("first", "second", "both"), default="both")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--most-runs", type=int, default=48)
    given = parser.parse_args()
    cases = [("h100", one) for one in FIRST] * (given.cases != "second")
    cases += [("a100", one) for one in SECOND] * (given.cases != "first")
    print("| GPU, workload, P99 TTFT, P99 TPOT, load | tune, req/s | brute force | ratio | runs | s | tune's setting |")
    print("|---|---:|---:|---:|---:|---:|---|", flush=True)
    ratios = []
    for hardware, case in cases:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            began = time.monotonic()
            found = search(case, hardware, given.requests, f"{folder}/tune")
            stage = found.run(start_of(found.settings), given.most_runs)
            took_s = time.monotonic() - began
            best, setting = brute_force(search(case, hardware, given.requests, f"{folder}/brute"))
        goodput = stage.best.goodput_per_s if stage.best.meets else 0.0
        ratios.append(goodput / best if best else 1.0)
        what = ", ".join(map(str, (hardware, *case[:3], "128 in flight" if case[3] is None else f"{case[3]}/s")))
        figures = f"{goodput:.3f} | {best:.3f} ({setting}) | {ratios[-1]:.3f} | {len(stage.trials)} | {took_s:.0f}"
        print(f"| {what} | {figures} | {stage.best.setting.label()} |", flush=True)
    enough = sum(one >= LEAST_RATIO for one in ratios)
    print(f"\n{enough} of {len(ratios)} at {LEAST_RATIO} or more, worst {min(ratios):.3f}")
    return int(min(ratios) < LEAST_RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
