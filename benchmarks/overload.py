"""How often an overload is seen, and one is seen where there is none, over whole runs of the batch simulator.

    python benchmarks/overload.py STEP_TIMES [--runs 200] [--first-seed 0] [--requests 64,200,400,1000]
                                  [--loads .5,.7,.85,.95,1.05,1.2,1.5]

azure-conv with Poisson arrivals from an empty engine; load is the rate over the burst capacity, at which as many
requests complete per second if all arrive at once. A row is an engine and a load, a column a number of requests; each
has the share of runs that are called overloaded, in percent. The last engine has so few KV blocks that these limit it.
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import Pool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.verdicts import CAPACITY_REQUESTS, TRUTH_SEED, Engine, list_of
from reports.validity import validity

ENGINES = ((16, 27_439), (64, 27_439), (64, 1_500))  # slots, KV blocks
CAPACITY_OF = min(CAPACITY_REQUESTS, 3000)


def overloaded(engine: Engine, rate_per_s: float, requests: int, seed: int) -> bool:
    times, _ = engine.times(rate_per_s, requests, seed)
    return validity(times, max_failure_rate=1.0, open_loop=True).verdict == "overloaded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step_times", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--most", type=int, default=200_000, help="requests of a cell; it has fewer runs beyond")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--requests", type=list_of(int), default=[64, 200, 400, 1000])
    parser.add_argument("--loads", type=list_of(float), default=[0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5])
    args = parser.parse_args()
    print(f"| slots | KV blocks | load | {' | '.join(f'{one:,} requests' for one in args.requests)} |")
    print("| --- " * (3 + len(args.requests)) + "|")
    with Pool(args.processes) as pool:
        for slots, kv_blocks in ENGINES:
            engine = Engine(args.step_times, kv_blocks, slots)
            times, _ = engine.times(None, CAPACITY_OF, TRUTH_SEED)
            capacity = CAPACITY_OF / (float(times.end_ns.max()) / 1e9)
            for load in args.loads:
                shares = []
                for requests in args.requests:
                    runs = max(1, min(args.runs, args.most // requests))
                    seeds = range(args.first_seed, args.first_seed + runs)
                    found = pool.starmap(overloaded, [(engine, load * capacity, requests, one) for one in seeds])
                    shares.append(f"{100 * sum(found) / runs:.0f}")
                print(f"| {slots} | {kv_blocks:,} | {load:g} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
