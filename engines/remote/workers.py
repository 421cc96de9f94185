"""Several processes that load one server: each sends every n-th request from its own event loop; their records merge.

parent                               worker (spawned)
  Job ------------------------------->  connects, makes the first bodies
  <------------------------------ Ready
  Start(start_ns), to all ----------->  runs
  <-------- Ended, Sampled ..., Done
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import EngineError, Observer, RunRecord, Signal
from engines.ledger import StepArray
from engines.remote.client_stats import ClientStats
from engines.remote.config import resolve
from engines.remote.load_client import Partition, Problem, Ran, run_partition
from engines.remote.load_recorder import LoadRecorder
from engines.remote.request_bodies import RequestFormat
from engines.request_table import RequestRow, RequestTable
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


@dataclass(frozen=True)
class Job:
    """Everything a worker needs; pickled to it."""

    setup: RequestFormat
    plan: RequestPlan
    pacing: Pacing  # of the whole run, not begun
    worker: int
    workers: int


class Ready(msgspec.Struct, tag=True):
    """Connections are open, bodies made."""


class Start(msgspec.Struct, tag=True):
    start_ns: int  # of time.monotonic_ns(), which all processes share


class Stop(msgspec.Struct, tag=True):
    """Cancel what runs and send what there is."""


class Ended(msgspec.Struct, tag=True):
    row: RequestRow
    gaps_us: bytes


class Sampled(msgspec.Struct, tag=True):
    signal: Signal


class Done(msgspec.Struct, tag=True):
    stats: ClientStats
    problem: tuple[str, int] | None = None


class Refused(msgspec.Struct, tag=True):
    """An EngineError before the run."""

    message: str
    exit_code: int


encode = msgspec.msgpack.encode
decode_from_worker = msgspec.msgpack.Decoder(Ready | Ended | Sampled | Done | Refused).decode
decode_from_parent = msgspec.msgpack.Decoder(Start | Stop).decode


def work(pipe: Connection, job: Job) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us all; the parent tells us what to do
    parent = _Parent(pipe)
    recorder = LoadRecorder(job.plan, parent, ClientStats())
    part = Partition(job.plan, job.pacing, job.worker, job.workers)
    try:
        _, problem = run_partition(
            job.setup, resolve(job.setup.config), job.plan, part, recorder, parent.wait_for_start
        )
    except EngineError as error:
        parent.send(Refused(str(error), error.exit_code))
    else:
        parent.send(Done(recorder.stats, problem))


class _Parent:
    """The run's Observer, at the other end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._stopping = False

    @property
    def stopping(self) -> bool:
        if not self._stopping and self._pipe.poll():
            try:
                self._stopping = isinstance(decode_from_parent(self._pipe.recv_bytes()), Stop)
            except EOFError:  # the parent is gone
                self._stopping = True
        return self._stopping

    def wait_for_start(self) -> int:
        self.send(Ready())
        order = decode_from_parent(self._pipe.recv_bytes())
        if isinstance(order, Start):
            return order.start_ns
        self._stopping = True
        return 0

    def send(self, message: Ready | Ended | Sampled | Done | Refused) -> None:
        self._pipe.send_bytes(encode(message))

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        self.send(Ended(row, events.tobytes()))

    def sampled(self, signal: Signal) -> None:
        self.send(Sampled(signal))

    def steps_recorded(self, steps: StepArray) -> None: ...


STREAMS_PER_WORKER = 512  # that one core follows at 20 ms a token, with some room
LEAD_NS = 50_000_000  # from the last worker's Ready to time zero
LOOK_S = 0.1  # how often the observer's wish to stop is looked at
SIGNAL_PERIOD_NS = 250_000_000
PATIENCE_S = 5.0  # for a worker to end when told to
WORKER_DIED = 1  # exit code


def worker_count(asked: int | Literal["auto"], pacing: Pacing) -> int:
    """Never more workers than requests in flight."""
    streams = pacing.concurrency
    if asked == "auto":
        return min(-(-(streams or 1) // STREAMS_PER_WORKER), os.cpu_count() or 1)
    return max(1, asked if streams is None else min(asked, streams))


def run_in_workers(setup: RequestFormat, plan: RequestPlan, pacing: Pacing, observer: Observer, workers: int) -> Ran:
    """Raises EngineError if a worker cannot begin; one that dies later is the problem of what is returned."""
    context = multiprocessing.get_context("spawn")
    crew: dict[Connection, BaseProcess] = {}
    try:
        for worker in range(workers):
            ours, theirs = context.Pipe()
            job = Job(setup, plan, pacing, worker, workers)
            process = context.Process(target=work, args=(theirs, job), name=f"worker {worker}", daemon=True)
            process.start()
            theirs.close()  # so that the pipe ends when the worker does
            crew[ours] = process
        merger = Merger(plan, observer)
        _start(crew)
        problem, stopped = _follow(crew, merger, observer)
        return Ran(merger.record(interrupted=stopped), merger.stats, problem)
    finally:
        _dismiss(crew)


def _start(crew: dict[Connection, BaseProcess]) -> None:
    for pipe, process in crew.items():
        message = _receive(pipe)
        if isinstance(message, Refused):
            raise EngineError(message.message, message.exit_code)
        if not isinstance(message, Ready):
            raise EngineError(f"{process.name} died before the run began", WORKER_DIED)
    _tell(crew, Start(time.monotonic_ns() + LEAD_NS))


def _follow(crew: dict[Connection, BaseProcess], merger: Merger, observer: Observer) -> tuple[Problem | None, bool]:
    """Until all are done: what went wrong first, and whether the observer asked to stop."""
    running = set(crew)
    problem: Problem | None = None
    stopped = told = False
    while running:
        for pipe in wait(list(running), LOOK_S):
            assert isinstance(pipe, Connection)
            message = _receive(pipe)
            if message is None:
                running.discard(pipe)
                problem = problem or (f"{crew[pipe].name} died", WORKER_DIED)
            elif isinstance(message, Done):
                running.discard(pipe)
                problem = problem or message.problem
                merger.done(message)
            elif isinstance(message, Ended):
                merger.ended(message)
            elif isinstance(message, Sampled):
                merger.sampled(crew[pipe].name, message.signal)
        stopped = stopped or (observer.stopping and problem is None)
        if (stopped or problem is not None) and not told:
            _tell(running, Stop())
            told = True
    return problem, stopped


def _receive(pipe: Connection) -> Ready | Ended | Sampled | Done | Refused | None:
    """None when the worker is no more."""
    try:
        message: Ready | Ended | Sampled | Done | Refused = decode_from_worker(pipe.recv_bytes())
    except (EOFError, OSError):
        return None
    return message


def _tell(pipes: Collection[Connection], order: Start | Stop) -> None:
    for pipe in pipes:
        with suppress(OSError):  # if it died, the next receive says so
            pipe.send_bytes(encode(order))


def _dismiss(crew: dict[Connection, BaseProcess]) -> None:
    for pipe in crew:
        pipe.close()  # to one that still runs, the same as Stop
    for process in crew.values():
        process.join(PATIENCE_S)
        if process.is_alive():
            process.kill()
            process.join()


class Merger:
    """One record from the messages of all."""

    def __init__(self, plan: RequestPlan, observer: Observer) -> None:
        self._planned = len(plan)
        self._observer = observer
        self._rows = RequestTable()
        self._events: list[NDArray[np.uint32]] = []
        self._num_events = 0
        self._latest: dict[str, Signal] = {}
        self._signals: list[Signal] = []
        self.stats = ClientStats()

    def ended(self, message: Ended) -> None:
        gaps_us = np.frombuffer(message.gaps_us, np.uint32)
        row = msgspec.structs.replace(message.row, events_at=self._num_events)
        self._rows.append(row)
        self._events.append(gaps_us)
        self._num_events += len(gaps_us)
        self._observer.request_ended(row, gaps_us)

    def sampled(self, worker: str, signal: Signal) -> None:
        self._latest[worker] = signal
        if not self._signals or signal.t - self._signals[-1].t >= SIGNAL_PERIOD_NS:
            merged = _sum(signal.t, list(self._latest.values()))
            self._signals.append(merged)
            self._observer.sampled(merged)

    def done(self, message: Done) -> None:
        self.stats.merge(message.stats)

    def record(self, *, interrupted: bool) -> RunRecord:
        return RunRecord(
            planned=self._planned,
            rows=self._rows,
            event_values=np.concatenate(self._events) if self._events else np.empty(0, np.uint32),
            event_unit="us",
            signals=self._signals,
            interrupted=interrupted,
        )


def _sum(t_ns: int, latest: list[Signal]) -> Signal:
    ttfts = [one.ttft_ms for one in latest if one.ttft_ms is not None]
    tpots = [one.tpot_ms for one in latest if one.tpot_ms is not None]
    return Signal(
        t=t_ns,
        running=sum(one.running for one in latest),
        waiting=sum(one.waiting for one in latest),
        kv_usage=latest[0].kv_usage,
        device_busy=latest[0].device_busy,
        output_token_per_s=sum(one.output_token_per_s for one in latest),
        preemptions=None,
        completed=sum(one.completed for one in latest),
        output_tokens=sum(one.output_tokens for one in latest),
        ttft_ms=sum(ttfts) / len(ttfts) if ttfts else None,
        tpot_ms=sum(tpots) / len(tpots) if tpots else None,
    )
