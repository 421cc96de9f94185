"""Several processes that load one server: each sends every n-th request from an event loop of its own.

parent                               worker (spawned)
  Job ------------------------------->  opens connections, makes the first bodies
  <------------------------------ Ready
  Start(start_ns), to all ----------->  sends its requests
  <-------- Ended, Sampled ..., Done
"""

from __future__ import annotations

import math
import multiprocessing
import selectors
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal, cast

import numpy as np
import psutil

from engines.base import Observer
from engines.remote.load_client import LoadResult, Problem
from engines.remote.load_recorder import MergedRecorder
from engines.remote.request_bodies import RequestFormat
from engines.remote.worker_process import (
    CannotStart,
    Done,
    Ended,
    FromParent,
    FromWorker,
    Job,
    Ready,
    Sampled,
    Start,
    Stop,
    decode_from_worker,
    encode,
    work,
)
from workloads.errors import CbbenchError, ExitCode
from workloads.pacing import Pacing
from workloads.plan import RequestPlan
from workloads.rates import RateSchedule

STREAMS_PER_WORKER = 512  # one core follows so many at 20 ms a token, with some room (benchmarks/client.py, case 25k)
EVENTS_PER_WORKER_PER_S = 25_000  # the same as a rate of tokens
EVENTS_PER_REQUEST = 4  # sending a request and recording its answer takes the CPU time of so many token events
LEAD_NS = 50_000_000  # from the last worker's Ready to time zero
POLL_S = 0.1  # how often the parent looks at Observer.stopping
END_TIMEOUT_S = 5.0  # for a worker to end after Stop, before it is killed


def worker_count(asked: int | Literal["auto"], plan: RequestPlan, pacing: Pacing) -> int:
    """Processes to load a server with, at most one per request in flight.

    auto: as many as the load needs, at most one per core that this process may use. A closed loop needs one per
    STREAMS_PER_WORKER requests in flight. An open loop needs one per EVENTS_PER_WORKER_PER_S tokens that it offers per
    second at its highest rate, and no more than its cap on requests in flight, if it has one, could keep busy.
    """
    if asked == "auto":
        in_flight = len(plan) if pacing.concurrency is None else min(pacing.concurrency, len(plan))
        needed = math.ceil(in_flight / STREAMS_PER_WORKER)
        if pacing.rate_per_s is not None and len(plan):
            events_per_request = float(plan.output_tokens.mean()) + EVENTS_PER_REQUEST
            needed = min(needed, math.ceil(_peak(pacing.rate_per_s) * events_per_request / EVENTS_PER_WORKER_PER_S))
        return max(1, min(needed, _available_cores()))
    return max(1, asked if pacing.concurrency is None else min(asked, pacing.concurrency))


def workers_for_urls(urls: int, workers: int, pacing: Pacing) -> int:
    """As many processes for each URL. Raises CbbenchError where the cap on requests in flight is below that."""
    if pacing.concurrency is not None and pacing.concurrency < urls:
        raise CbbenchError("concurrency", f"{pacing.concurrency} is below the {urls} of `url`, which share it")
    each = math.ceil(workers / urls)
    if pacing.concurrency is not None:
        each = max(1, min(each, pacing.concurrency // urls))
    return each * urls


def _peak(rate_per_s: float | RateSchedule) -> float:
    """The highest rate, requests per second."""
    if isinstance(rate_per_s, RateSchedule):
        return max(max(stage.from_per_s, stage.to_per_s) for stage in rate_per_s.stages)
    return rate_per_s


def _available_cores() -> int:
    """Cores that this process may run on; all of the machine where the system has no affinity (macOS)."""
    process = psutil.Process()
    cores = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()
    return cores or 1


def run_in_workers(
    formats: Sequence[RequestFormat], plan: RequestPlan, pacing: Pacing, observer: Observer, workers: int
) -> LoadResult:
    """formats: one for each URL; worker w loads number w % len(formats), so `workers` is a multiple of that.

    Raises CbbenchError if a worker cannot start. A worker that dies later is the result's `problem`."""
    processes: dict[Connection, BaseProcess] = {}
    recorder = MergedRecorder(plan, observer)
    started = False
    try:
        with _interrupts_held_back():
            for worker in range(workers):
                pipe, process = _spawn(Job(formats[worker % len(formats)], plan, pacing, worker, workers))
                processes[pipe] = process
        start_ns = _start(processes, observer)
        if start_ns is None:
            problem, stopped = None, True
        else:
            started, recorder.start_ns = True, start_ns
            problem, stopped = _collect(processes, recorder, observer)
        return LoadResult(recorder.record(interrupted=stopped), recorder.stats, problem)
    finally:
        _end(processes, at_once=not started)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Delivers a Ctrl-C to this thread after the block. Processes spawned in it never see one: they inherit the mask.

    Otherwise one that has not yet come to ignore it would die of it, before the parent could stop the run in order.
    """
    resource_tracker.ensure_running()  # to start it later, as the first spawn does, would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(job: Job) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, job), name=f"worker {job.worker}", daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends when the worker does
    return ours, process


def _start(processes: dict[Connection, BaseProcess], observer: Observer) -> int | None:
    """Start all workers once the last is ready: time zero; None if the observer stops the run before that."""
    preparing = set(processes)
    while preparing:
        for pipe in wait(list(preparing), POLL_S):
            assert isinstance(pipe, Connection)
            message = _receive(pipe)
            if isinstance(message, CannotStart):
                raise CbbenchError(message.field, message.message, ExitCode(message.exit_code))
            if not isinstance(message, Ready):
                raise CbbenchError(None, f"{processes[pipe].name} died before the run began", ExitCode.ERROR)
            preparing.discard(pipe)
        if observer.stopping:
            return None
    start_ns = time.monotonic_ns() + LEAD_NS
    _send_all(processes, Start(start_ns))
    return start_ns


def _collect(
    processes: dict[Connection, BaseProcess], recorder: MergedRecorder, observer: Observer
) -> tuple[Problem | None, bool]:
    """Until all workers are done: (what went wrong first, whether the observer stopped the run)."""
    running = set(processes)
    problem: Problem | None = None
    stopped = told = False
    selector = selectors.DefaultSelector()  # wait() makes one for every call, which takes longer than a message
    for pipe in running:
        selector.register(pipe, selectors.EVENT_READ)
    while running:
        for key, _ in selector.select(POLL_S):
            pipe = cast(Connection, key.fileobj)
            message = _receive(pipe)
            if message is None or isinstance(message, Done):
                running.discard(pipe)
                selector.unregister(pipe)
            if message is None:
                problem = problem or (f"{processes[pipe].name} died", ExitCode.ERROR)
            elif isinstance(message, Done):
                problem = problem or message.problem
                recorder.stats.merge(message.stats)
            elif isinstance(message, Ended):
                recorder.ended(message.row, np.frombuffer(message.gaps_us, np.uint32))
            elif isinstance(message, Sampled):
                recorder.sampled(processes[pipe].name, message.signal)
        stopped = stopped or (observer.stopping and problem is None)
        if (stopped or problem is not None) and not told:
            _send_all(running, Stop())
            told = True
    return problem, stopped


def _receive(pipe: Connection) -> FromWorker | None:
    """None when the worker has died."""
    try:
        message: FromWorker = decode_from_worker(pipe.recv_bytes())
    except (EOFError, OSError):
        return None
    return message


def _send_all(pipes: Collection[Connection], order: FromParent) -> None:
    for pipe in pipes:
        with suppress(OSError):  # the worker has died, which the next receive reports
            pipe.send_bytes(encode(order))


def _end(processes: dict[Connection, BaseProcess], *, at_once: bool) -> None:
    for pipe, process in processes.items():
        pipe.close()  # a worker that still runs takes it as Stop
        if at_once:
            process.terminate()
    for process in processes.values():
        process.join(END_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
