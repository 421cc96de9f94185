"""LoadClient: sends requests at their pacing and reads the answers, in one thread that does nothing else.

due(now) --> waiting --> [connection: send ... read, read, read] --> ended --> Recorder
                ^                     |
                +-- re-sent, once ----+  a reused connection was closed before any byte of the answer
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from engines.base import EngineError
from engines.remote.answer import Answer, Interpret
from engines.remote.bodies import BodyWindow
from engines.remote.config import RemoteConfig, Target
from engines.remote.connection import Connection
from engines.remote.failure import Failure
from engines.remote.pool import Pool
from engines.remote.reactor import OnReady, Reactor
from engines.remote.recorder import Exchange, Recorder
from engines.remote.tally import Tally
from workloads.pacing import Due

Ending = Literal["finished", "stopped", "gone"]

TICK_NS = 100_000_000  # how often time-outs, the observer's wish to stop and the server's presence are looked at
SPARE = 32  # connections kept open beyond the load, where nothing caps it
BURST = 16  # sends before the sockets are looked at again: what arrived must not wait for a long row of sends
NEVER = 2**63 - 1


class Schedule(Protocol):
    """What a Pacing can do, or a part of one. Times in ns since the run began."""

    @property
    def concurrency(self) -> int | None: ...

    @property
    def deadline_ns(self) -> int | None: ...

    @property
    def exhausted(self) -> bool: ...

    def due(self, now_ns: int) -> list[Due]: ...

    def next_due_ns(self) -> int | None: ...

    def completed(self, index: int, now_ns: int) -> None: ...


@dataclass(frozen=True)
class Load:
    """What to send. request(i): its bytes, head and all."""

    request: Callable[[int], bytes]
    window: BodyWindow
    pacing: Schedule
    recorder: Recorder


class LoadClient:
    """One load after another, over the same connections. Times are of time.monotonic_ns()."""

    def __init__(self, target: Target, config: RemoteConfig, interpret: Interpret, tally: Tally) -> None:
        self._config = config
        self._interpret = interpret
        self._tally = tally
        self._reactor = Reactor()
        self._pool = Pool(target, config, self._reactor, self)
        self._waiting: deque[Exchange] = deque()  # for a connection
        self._busy: dict[Connection, Exchange] = {}
        self._ended: deque[tuple[Exchange, Failure | None, int]] = deque()  # to be recorded when there is time
        self._load: Load | None = None
        self._start_ns = 0
        self._next_due_ns = NEVER

    @property
    def refusal(self) -> str:
        """Why no connection can be opened, after prepare() or run() said so."""
        return self._pool.refusal

    def prepare(self, load: Load, connections: int) -> bool:
        """Everything that must not cost time once the clock runs. False if the server takes no connection.

        Raises EngineError when it is this machine that has no more to give.
        """
        while not load.window.full:
            load.window.make_one()
        deadline_ns = time.monotonic_ns() + round(self._config.connect_timeout_s * 1e9)
        while self._pool.num_idle < connections and time.monotonic_ns() < deadline_ns:
            failure = self._pool.open_up_to(connections)
            if failure is not None:
                raise EngineError(f"cannot open {connections} connections: {failure.message}")
            for on_ready, events in self._reactor.ready(deadline_ns):
                on_ready(events)
            if self._pool.refused_ns is not None:
                return False
        if self._pool.num_idle == 0 and connections:
            self._pool.refusal = f"no connection within {self._config.connect_timeout_s:g} s"
            return False
        return True

    def run(self, load: Load, start_ns: int) -> Ending:
        """Until every request has ended, the recorder wants to stop, the deadline is over, or the server is gone.

        start_ns: time zero of the schedule.
        """
        self._load = load
        self._start_ns = load.recorder.start_ns = start_ns
        cpu_ns = time.process_time_ns()
        self._look_ahead()
        ending = self._loop(load)
        self._wind_up()
        self._tally.cpu_ns += time.process_time_ns() - cpu_ns
        self._tally.wall_ns += time.monotonic_ns() - start_ns
        self._tally.connections = self._pool.opened_ever
        return ending

    def close(self) -> None:
        self._pool.close()
        self._reactor.close()

    def _loop(self, load: Load) -> Ending:
        tick_ns = woke_ns = time.monotonic_ns()
        while True:
            now_ns = time.monotonic_ns()
            if now_ns >= self._next_due_ns:
                self._dispatch(now_ns)
            if now_ns >= tick_ns:
                ending = self._tick(load, now_ns)
                if ending is not None:
                    return ending
                tick_ns = now_ns + TICK_NS
            if self._over(load):
                return "finished"
            has_chores = self._can_send or self._ended or not load.window.full
            self._tally.round_ns.add(time.monotonic_ns() - woke_ns)
            ready = self._reactor.ready(now_ns if has_chores else min(self._next_due_ns, tick_ns))
            woke_ns = time.monotonic_ns()
            self._read_all(ready)
            self._chore(load)

    def _read_all(self, ready: list[tuple[OnReady, int]]) -> None:
        for on_ready, events in ready:
            on_ready(events)
            now_ns = time.monotonic_ns()
            if now_ns >= self._next_due_ns:  # a send does not wait for the end of a long row of reads
                self._dispatch(now_ns)

    def _chore(self, load: Load) -> None:
        """One thing that can wait until the sockets have been looked at, and must not keep them waiting long."""
        if self._can_send:
            self._send_waiting()
        elif self._ended:
            load.recorder.ended(*self._ended.popleft())
        elif not load.window.full:
            load.window.make_one()

    @property
    def _can_send(self) -> bool:
        return bool(self._waiting) and self._pool.num_idle > 0

    def _over(self, load: Load) -> bool:
        unsettled = self._pool.unsure or self._pool.refused_ns is not None
        return load.pacing.exhausted and not self._busy and not self._waiting and not unsettled

    def _tick(self, load: Load, now_ns: int) -> Ending | None:
        deadline_ns = load.pacing.deadline_ns
        if load.recorder.stopping:
            return "stopped"
        if deadline_ns is not None and now_ns >= self._start_ns + deadline_ns:
            return "finished"
        for connection in self._pool.check(now_ns):
            self._pool.drop(connection)
            self.lost(connection, Failure("connect", f"no connection within {self._config.connect_timeout_s:g} s"))
        self._time_out(now_ns)
        if self._pool.gone(now_ns) and not self._busy:
            self._fail_waiting(Failure("connect", self._pool.refusal))
            return "gone"
        self._look_ahead()  # a server that refused may be back
        self._top_up()
        load.recorder.sample(now_ns, [*self._busy.values(), *self._waiting])
        return None

    def _time_out(self, now_ns: int) -> None:
        limit_ns = round(self._config.read_timeout_s * 1e9)
        failure = Failure("timeout", f"no byte for {self._config.read_timeout_s:g} s")
        for connection, exchange in list(self._busy.items()):
            since_ns = exchange.answer.last_byte_ns or exchange.sent_ns or now_ns
            if now_ns - since_ns > limit_ns:
                self._pool.drop(connection)
                self._finish(connection, exchange, failure)

    # From due to sent.

    def _look_ahead(self) -> None:
        """Note when the next request is due; while there is no way to send it, none is."""
        assert self._load is not None
        due_ns = None if self._pool.blocked else self._load.pacing.next_due_ns()
        self._next_due_ns = NEVER if due_ns is None else self._start_ns + due_ns

    def _dispatch(self, now_ns: int) -> None:
        assert self._load is not None
        for due in self._load.pacing.due(now_ns - self._start_ns):
            exchange = Exchange(
                index=due.index,
                scheduled_ns=self._start_ns + due.scheduled_ns,
                ready_ns=self._start_ns + due.sent_ns,
                taken_ns=now_ns,
                answer=Answer(self._interpret),
            )
            self._waiting.append(exchange)
        self._look_ahead()
        self._send_waiting()

    def _send_waiting(self) -> None:
        for _ in range(min(len(self._waiting), BURST)):
            connection = self._pool.take()
            if connection is None:
                self._top_up()
                return
            self._send(self._waiting.popleft(), connection)

    def _send(self, exchange: Exchange, connection: Connection) -> None:
        assert self._load is not None
        load = self._load
        request = load.request(exchange.index) if exchange.resent else load.window.take(exchange.index)
        self._busy[connection] = exchange
        sent_ns = connection.send(request, exchange.answer)
        if exchange.sent_ns is None:
            exchange.sent_ns = sent_ns
            start_ns = self._start_ns
            self._tally.sent_one(exchange.scheduled_ns - start_ns, exchange.ready_ns - start_ns, sent_ns - start_ns)

    def _top_up(self) -> None:
        """Open what the load needs and a few more. If we cannot, what waits in vain has failed."""
        assert self._load is not None
        needed = len(self._busy) + len(self._waiting)
        cap = self._load.pacing.concurrency
        failure = self._pool.open_up_to(max(needed, min(needed + SPARE, cap or NEVER)))
        if failure is not None:
            self._fail_waiting(failure)

    def _fail_waiting(self, failure: Failure) -> None:
        """The requests for which no connection is being opened any more."""
        for _ in range(len(self._waiting) - self._pool.num_opening):
            self._end(self._waiting.popleft(), failure, time.monotonic_ns())

    # From sent to ended; the connections call these.

    def opened(self, connection: Connection) -> None:
        self._pool.opened(connection, for_a_request=bool(self._waiting))
        if self._load is not None:
            self._send_waiting()
            self._look_ahead()

    def read(self, connection: Connection, read_ns: int, arrived_ns: int | None) -> None:
        self._tally.reads += 1
        if arrived_ns is not None:
            self._tally.kernel_stamped += 1
            self._tally.read_lag_ns.add(read_ns - arrived_ns)
        exchange = self._busy.get(connection)
        if exchange is None:  # between requests, or the rest of a response whose answer is over
            if not connection.reusable:
                self._pool.drop(connection)
            elif connection.complete and not self._pool.is_idle(connection):
                self._pool.give_back(connection, read_ns)
        elif connection.complete or exchange.answer.done:
            self._pool.give_back(connection, read_ns)
            self._finish(connection, exchange, None)

    def lost(self, connection: Connection, failure: Failure) -> None:
        opening = self._pool.is_opening(connection)
        self._pool.drop(connection)
        exchange = self._busy.get(connection)
        if opening:
            self._pool.refused(failure.message, time.monotonic_ns())
            self._fail_waiting(failure)
        elif exchange is not None:
            self._pool.unsure = True
            if connection.reused and not connection.heard and not exchange.resent:
                del self._busy[connection]
                exchange.resent = True
                self._tally.resends += 1
                self._waiting.appendleft(exchange)
                self._send_waiting()
            else:
                self._finish(connection, exchange, failure)
        if self._load is not None:
            self._look_ahead()

    def _finish(self, connection: Connection, exchange: Exchange, broken: Failure | None) -> None:
        del self._busy[connection]
        end_ns = exchange.answer.last_byte_ns
        self._end(exchange, exchange.answer.end(broken), time.monotonic_ns() if broken or end_ns is None else end_ns)
        self._send_waiting()

    def _end(self, exchange: Exchange, failure: Failure | None, end_ns: int) -> None:
        assert self._load is not None
        self._ended.append((exchange, failure, end_ns))
        self._load.pacing.completed(exchange.index, end_ns - self._start_ns)
        self._look_ahead()

    def _wind_up(self) -> None:
        """Record what has ended, and cancel what has not."""
        assert self._load is not None
        now_ns = time.monotonic_ns()
        while self._ended:
            self._load.recorder.ended(*self._ended.popleft())
        for connection in self._busy:
            self._pool.drop(connection)
        for exchange in (*self._busy.values(), *self._waiting):
            self._load.recorder.ended(exchange, None, now_ns, cancelled=True)
            self._load.pacing.completed(exchange.index, now_ns - self._start_ns)
        self._busy.clear()
        self._waiting.clear()
        self._load = None
