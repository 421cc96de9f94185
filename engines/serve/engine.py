"""EngineThread: the thread that owns scheduler and executor. Inbox and TokenStream connect it to the event loop.

      event loop's thread                                          engine's thread
    open, cancel ─────────────► Inbox ─── poll, before each step ──────► drive
    TokenStream.push  ◄──────── call_soon_threadsafe(StepUpdate), once a step

Neither thread waits for the other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engines.loop import Instance, WallClock, drive
from engines.scheduling.delivery import Outcome
from engines.scheduling.request import Request
from engines.serve.load import Load, load_of

NEVER_NS = 2**63 - 1


@dataclass(slots=True)
class StepUpdate:
    """What a step, an abort or a rejection changed."""

    at_ns: int
    tokens: list[tuple[TokenStream, int]]
    ended: list[TokenStream]
    load: Load
    admitted: list[TokenStream]  # for the first time
    admitted_ns: int = 0
    preempted: int = 0
    prefix_hit_tokens: int = 0  # of the admitted prompts, taken from the prefix cache
    computed_tokens: int = 0


@dataclass(slots=True)
class _State:
    """Used by the engine's thread alone."""

    streams: dict[int, TokenStream] = field(default_factory=dict)  # of unfinished requests


class EngineThread:
    """Runs the engine. Its public methods are called on the event loop's thread."""

    def __init__(self, instance: Instance, clock: WallClock, *, on_step: Callable[[StepUpdate], None]) -> None:
        """clock: the executor's. on_step: called on the event loop's thread, before the streams get the tokens."""
        self._instance = instance
        self._clock = clock
        self._on_step = on_step
        self._inbox = Inbox(clock.wake)
        self._stopping = threading.Event()
        self._open: set[TokenStream] = set()
        self._state = _State()
        self.draining = False

    def start(self) -> None:
        """On the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[BaseException | None] = (
            self._loop.create_future()
        )  # the error that ended the engine, if any
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    @property
    def ready(self) -> bool:
        return not self.draining and not self.done.done()

    def now_ns(self) -> int:
        """By the clock of all times in a Request."""
        return self._clock.now_ns()

    def open(self, request: Request) -> TokenStream:
        stream = TokenStream(request)
        self._open.add(stream)
        self._inbox.put(stream)
        return stream

    def cancel(self, stream: TokenStream) -> None:
        """Abort the request, unless it has ended: its slot and blocks are free before the next step."""
        if stream in self._open:
            self._open.discard(stream)
            self._inbox.abort(stream.request.index)

    async def stop(self, drain_s: float) -> None:
        """Take no new requests, let running ones end for `drain_s`, then abort them."""
        self.draining = True
        self._inbox.close()
        await asyncio.wait([self.done], timeout=drain_s)
        self.hurry()
        await self.done

    def hurry(self) -> None:
        """Abort all running requests now."""
        self._stopping.set()
        self._inbox.close()

    def _publish(self, step: StepUpdate) -> None:
        for stream in step.admitted:
            stream.admitted_ns = step.admitted_ns
        self._on_step(step)
        for stream, token in step.tokens:
            stream.push(token, step.at_ns)
        for stream in step.ended:
            self._open.discard(stream)
            stream.ended_ns = step.at_ns
            stream.end()

    def _finish(self, error: BaseException | None) -> None:
        self.done.set_result(error)
        for stream in self._open:
            stream.end()
        self._open.clear()

    # -- on the engine's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            drive(self._instance, self._inbox, self._clock, self._accept, self._take, self._stopping.is_set)
        except BaseException as died:
            error = died
        self._loop.call_soon_threadsafe(self._finish, error)

    def _accept(self, stream: TokenStream) -> Request:
        self._state.streams[stream.request.index] = stream
        return stream.request

    def _take(self, outcome: Outcome, now_ns: int) -> None:
        state, row = self._state, outcome.ledger_row
        admitted = self._admitted(row)
        tokens = []
        for request in outcome.delivered:
            stream = state.streams[request.index]
            assert request.tokens is not None
            tokens.append((stream, int(request.tokens[request.prompt_tokens + request.output_tokens - 1])))
        ended = [state.streams.pop(request.index) for request in outcome.finished]
        for stream in ended:
            stream.refused = row is None and stream.request.finish_reason == "rejected"
        if row is None and not ended and not self._instance.idle:
            return
        step = StepUpdate(now_ns, tokens, ended, load_of(self._instance.scheduler), admitted)
        if row is not None:
            step.admitted_ns = int(row["now_ns"])
            step.preempted = int(row["preempted"])
            step.prefix_hit_tokens = int(row["prefix_hit_tokens"])
            step.computed_tokens = int(row["launched_tokens"])
        self._loop.call_soon_threadsafe(self._publish, step)

    def _admitted(self, row: NDArray[np.void] | None) -> list[TokenStream]:
        """The streams whose requests were admitted for the first time in the row's step."""
        if row is None or not row["admitted"]:
            return []
        return [stream for stream in self._state.streams.values() if _first_admission(stream.request) == row["step"]]


def _first_admission(request: Request) -> int:
    """The step that admitted the request first; 0 if none has yet."""
    return request.stints[0].admitted if request.stints else request.admitted_step


class TokenStream:
    """The tokens of one request on their way from the engine to an HTTP handler.

    Made and read on the event loop's thread. The engine's thread touches `request` alone, until it ends.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.admitted_ns: int | None = None  # for the first time
        self.first_ns: int | None = None  # when the first token arrived
        self.last_ns: int | None = None  # when the newest token arrived
        self.ended_ns: int | None = None
        self.ended = False
        self.answered = False  # its answer is complete, maybe by a stop string, with which the engine goes on a little
        self.refused = False  # at submission: the request can never run here
        self._tokens: list[int] = []
        self._changed = asyncio.Event()

    def push(self, token: int, at_ns: int) -> None:
        self.last_ns = at_ns
        if self.first_ns is None:
            self.first_ns = at_ns
        self._tokens.append(token)
        self._changed.set()

    def end(self) -> None:
        self.ended = True
        self._changed.set()

    async def wait_tokens(self) -> list[int]:
        """Wait for a change. Returns the tokens since the last call; `ended` says whether more will come.

        Several tokens at once mean that the reader was slower than the engine, which never waits for it.
        """
        await self._changed.wait()
        self._changed.clear()
        tokens, self._tokens = self._tokens, []
        return tokens


class Inbox:
    """A Source: requests arrive on the event loop's thread and are polled before each step."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """wake: ends the wait of an idle engine."""
        self._wake = wake
        self._lock = threading.Lock()
        self._new: list[TokenStream] = []
        self._aborted: list[int] = []
        self._closed = False

    def put(self, stream: TokenStream) -> None:
        with self._lock:
            self._new.append(stream)
        self._wake()

    def abort(self, index: int) -> None:
        """The engine drops the request before it plans another step. No effect if it has ended."""
        with self._lock:
            self._aborted.append(index)
        self._wake()

    def close(self) -> None:
        """No more requests will come."""
        with self._lock:
            self._closed = True
        self._wake()

    def poll(self, now_ns: int) -> tuple[list[TokenStream], list[int]]:
        """(new requests, indices to abort) since the last poll. A request that was cancelled meanwhile is in both."""
        with self._lock:
            new, self._new = self._new, []
            aborted, self._aborted = self._aborted, []
        return new, aborted

    def next_due_ns(self) -> int:
        """No request is scheduled ahead: `put` wakes the engine."""
        return NEVER_NS

    def completed(self, index: int, now_ns: int) -> None:
        """The stream carries the end of a request."""

    @property
    def exhausted(self) -> bool:
        with self._lock:
            return self._closed and not self._new
