"""The inside of a worker process, and the messages that it and its parent exchange; see engines.remote.workers."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import Signal
from engines.ledger import StepArray
from engines.remote.client_stats import ClientStats, Histogram
from engines.remote.config import resolve
from engines.remote.load_client import Partition, Problem, run_partition
from engines.remote.load_recorder import LoadRecorder
from engines.remote.request_bodies import RequestFormat
from engines.request_table import RequestRow
from workloads.errors import CbbenchError
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


@dataclass(frozen=True)
class Job:
    """Everything a worker needs; pickled to it."""

    request_format: RequestFormat
    plan: RequestPlan
    pacing: Pacing  # of the whole run, not begun
    worker: int
    workers: int


class Ready(msgspec.Struct, tag=True):
    """Connections are open, bodies made."""


class Start(msgspec.Struct, tag=True):
    start_ns: int  # of time.monotonic_ns(), which all processes share


class Stop(msgspec.Struct, tag=True):
    """Cancel the requests in flight, and send what has been recorded."""


class Ended(msgspec.Struct, tag=True):
    row: RequestRow
    gaps_us: bytes


class Sampled(msgspec.Struct, tag=True):
    signal: Signal


class Done(msgspec.Struct, tag=True):
    stats: ClientStats
    problem: Problem | None = None


class CannotStart(msgspec.Struct, tag=True):
    """A CbbenchError before the run."""

    field: str | None
    message: str
    exit_code: int


FromWorker = Ready | Ended | Sampled | Done | CannotStart
FromParent = Start | Stop

encode = msgspec.msgpack.encode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_from_parent = msgspec.msgpack.Decoder(FromParent).decode


def work(pipe: Connection, job: Job) -> None:
    """The main function of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent sends Stop
    parent = _Parent(pipe)
    recorder = LoadRecorder(job.plan, parent, ClientStats(), job.request_format.id_prefix)
    part = Partition(job.plan, job.pacing, job.worker, job.workers)
    target = resolve(job.request_format.config)
    try:
        _, problem = run_partition(job.request_format, target, job.plan, part, recorder, parent.wait_for_start)
    except CbbenchError as error:
        parent.send(CannotStart(error.field, error.message, error.exit_code))
    else:
        recorder.stats.record_lag_ns = Histogram()  # the parent writes the records
        parent.send(Done(recorder.stats, problem))


class _Parent:
    """The run's Observer, at the other end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._stopping = False

    @property
    def stopping(self) -> bool:
        if not self._stopping and self._pipe.poll():
            self._stopping = not isinstance(self._receive(), Start)
        return self._stopping

    def wait_for_start(self) -> int | None:
        """Time zero of the schedule; None if the run is stopped before it."""
        self.send(Ready())
        order = None if self._stopping else self._receive()
        if isinstance(order, Start):
            return order.start_ns
        self._stopping = True
        return None

    def _receive(self) -> FromParent | None:
        """None when the parent has ended or closed the pipe."""
        try:
            order: FromParent = decode_from_parent(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        return order

    def send(self, message: FromWorker) -> None:
        try:
            self._pipe.send_bytes(encode(message))
        except OSError:  # the parent has ended or closed the pipe
            self._stopping = True

    def request_ended(self, row: RequestRow, events: NDArray[np.uint32]) -> None:
        self.send(Ended(row, events.tobytes()))

    def sampled(self, signal: Signal) -> None:
        self.send(Sampled(signal))

    def steps_recorded(self, steps: StepArray) -> None: ...
