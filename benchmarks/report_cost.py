"""How long a report takes: `python benchmarks/report_cost.py [--requests N] [--gaps N] [--unit step|us]`.

Writes the folder of a made-up run (a ledger with slots, Poisson arrivals, lognormal lengths), then rebuilds its
run.json from the raw files in a process of its own, so that its peak memory is its own. With `--points N` it makes a
sweep of N simulated runs instead and times `cbbench report` of it, with `--report "--format html"` as a page, say.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from engines.base import EventUnit
from engines.ledger import LEDGER, Blocked
from engines.request_table import RequestRow, StintRow
from reports.folder import RunWriter
from reports.schema import Criteria, EngineInfo, PacingInfo, RunFile, WorkloadInfo

SLOTS = 256
STEP_NS = 20_000_000
CHUNK = 10_000  # requests written at once
IntArray = NDArray[np.int64]


def header(requests: int, unit: EventUnit) -> RunFile:
    return RunFile(
        engine=EngineInfo("simulated" if unit == "step" else "openai", mode="continuous"),
        workload=WorkloadInfo("made up", 0, "", requests, pacing=PacingInfo(rate_per_s=1000.0)),
        event_unit=unit,
        criteria=Criteria(("p99_ttft_ms<=800", "p99_tpot_ms<=50", "p99_itl_ms<=50")),
    )


def write_run(folder: Path, requests: int, gaps: int, unit: EventUnit, tenants: int) -> None:
    """Every slot serves one request after the other: a prefill of two steps, then a token in every step."""
    rng = np.random.default_rng(0)
    tokens = np.maximum(2, rng.lognormal(0, 0.7, requests))
    tokens = np.maximum(2, np.rint(tokens * (gaps + requests) / tokens.sum())).astype(np.int64)
    slot = np.arange(requests) % SLOTS
    stay = tokens + 1  # the first of two prefill steps gives no token
    admitted = np.empty(requests, np.int64)
    for slot in range(min(SLOTS, requests)):
        own = stay[slot == slot]
        admitted[slot == slot] = 1 + np.cumsum(own) - own
    ended = admitted + stay - 1
    end_ns = np.cumsum(rng.gamma(400.0, STEP_NS / 400.0, int(ended.max())).astype(np.int64))
    steps = _ledger(end_ns, admitted, ended)
    order = np.argsort(ended, kind="stable")
    waited_ns = rng.lognormal(np.log(200e6), 0.5, requests).astype(np.int64)
    with RunWriter(folder, header(requests, unit)) as writer:
        if unit == "step":
            writer.steps_recorded(steps)
        for begin in range(0, requests, CHUNK):
            _write_requests(writer, order[begin : begin + CHUNK], admitted, tokens, waited_ns, steps, unit, tenants)


def _ledger(end_ns: IntArray, admitted: IntArray, ended: IntArray) -> NDArray[np.void]:
    steps = np.zeros(end_ns.shape[0], LEDGER)
    steps["step"] = np.arange(1, steps.size + 1)
    steps["end_ns"] = end_ns
    steps["start_ns"][1:] = steps["now_ns"][1:] = end_ns[:-1]
    came, went = (np.bincount(at, minlength=steps.size + 2) for at in (admitted, ended + 1))
    steps["running"] = steps["active_slots"] = np.cumsum(came - went)[1:-1]
    steps["decode_rows"] = steps["useful_tokens"] = steps["launched_tokens"] = steps["running"]
    steps["idle_slots"] = SLOTS - steps["active_slots"]
    steps["kv_used_blocks"] = steps["running"]
    steps["kv_free_blocks"] = SLOTS - steps["kv_used_blocks"]
    steps["blocked"] = Blocked.ROWS
    return steps


def _write_requests(
    writer: RunWriter,
    which: IntArray,
    admitted: IntArray,
    tokens: IntArray,
    waited_ns: IntArray,
    steps: NDArray[np.void],
    unit: EventUnit,
    tenants: int,
) -> None:
    """A chunk of requests, in the order of their ends, through the writer that a run uses."""
    for i in which.tolist():
        begin, count = int(admitted[i]), int(tokens[i])
        first_step, last_step = begin + 1, begin + count
        admitted_ns, first_ns = int(steps["now_ns"][begin - 1]), int(steps["end_ns"][first_step - 1])
        sent_ns = max(0, admitted_ns - int(waited_ns[i]))
        last_ns = int(steps["end_ns"][last_step - 1])
        row = RequestRow(
            i=i,
            scheduled=sent_ns,
            submitted=sent_ns,
            sent=sent_ns,
            first_byte=first_ns,
            first=first_ns,
            last=last_ns,
            end=last_ns,
            prompt_tokens=100,
            output_tokens=count,
            status="completed",
            finish_reason="length",
            error=None,
            token_source="engine",
            tenant=f"tenant {i % tenants}",
            priority=0,
            preemptions=0,
            events_at=0,
            events=count,
            stints=(StintRow(i % SLOTS, begin, first_step, last_step),) if unit == "step" else (),
        )
        events = np.arange(first_step, last_step + 1, dtype=np.uint32)
        if unit == "us":
            at_us = steps["end_ns"][events - 1] // 1000
            events = np.diff(at_us, prepend=at_us[0]).astype(np.uint32)
        writer.request_ended(row, events)


CHILD = """
import json, resource, sys, time
from pathlib import Path
from reports.folder import rebuild
begin, cpu = time.perf_counter(), time.process_time()
run = rebuild(Path(sys.argv[1]))
done, cpu_done = time.perf_counter(), time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
itl = run.summary.latency.itl_ms
print(json.dumps({"rebuild_s": done - begin, "cpu_s": cpu_done - cpu, "peak_mib": peak,
                  "requests": run.summary.requests.completed, "gaps": itl.count, "itl_p99_ms": itl.p99}))
"""


def environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[1]
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}


def measure(script: str, *arguments: str) -> dict[str, float]:
    """What a child process says of itself: its peak memory is not ours."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=environment(), check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure_run(options: argparse.Namespace, folder: Path) -> None:
    run = folder / "run"
    if not run.exists():
        begin = time.perf_counter()
        write_run(run, options.requests, options.gaps, options.unit, options.tenants)
        print(f"written in {time.perf_counter() - begin:.1f} s")
    size = sum(file.stat().st_size for file in run.iterdir()) / 2**20
    found = measure(CHILD, str(run))
    print(
        f"{found['requests']:,} requests, {found['gaps']:,} gaps, {size:,.0f} MiB: rebuilt in "
        f"{found['rebuild_s']:.2f} s ({found['cpu_s']:.2f} s of a core), peak memory {found['peak_mib']:,.0f} MiB; "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def measure_sweep(points: int, report: list[str], folder: Path) -> None:
    """The whole command, the start of Python included."""
    sweep = folder / "sweep"
    if not sweep.exists():
        rows = ",".join(str(8 * (point + 1)) for point in range(points))
        asked = ["max-num-seqs", "--values", rows, "--num-requests", "1000", "--rate", "10"]
        engine = ["--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b"]
        command("sweep", *asked, *engine, "-o", str(sweep))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    command("report", str(sweep), *report)
    took_s = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = " ".join(["cbbench report SWEEP", *report])
    print(
        f"{points} points of 1,000 requests, `{said}`: {took_s:.2f} s ({cpu_s:.2f} s of a core); "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def command(*arguments: str) -> None:
    start = [sys.executable, "-c", "from cbbench.entry import main; main()"]
    done = subprocess.run([*start, *arguments], capture_output=True, text=True, env=environment(), check=False)
    if done.returncode not in (0, 3, 5):  # 3 and 5: an SLA
        raise SystemExit(done.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--gaps", type=int, default=200_000_000)
    parser.add_argument("--unit", choices=("step", "us"), default="step", help="of token events: in process, or HTTP")
    parser.add_argument("--tenants", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the run is kept, or taken from if it is there already")
    parser.add_argument("--points", type=int, help="make a sweep of so many runs and time its report instead")
    parser.add_argument("--report", default="", help="more arguments of `cbbench report`, in one string")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="cbbench-reports-"))
    try:
        if options.points:
            measure_sweep(options.points, options.report.split(), folder)
        else:
            measure_run(options, folder)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
