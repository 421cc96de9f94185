"""The inside of a worker process, and the messages it and its parent exchange."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import EngineError, Signal
from engines.ledger import StepArray
from engines.remote.config import resolve
from engines.remote.recorder import Recorder
from engines.remote.setup import Setup
from engines.remote.share import Share, run_share
from engines.remote.tally import Tally
from engines.request_table import RequestRow
from workloads.pacing import Pacing
from workloads.plan import RequestPlan


@dataclass(frozen=True)
class Job:
    """Everything a worker needs; pickled to it."""

    setup: Setup
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
    tally: Tally
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
    recorder = Recorder(job.plan, parent, Tally())
    share = Share(job.plan, job.pacing, job.worker, job.workers)
    try:
        _, problem = run_share(job.setup, resolve(job.setup.config), job.plan, share, recorder, parent.wait_for_start)
    except EngineError as error:
        parent.send(Refused(str(error), error.exit_code))
    else:
        parent.send(Done(recorder.tally, problem))


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
