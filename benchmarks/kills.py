"""What a killed run loses: `cbbench run` is ended with SIGKILL at random moments while it cannot keep up with a server.

    python benchmarks/kills.py [--kills 100] [--workers N] [--concurrency N] [--seed N] [--ahead]

The server (truth_server.py, on the first core) answers at once and records when, so that the client (on the last core)
always has sends and reads to do. An answer that the server ended more than RECENT_MS before the kill must have its line
in requests.jsonl. Exit code 1 if one has not. With other work on the machine, both need --ahead (root). With workers,
every process needs a core of its own: those of one core wait for each other longer than that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.truth_server import KEY_IDS, Truth
from engines.remote.config import RemoteConfig
from workloads.plan import RequestPlan
from workloads.prompts import Prompts

RECENT_MS = 50.0
WATCHED_S = 0.2  # before the kill: a client that had to wait for its core then is killed again, as another run
MOST_CORE_WAIT_MS = 10.0
MOST_TRIES = 4  # per kill
PROMPT_TOKENS = 16
OUTPUT_TOKENS = 2
REQUESTS = 100_000
KILLED_AFTER_S = (0.1, 1.0)  # of the first line


@dataclass(frozen=True)
class Kill:
    answered: int  # requests whose answer the server had ended
    lines: int
    lost: int  # of the answers that ended more than RECENT_MS before the kill, those without a line
    oldest_lost_ms: float  # before the kill; of all answers, also the recent ones
    core_wait_ms: float  # of the client, as other work had its core, in the last WATCHED_S

    @property
    def counts(self) -> bool:
        return self.core_wait_ms <= MOST_CORE_WAIT_MS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ahead", action="store_true", help="run both ahead of everything else on their cores")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    kills: list[Kill] = []
    again = 0
    with fast_server(ahead=args.ahead) as url:
        while len(kills) < args.kills and again < MOST_TRIES * args.kills:
            after_s = chance.uniform(*KILLED_AFTER_S)
            kill = kill_once(url, after_s, args.concurrency, workers=args.workers, ahead=args.ahead)
            if not kill.counts:
                again += 1
                continue
            kills.append(kill)
            if kill.lost:
                print(f"after {after_s:.2f} s: {kill}", flush=True)
    oldest = sorted(kill.oldest_lost_ms for kill in kills) or [0.0]
    answered, lines = sum(kill.answered for kill in kills), sum(kill.lines for kill in kills)
    print(
        f"{len(kills)} kills, {again} more whose client waited for a core; {answered:,} answers, {answered - lines:,} "
        f"without a line; the oldest of a kill had ended {oldest[len(oldest) // 2]:.1f} ms before it (median), "
        f"{oldest[-1]:.1f} ms (most)"
    )
    sys.exit(len(kills) < args.kills or any(kill.lost for kill in kills))


def kill_once(url: str, after_s: float, concurrency: int, *, workers: int = 1, ahead: bool = False) -> Kill:
    """Start a run, kill it `after_s` after its first line, and compare its lines with what the server answered."""
    urllib.request.urlopen(f"{url}/truth/reset").read()
    with tempfile.TemporaryDirectory() as made:
        lines = Path(made) / "run" / "requests.jsonl"
        workload = f"prompt=fixed({PROMPT_TOKENS});output=fixed({OUTPUT_TOKENS})"
        command = [sys.executable, "-m", "cbbench", "run", "--url", url, "--workload", workload, "--warmup", "0"]
        command += ["--num-requests", str(REQUESTS), "--concurrency", str(concurrency), "--workers", str(workers)]
        command += ["--prompt-form", "ids", "--no-scrape", "--prompt-seed", "0", "-o", str(lines.parent)]
        client = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: place(max(os.sched_getaffinity(0)), ahead),
        )
        try:
            while client.poll() is None and not (lines.exists() and lines.stat().st_size):
                time.sleep(0.01)
            time.sleep(max(after_s - WATCHED_S, 0.0))
            waited_ns = core_wait_ns(client.pid)
            time.sleep(min(after_s, WATCHED_S))
            waited_ns = core_wait_ns(client.pid) - waited_ns
            assert client.poll() is None, f"the run ended by itself with exit code {client.returncode}"
            killed_ns = time.monotonic_ns()
        finally:
            client.send_signal(signal.SIGKILL)
            client.wait()
        recorded = {json.loads(line)["i"] for line in lines.read_bytes().split(b"\n")[:-1]}
    ended_ns = answers(url)
    missing_ns = [at_ns for index, at_ns in ended_ns.items() if index not in recorded and at_ns < killed_ns]
    old = [at_ns for at_ns in missing_ns if at_ns < killed_ns - RECENT_MS * 1e6]
    oldest_ms = (killed_ns - min(missing_ns)) / 1e6 if missing_ns else 0.0
    return Kill(len(ended_ns), len(recorded), len(old), oldest_ms, waited_ns / 1e6)


def core_wait_ns(pid: int) -> int:
    """Time for which a process was runnable without a core, since it began."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


def answers(url: str) -> dict[int, int]:
    """By index: when the server had sent the last token, in ns of time.monotonic_ns()."""
    truths = msgspec.msgpack.decode(urllib.request.urlopen(f"{url}/truth").read(), type=list[Truth])
    plan = RequestPlan.of(np.full(REQUESTS, PROMPT_TOKENS), np.full(REQUESTS, OUTPUT_TOKENS))
    low, high = RemoteConfig(url=url).token_ids
    prompts = Prompts(plan, np.arange(low, high, dtype=np.int32))
    sent = {truth.key: int(np.frombuffer(truth.sent_ns, np.int64)[-1]) for truth in truths if truth.sent_ns}
    found: dict[int, int] = {}
    for index in range(REQUESTS):  # they are sent in order, so that the first ones are the ones
        at_ns = sent.pop(tuple(prompts.ids(index)[:KEY_IDS].tolist()), None)
        if at_ns is not None:
            found[index] = at_ns
        if not sent:
            break
    assert not sent, "the server answered what no request of the plan asked"
    return found


@contextmanager
def fast_server(*, ahead: bool = False) -> Iterator[str]:
    script = Path(__file__).with_name("truth_server.py")
    server = subprocess.Popen(
        [sys.executable, str(script), "--port=0", "--ttft-ms=0", "--tpot-ms=0"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: place(min(os.sched_getaffinity(0)), ahead),
    )
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().split()[-1]}"
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(5)


def place(core: int, ahead: bool) -> None:
    """Not at a realtime priority: Linux stops processes that use all of it for 50 ms of every second."""
    os.sched_setaffinity(0, {core})
    if ahead:
        os.setpriority(os.PRIO_PROCESS, 0, -20)


if __name__ == "__main__":
    main()
