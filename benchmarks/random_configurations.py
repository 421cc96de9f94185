"""The scheduler under random settings, requests and aborts, with everything checked after every step.

    python benchmarks/random_configurations.py [--count 100000] [--seconds 900] [--first 0]

Each configuration is a number: it draws orders, admission, KV pressure, victims, prefix cache, quotas, buckets,
skip-ahead, limits on partial prefills, static batches, overlap and aborts, or two instances of such settings. Checked
after each step: slots, block tables, reference counts, reservations, quotas, the prefix index, single writers, and that
every row finds its own prefix in its blocks; at the end, that each request ended once and the ledger adds up. A failure
says its number.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engines.scheduling.request import Request
from engines.scheduling.resource_gate import Quota
from tests.engines.scheduling.driving import Driven
from tests.properties.test_disaggregated import BLOCK_SIZE, Played

TENANTS = ("a", "b")
ORDERS = ("fcfs", "shortest-prompt", "shortest-known", "shortest-predicted", "priority", "priority", "fair")
ADMISSIONS = ("full-prompt", "full-reserve", "optimistic", "prompt-fits", "peak")


def settings(rng: np.random.Generator, *, alone: bool) -> dict[str, Any]:
    """Settings of one scheduler. alone: it is not one of two."""

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    chosen: dict[str, Any] = {
        "kv_blocks": int(rng.integers(2, 13)),
        "block_size": int(rng.integers(1, 6)) if alone else BLOCK_SIZE,
        "max_num_seqs": int(rng.integers(1, 6)),
        "max_num_batched_tokens": int(rng.integers(6, 21)),
        "max_model_len": 40,
        "order": pick(*ORDERS),
        "ageing": pick(None, None, 0.0, 100.0),
        "skip_ahead": pick(0, 2),
        "prompt_buckets": pick((), (), (4,), (3, 10)),
        "watermark": pick(0.0, 0.01, 0.3),
        "prefix_caching": pick(False, True),
    }
    if chosen["order"] == "priority":
        chosen["preempt_for_priority"] = pick(False, True, True)
    if alone and pick(False, False, True):
        chosen["quotas"] = {
            tenant: Quota(
                max_num_seqs=pick(None, 1, 2), kv_blocks=pick(None, 3, 8), tokens_per_s=pick(None, None, 20_000.0)
            )
            for tenant in TENANTS[: pick(1, 2)]
        }
    if alone and pick(False, False, False, False, True):
        static = pick("padded", "compact-held", "compact-freed")
        return chosen | {"mode": "static", "static": static, "static_patience_s": pick(0.0, 0.004)}
    chosen |= {
        "chunked_prefill": pick(True, True, False),
        "prefill": pick("decode-first", "prefill-first", "in-order"),
        "admission": pick(*ADMISSIONS),
        "on_kv_pressure": pick("recompute", "swap", "reject") if alone else pick("recompute", "reject"),
        "victim": pick("newest", "last", "least-computed", "lowest-priority"),
    }
    if chosen["chunked_prefill"]:
        chosen["max_prompt_chunk"] = pick(None, None, 1, 4)
        chosen["max_num_partial_prefills"] = pick(None, None, None, 1, 2)
        if chosen["max_prompt_chunk"]:
            chosen["max_long_partial_prefills"] = pick(None, None, 1)
    if chosen["on_kv_pressure"] == "swap":
        chosen["swap_blocks"] = int(rng.integers(1, 9))
    return chosen


Wanted = list[tuple[int, int, int, str, int]]  # prompt, output, submitted at, tenant, priority


def requests(rng: np.random.Generator) -> Wanted:
    return [
        (*rng.integers(1, (17, 9)).tolist(), int(rng.integers(0, 8)), TENANTS[rng.integers(2)], int(rng.integers(3)))
        for _ in range(int(rng.integers(2, 8)))
    ]


def aborts(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """(when, index)"""
    return [(int(rng.integers(0, 16)), int(rng.integers(count))) for _ in range(int(rng.integers(0, 3)))]


def run_alone(rng: np.random.Generator) -> tuple[int, int]:
    """(steps, preemptions) of one scheduler."""
    chosen, wanted = settings(rng, alone=True), requests(rng)
    aborting = aborts(rng, len(wanted))
    eos = frozenset({3, 11}) if rng.random() < 0.3 else frozenset[int]()
    d = Driven.of(depth=int(rng.integers(2)), eos_ids=eos, **chosen)
    for at in range(17):
        for index, (prompt, output, when, tenant, priority) in enumerate(wanted):
            if when == at:
                ids = np.full(prompt, index % 2, np.int32)
                d.submit(
                    Request(index, prompt, output, prompt=ids, tenant=tenant, priority=priority, ignore_eos=not eos)
                )
        for _, index in (one for one in aborting if one[0] == at):
            d.abort(index)
        d.step()
    d.drain()
    assert sorted(one.index for one in d.finished) == list(range(len(wanted))), "each ends exactly once"
    return len(d.ledger), int(sum(row["preempted"] for row in d.ledger))


def run_two(rng: np.random.Generator) -> tuple[int, int]:
    """The same of a prefill and a decode instance."""
    prefill, decode = settings(rng, alone=False), settings(rng, alone=False)
    wanted = requests(rng)
    prefill_ms, decode_ms = rng.integers(1, 9, 3).tolist(), rng.integers(1, 9, 3).tolist()
    aborting, block_ms, depth = aborts(rng, len(wanted)), int(rng.integers(0, 6)), int(rng.integers(2))
    eos = bool(rng.random() < 0.3)
    run = Played(prefill, decode, wanted, aborting, prefill_ms, decode_ms, block_ms, depth, eos)
    assert sorted(run.source.ended) == list(range(len(wanted))), "each ends exactly once"
    for scheduler in run.schedulers:
        assert scheduler.idle
        assert scheduler.kv.available == scheduler.kv.num_blocks
    return len(run.record.steps), int(run.record.steps["preempted"].sum())


def run_one(number: int) -> tuple[str, int, int]:
    """(what it was, steps, preemptions) of configuration `number`. Raises AssertionError where something is wrong."""
    rng = np.random.default_rng(number)
    if number % 5 == 4:
        return ("two instances", *run_two(rng))
    return ("one instance", *run_alone(rng))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="configurations")
    parser.add_argument("--seconds", type=float, default=900.0, help="stop after so long")
    parser.add_argument("--first", type=int, default=0, help="number of the first configuration")
    given = parser.parse_args()
    began, totals, failed, done = time.monotonic(), Counter[str](), 0, 0
    for number in range(given.first, given.first + given.count):
        if time.monotonic() - began > given.seconds:
            break
        try:
            kind, steps, preemptions = run_one(number)
        except Exception as error:  # any of them is a bug, and its number is what is wanted
            failed += 1
            print(f"configuration {number}: {type(error).__name__}: {error}", flush=True)
            continue
        finally:
            done += 1
        totals.update({kind: 1, "steps": steps, "preemptions": preemptions})
    print(
        f"{done:,} configurations in {time.monotonic() - began:,.0f} s: {totals['one instance']:,} of one instance, "
        f"{totals['two instances']:,} of two; {totals['steps']:,} steps, {totals['preemptions']:,} preemptions; "
        f"{failed} failed"
    )
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
