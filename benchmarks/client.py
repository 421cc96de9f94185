"""How accurate the load client's numbers are and what they cost: it loads truth_server.py, which records when it sent.

    python benchmarks/client.py [--case NAME]... [--quick] [--realtime] [--read-stamps] [--no-scrape] [--json FILE]

The server runs on the first core this process may use, the client on the last. With other work on the machine, both
need --realtime (root) to be left alone on theirs; without it the numbers say how the client does on a busy machine.
"error" is reported - true: of the percentile, as a report shows it, and of single requests, which cannot cancel out.
Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from truth_server import KEY_IDS, Truth

from engines.base import ClientReport, RunRecord, SilentObserver
from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from workloads.arrivals import unit_arrivals
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.prompts import Prompts

Floats = NDArray[np.float64]
PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Case:
    requests: int
    output_tokens: int
    ttft_ms: float
    tpot_ms: float
    concurrency: int | None = None
    rate_per_s: float | None = None
    stall_at_s: float = 0
    stall_s: float = 0
    targets: tuple[tuple[str, float, float], ...] = ()  # (figure, least, most)


def closed(streams: int, tpot_ms: float, ttft_ms_error: float, **more: float) -> Case:
    targets = [("ttft_p99_error_ms", -ttft_ms_error, ttft_ms_error)]
    targets += [(name, -most, most) for name, most in more.items()]
    return Case(5 * streams, 128, 50, tpot_ms, concurrency=streams, targets=tuple(targets))


CASES = {
    "0.75k": closed(8, 10, 0.3),
    "3k": closed(64, 20, 0.5),
    "12k": closed(256, 20, 1, itl_p99_error_ms=0.2, cpu_s_per_100k=3),
    "25k": closed(512, 20, 2, itl_p99_error_ms=0.2, cpu_s_per_100k=3, peak_rss_mib=88),
    "poisson": Case(
        2000, 16, 20, 5, None, 200, targets=(("achieved_over_asked", 0.998, 1.002), ("send_lag_p99_ms", 0, 1))
    ),
    "stall": Case(2000, 16, 20, 5, 32, 200, stall_at_s=4, stall_s=1, targets=(("reported_over_felt", 0.95, 1.05),)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests")
    parser.add_argument("--realtime", action="store_true", help="run both ahead of everything else on their cores")
    parser.add_argument("--read-stamps", action="store_true", help="do without the kernel's")
    parser.add_argument("--no-scrape", action="store_true", help="do not read the server's metrics meanwhile")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    missed = []
    for name in args.case or CASES:
        case = CASES[name]
        if args.quick:
            case = Case(**(asdict(case) | {"requests": case.requests // 5, "stall_at_s": case.stall_at_s / 5}))
        settings = {"kernel_stamps": not args.read_stamps, "scrape": not args.no_scrape}
        figures[name] = measure(case, settings, realtime=args.realtime)
        print(f"{name}: " + "  ".join(f"{key}={_short(value)}" for key, value in figures[name].items()), flush=True)
        for key, least, most in case.targets:
            if args.read_stamps and key == "itl_p99_error_ms":
                least, most = -5, 5
            if not least <= figures[name][key] <= most:
                missed.append(f"{name}: {key} {_short(figures[name][key])} is not within {least:g} and {most:g}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(missed) or "every target met")
    sys.exit(bool(missed))


def measure(case: Case, settings: dict[str, bool], *, realtime: bool) -> dict[str, Any]:
    """settings: of the client."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with truth_server(case, realtime=realtime) as url:
        process = context.Process(target=load, args=(theirs, url, case, realtime, settings))
        process.start()
        theirs.close()
        figures: dict[str, Any] = ours.recv()
        process.join()
    return figures


def load(pipe: Any, url: str, case: Case, realtime: bool, settings: dict[str, bool]) -> None:
    """In a process of its own, for its CPU time and memory."""
    alone(max(os.sched_getaffinity(0)), realtime)
    plan = RequestPlan.of(
        np.full(case.requests, PROMPT_TOKENS),
        np.full(case.requests, case.output_tokens),
        arrivals_ugap=unit_arrivals("poisson", case.requests, seed=0),
    )
    # A stall counts from the first request, which must not be one of a warm-up.
    engine = RemoteEngine(RemoteConfig(url=url, warmup_requests=0, **settings))  # type: ignore[arg-type]
    pacing = Pacing(plan.arrivals_ugap, rate_per_s=case.rate_per_s, concurrency=case.concurrency)
    record = engine.run(plan, pacing, SilentObserver())
    report = engine.client
    assert report is not None
    truths = msgspec.msgpack.decode(urllib.request.urlopen(f"{url}/truth").read(), type=list[Truth])
    low, high = engine.config.token_ids
    prompts = Prompts(plan, np.arange(low, high, dtype=np.int32), engine.config.prompt_seed)
    figures = errors(record, by_index(truths, prompts, len(plan)))
    figures |= {
        "cpu_s_per_100k": report.cpu_s / report.token_events * 1e5,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "coalesced_share": report.coalesced_event_share,
        "send_lag_p99_ms": report.send_lag_p99_ms,
        "read_lag_p99_ms": report.read_lag_p99_ms,
        "loop_lag_p99_ms": report.loop_lag_p99_ms,
        "achieved_over_asked": report.achieved_over_asked_rate,
        "core_wait_s": report.core_wait_s,
        "scrape": _scraped(report),
        "stamps": report.stamps,
    }
    pipe.send(figures)


def _scraped(report: ClientReport) -> str:
    """How many pages, and whether the server's token count matches the client's."""
    said = report.scrape
    if said is None:
        return "no"
    return f"{said.samples} pages, {said.missed} missed, {said.output_tokens} of {said.output_tokens_received} tokens"


def by_index(truths: list[Truth], prompts: Prompts, count: int) -> list[Truth]:
    known = {truth.key: truth for truth in truths}
    return [known[tuple(prompts.ids(index)[:KEY_IDS].tolist())] for index in range(count)]


def errors(record: RunRecord, truths: list[Truth]) -> dict[str, Any]:
    """Reported - true, where the truth about a request starts when it reached the server."""
    rows, events_ns = record.rows, record.event_times_ns()
    sent = [np.frombuffer(truths[row.i].sent_ns, np.int64) for row in rows]
    reported_ttft = (record.column_ns("first") - record.column_ns("sent")) / 1e6
    true_ttft = np.array([at[0] - truths[row.i].came_ns for row, at in zip(rows, sent, strict=True)]) / 1e6
    reported_gaps, true_gaps = [], []
    for row, at in zip(rows, sent, strict=True):
        reported_gaps.append(np.diff(events_ns[row.events_at : row.events_at + row.events]) / 1e6)
        true_gaps.append(np.diff(at) / 1e6)
    itl, true_itl = np.concatenate(reported_gaps), np.concatenate(true_gaps)
    # Time zero on the clock that both share: the schedule begins a little before the first request arrives.
    start_ns = min(truths[row.i].came_ns - (row.sent or 0) for row in rows)
    felt = np.array([at[0] - start_ns - row.scheduled for row, at in zip(rows, sent, strict=True)]) / 1e6
    reported_felt = (record.column_ns("first") - record.column_ns("scheduled")) / 1e6
    span_s = (max(at[-1] for at in sent) - min(at[0] for at in sent)) / 1e9
    return {
        "completed": sum(row.status == "completed" for row in rows),
        "chunks_per_s": sum(len(at) for at in sent) / span_s,
        "ttft_p99_error_ms": _p99(reported_ttft) - _p99(true_ttft),
        "ttft_error_p50_ms": float(np.median(reported_ttft - true_ttft)),
        "ttft_error_p99_ms": _p99(np.abs(reported_ttft - true_ttft)),
        "itl_p99_error_ms": _p99(itl) - _p99(true_itl),
        "itl_error_p99_ms": _p99(np.abs(itl - true_itl)),
        "tpot_error_ms": _mean([abs(a.mean() - b.mean()) for a, b in zip(reported_gaps, true_gaps, strict=True)]),
        "reported_over_felt": _p99(reported_felt) / _p99(felt),
        "felt_p99_ms": _p99(felt),
    }


def alone(core: int, realtime: bool) -> None:
    os.sched_setaffinity(0, {core})
    if realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))


@contextmanager
def truth_server(case: Case, *, realtime: bool) -> Iterator[str]:
    script = Path(__file__).with_name("truth_server.py")
    settings = ("ttft_ms", "tpot_ms", "stall_at_s", "stall_s")
    arguments = [f"--{name.replace('_', '-')}={getattr(case, name)}" for name in settings]
    server = subprocess.Popen(
        [sys.executable, str(script), "--port=0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: alone(min(os.sched_getaffinity(0)), realtime),
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().split()[-1])
        time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(5)


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def _p99(values: Floats) -> float:
    return float(np.percentile(values, 99))


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
