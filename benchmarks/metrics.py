"""How long the summary of a large run takes: `python benchmarks/metrics.py [--requests N] [--tokens N]`.

A made-up run: Poisson arrivals, lognormal TTFT, TPOT around 20 ms, and a ledger.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from engines.base import RequestRow, RunRecord
from engines.scheduling.ledger import LEDGER
from reports.metrics import request_times
from reports.schema import Criteria, EngineInfo, PacingInfo, RunFile, WorkloadInfo
from reports.summary import completed_run

T = TypeVar("T")


def made_up(requests: int, tokens: int) -> RunRecord:
    """`requests` that are sent at 1,000 per second and get `tokens` events each."""
    rng = np.random.default_rng(0)
    sent = np.cumsum(rng.exponential(1e6, requests)).astype(np.int64)
    first = sent + rng.lognormal(np.log(200e6), 0.5, requests).astype(np.int64)
    gaps_us = rng.gamma(20.0, 1000.0, (requests, tokens)).astype(np.uint32)
    gaps_us[:, 0] = 0
    last = first + gaps_us.sum(axis=1, dtype=np.int64) * 1000
    rows = [
        RequestRow(
            i=i,
            scheduled=s,
            submitted=s,
            sent=s,
            first_byte=f,
            first=f,
            last=e,
            end=e,
            prompt_tokens=100,
            output_tokens=tokens,
            status="completed",
            finish_reason="length",
            error=None,
            token_source="usage",
            tenant="default",
            priority=0,
            preemptions=0,
            events_at=i * tokens,
            events=tokens,
        )
        for i, (s, f, e) in enumerate(zip(sent.tolist(), first.tolist(), last.tolist(), strict=True))
    ]
    steps = np.zeros(int(last.max() // 20_000_000) + 1, LEDGER)
    steps["start_ns"] = np.arange(steps.size) * 20_000_000
    steps["end_ns"] = steps["start_ns"] + 20_000_000
    return RunRecord(planned=requests, rows=rows, event_values=gaps_us.ravel(), event_unit="us", steps=steps)


def timed(name: str, work: Callable[[], T]) -> T:
    begin = time.perf_counter()
    result = work()
    print(f"{name:<28}{time.perf_counter() - begin:8.2f} s")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=20, help="token events per request")
    options = parser.parse_args()
    record = timed("make the run", lambda: made_up(options.requests, options.tokens))
    header = RunFile(
        engine=EngineInfo("openai"),
        workload=WorkloadInfo("made up", 0, "", options.requests, pacing=PacingInfo(rate_per_s=1000.0)),
        event_unit="us",
        criteria=Criteria(("p99_ttft_ms<=800", "p99_tpot_ms<=50")),
    )
    timed("latencies of all requests", lambda: request_times(record))
    run = timed("the whole run.json", lambda: completed_run(record, header))
    assert run.summary is not None
    print(
        f"{options.requests:,} requests, {len(record.event_values):,} events, ITL P99 {run.summary.latency.itl_ms.p99}"
    )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
