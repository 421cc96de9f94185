"""Real processes: a server that is killed, one that is stopped for a second, several of ours that load one server."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from engines.base import PartialRun
from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from engines.remote.server_info import ServerInfo
from engines.remote.workers import worker_count
from tests.wire.driving import Watching, load
from tests.wire.fake import GOOD, Call, FakeServer
from tests.wire.server_process import server_process
from workloads.errors import CbbenchError
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.rates import RateSchedule


def run(url: str, plan: RequestPlan, observer: Watching | None = None, **config: Any) -> Any:
    pacing_config = {name: config.pop(name) for name in ("rate_per_s", "concurrency") if name in config}
    engine = RemoteEngine(RemoteConfig(url=url, warmup_requests=0, **config))
    return engine.run(plan, Pacing(plan.arrivals_ugap, **pacing_config), observer or Watching())


def when(condition: Callable[[], bool], act: Callable[[], None]) -> None:
    """In a thread of its own, once."""

    def wait() -> None:
        deadline = time.monotonic() + 20
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        act()

    threading.Thread(target=wait, daemon=True).start()


def test_a_server_process_killed_in_mid_run() -> None:
    """Exit 6 and partial results (B8)."""
    watching = Watching()
    plan = RequestPlan.of([8] * 400, [10] * 400)
    with server_process() as (process, url):
        when(lambda: len(watching.rows) >= 8, process.kill)
        with pytest.raises(PartialRun) as caught:
            run(url, plan, watching, concurrency=4, gone_after_s=0.5)
    record = caught.value.record
    assert caught.value.exit_code == 6
    assert "went away" in str(caught.value)
    assert f"{len(record)} of 400" in str(caught.value)
    statuses = [row.status for row in record.rows]
    assert statuses.count("completed") >= 8
    assert statuses.count("failed") >= 1
    assert {row.finish_reason for row in record.rows if row.status == "failed"} <= {"truncated", "connect"}


def test_a_server_process_stopped_for_a_while() -> None:
    """Open loop: the requests that were due during the stall have it in their latency from the schedule, as much of it
    as was left when they were due; the others do not."""
    stall_s, rate = 0.6, 70.0
    stalled_at: list[float] = []
    plan = RequestPlan.of([8] * 100, [2] * 100)
    watching = Watching()
    with server_process() as (process, url):

        def stall() -> None:
            stalled_at.append(time.monotonic())
            process.send_signal(signal.SIGSTOP)
            time.sleep(stall_s)
            process.send_signal(signal.SIGCONT)

        when(lambda: len(watching.rows) >= 20, stall)
        record = run(url, plan, watching, rate_per_s=rate, concurrency=4)
    assert all(row.status == "completed" for row in record.rows)
    scheduled, first, sent = (record.column_ns(name) / 1e9 for name in ("scheduled", "first", "sent"))
    felt = first - scheduled
    assert felt.max() > 0.8 * stall_s
    # About rate * stall requests were due meanwhile, with waits spread over it: half of them more than half of it.
    assert (felt > stall_s / 2).sum() > 0.3 * rate * stall_s
    # Measured from the sending, only those that were in flight felt it.
    assert ((first - sent) > stall_s / 2).sum() <= 8


# Workers


def test_workers_share_the_plan() -> None:
    """B3 32, inference-perf #509: each request once, each prompt its own, one schedule, one record."""

    async def script(call: Call) -> None:
        await call.pause(0.02)
        await call.send(GOOD)

    watching = Watching()
    with FakeServer(script) as server:
        ran = load(server, requests=60, concurrency=6, workers=2, observer=watching)
    assert sorted(row.i for row in ran.record.rows) == list(range(60))
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 60
    assert ran.failures == [None] * 60
    assert server.most_open_calls <= 6
    assert ran.report.workers == 2
    assert ran.report.token_events == 120
    # The merged events are where the merged rows say.
    assert [row.events_at for row in ran.record.rows] == list(range(0, 120, 2))
    assert len(ran.record.event_values) == 120
    assert not ran.record.interrupted


@pytest.mark.slow
def test_workers_start_together_and_keep_the_rate_of_the_whole() -> None:
    async def script(call: Call) -> None:
        await call.send(GOOD)

    with FakeServer(script) as server:
        ran = load(server, requests=200, rate=100, workers=2)
    scheduled, sent = ran.record.column_ns("scheduled"), ran.record.column_ns("sent")
    assert np.array_equal(np.sort(scheduled), np.arange(200) * 10_000_000)
    assert (sent >= scheduled).all()
    assert ran.report.achieved_over_asked_rate == pytest.approx(1, abs=0.1)


def test_a_worker_that_dies() -> None:
    """B8 77, guidellm #686: seen at once, exit 1, and what the others had is kept."""
    watching = Watching()
    plan = RequestPlan.of([8] * 2000, [5] * 2000)

    def kill_one() -> None:
        child = next(child for child in multiprocessing.active_children() if child.name == "worker 1")
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)

    with server_process() as (_, url):
        when(lambda: len(watching.rows) >= 10, kill_one)
        began = time.monotonic()
        with pytest.raises(PartialRun) as caught:
            run(url, plan, watching, concurrency=8, workers=2)
    assert caught.value.exit_code == 1
    assert "worker 1 died" in str(caught.value)
    assert time.monotonic() - began < 20
    record = caught.value.record
    assert len(record) >= 10
    assert any(row.i % 2 == 0 for row in record.rows)
    assert any(row.i % 2 == 1 for row in record.rows)


def test_a_full_disk_under_workers() -> None:
    """The error of the files is the error of the run, and no worker adds to it."""

    class Full(Watching):
        def request_ended(self, *args: object) -> None:
            super().request_ended(*args)  # type: ignore[arg-type]
            if len(self.rows) == 10:
                raise CbbenchError(None, "requests.jsonl: No space left on device")

    with server_process() as (_, url), pytest.raises(CbbenchError, match="No space left"):
        run(url, RequestPlan.of([8] * 2000, [5] * 2000), Full(), concurrency=8, workers=2)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_stopping_reaches_the_workers() -> None:
    watching = Watching(stop_after=10)
    plan = RequestPlan.of([8] * 2000, [5] * 2000)
    with server_process() as (_, url):
        record = run(url, plan, watching, concurrency=8, workers=2)
    assert record.interrupted
    assert 10 <= len(record) < 1000


@pytest.mark.slow
def test_the_server_dies_under_workers() -> None:
    watching = Watching()
    plan = RequestPlan.of([8] * 2000, [5] * 2000)
    with server_process() as (process, url):
        when(lambda: len(watching.rows) >= 10, process.kill)
        with pytest.raises(PartialRun) as caught:
            run(url, plan, watching, concurrency=8, workers=2, gone_after_s=0.5)
    assert caught.value.exit_code == 6


def test_what_a_worker_cannot_begin_is_an_error_before_the_run() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard > 10**6:
        pytest.skip("no limit of open files to run into")
    plan = RequestPlan.of([8] * (2 * hard), [2] * (2 * hard))
    with FakeServer() as server, pytest.raises(CbbenchError, match="open files"):
        run(server.url, plan)


@pytest.mark.parametrize(
    ("asked", "pacing", "workers"),
    [
        (1, {"concurrency": 8}, 1),
        (4, {"concurrency": 8}, 4),
        (4, {"concurrency": 2}, 2),
        (4, {}, 4),
        ("auto", {"concurrency": 64}, 1),
        ("auto", {"concurrency": 512}, 1),
        ("auto", {"concurrency": 513}, 2),
        ("auto", {"concurrency": 100_000}, 4),  # the cores
        ("auto", {}, 4),  # 2,000 requests at once
        ("auto", {"rate_per_s": 50.0}, 1),
        ("auto", {"rate_per_s": 200.0}, 2),  # of 196 + 4 events each: 40,000 a second
        ("auto", {"rate_per_s": 200.0, "concurrency": 256}, 1),
        ("auto", {"rate_per_s": RateSchedule.parse("1 for 60s, 200 for 60s, 1")}, 2),  # its peak
        ("auto", {"rate_per_s": 1e6}, 4),
    ],
)
def test_how_many_workers(asked: Any, pacing: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """auto: by the load, and by the cores that this process may use."""
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda process: [0, 1, 2, 3])
    plan = RequestPlan.of([8] * 2000, [196] * 2000)
    assert worker_count(asked, plan, Pacing(plan.arrivals_ugap, **pacing)) == workers


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_while_connections_open(workers: int) -> None:
    """The first Ctrl-C counts from the beginning: not only once all connections are open."""
    watching = Watching()
    plan = RequestPlan.of([8] * 10, [2] * 10)
    began_s = time.monotonic()
    with unaccepting_server() as url:
        when(lambda: time.monotonic() > began_s + 0.3, lambda: setattr(watching, "stopping", True))
        config = RemoteConfig(url=url, warmup_requests=0, workers=workers, connect_timeout_s=60)
        engine = RemoteEngine(config)
        engine.__dict__["server"] = ServerInfo("m", ("m",), None)  # this one says nothing about itself
        record = engine.run(plan, Pacing(plan.arrivals_ugap, concurrency=4), watching)
    assert time.monotonic() - began_s < 20
    assert record.interrupted
    assert len(record) == 0


@contextmanager
def unaccepting_server() -> Iterator[str]:
    """Its queue of connections to accept is full, so that no other one opens."""
    with socket.socket() as server, ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


INTERRUPTED = """
import numpy as np, sys
from cbbench.experiment.interrupt import Interrupt
from engines.base import SilentObserver
from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.rates import RateSchedule

class Watching(SilentObserver):
    @property
    def stopping(self):
        return interrupt.requested

if __name__ == "__main__":
    plan = RequestPlan.of([8] * 2000, [5] * 2000)
    engine = RemoteEngine(RemoteConfig(url=sys.argv[1], warmup_requests=0, workers=2))
    assert engine.server
    with Interrupt() as interrupt:
        print("begin", flush=True)
        record = engine.run(plan, Pacing(plan.arrivals_ugap, concurrency=8), Watching())
    print("interrupted" if record.interrupted else "finished", len(record))
"""


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3])
def test_ctrl_c_while_workers_start(after_s: float, tmp_path: Path) -> None:
    """It reaches the workers too, before they ignore it."""
    script = tmp_path / "load.py"
    script.write_text(INTERRUPTED)
    with server_process() as (_, url):
        command = [sys.executable, str(script), url]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begin\n"
            time.sleep(after_s)
            os.killpg(process.pid, signal.SIGINT)
            said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert said.startswith("interrupted")
    assert "Traceback" not in errors
