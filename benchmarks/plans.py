"""How long a plan of a million requests takes, and how much memory, for each arrival process and preset.

    python benchmarks/plans.py [--requests N]

Exit code 1 above 2 s or 200 MB. Each plan is built in a process of its own; imports are not counted.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

MOST_S, MOST_MB = 2.0, 200.0
CASES = (
    ("azure-conv", "poisson"),
    ("azure-conv-v2", "gamma:3"),
    ("azure-conv", "trace"),
    ("deepseek-r1", "mmpp:5:0.1:200"),
    ("claude-code", "onoff:0.3:200"),
    ("prompt=lognormal(median=128,sigma=0.8);output=weibull(scale=200,shape=0.8)", "constant"),
)


def measure(spec: str, arrival: str, requests: int) -> None:
    from workloads.spec import build_plan

    build_plan(spec, num_requests=2, seed=0, arrival=arrival, max_model_len=None)  # imports, and the preset's file
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    build_plan(spec, num_requests=requests, seed=1, arrival=arrival, max_model_len=None)
    took_s = time.perf_counter() - started
    print(took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--case", nargs=2, metavar=("SPEC", "ARRIVAL"), help="one plan in this process")
    options = parser.parse_args()
    if options.case is not None:
        measure(*options.case, options.requests)
        return 0
    good = True
    for case in CASES:
        command = [sys.executable, __file__, "--requests", str(options.requests), "--case", *case]
        took_s, grown_mb = map(
            float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        )
        good &= took_s <= MOST_S and grown_mb <= MOST_MB
        print(f"{took_s:6.2f} s {grown_mb:6.0f} MB  {case[0]}, {case[1]}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
