"""Dispatcher: takes the requests of a load from due to ended.

due(now) --> waiting --> [connection: send ... read, read, read] --> ended --> recorded
                ^                     |                |
                +-- re-sent, once ----+                |  a reused connection was closed before any byte of the response
                +-- retries <--------------- 429 ------+  where `retry_429` allows it
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engines.remote.answer import Failure, Interpret, StreamedAnswer
from engines.remote.config import RemoteConfig, Target
from engines.remote.connection import Connection
from engines.remote.connection_pool import ConnectionPool
from engines.remote.load_recorder import Exchange, LoadRecorder
from engines.remote.record_backlog import NEVER, RecordBacklog
from engines.remote.request_bodies import BodyWindow
from engines.remote.retries import Retries
from engines.remote.socket_poller import SocketPoller
from workloads.pacing import Due

BURST = 16  # sends before the next poll, so that bytes that arrived do not wait for many sends


class Schedule(Protocol):
    """A Pacing, or a Partition of one. Times in ns since the run began."""

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
    """What to send and when. request(i): the bytes of request i, with the HTTP headers."""

    request: Callable[[int], bytes]
    window: BodyWindow
    pacing: Schedule
    recorder: LoadRecorder


class Dispatcher:
    """Owned by the LoadClient, whose event loop calls the public methods. Times are of time.monotonic_ns()."""

    def __init__(
        self, target: Target, config: RemoteConfig, interpret: Interpret, poller: SocketPoller, load: Load
    ) -> None:
        self._config = config
        self._interpret = interpret
        self._load = load
        self._stats = load.recorder.stats
        self.pool = ConnectionPool(target, config, poller, self)
        self._waiting: deque[Exchange] = deque()  # for a connection
        self._busy: dict[Connection, Exchange] = {}
        self._retries = Retries(config.retry_429)
        self.ended = RecordBacklog(load.recorder)
        self._start_ns: int | None = None
        self.next_due_ns = NEVER

    def start(self, start_ns: int) -> None:
        """start_ns: time zero of the schedule."""
        self._start_ns = self._load.recorder.start_ns = start_ns
        self._update_next_due()

    @property
    def in_flight(self) -> list[Exchange]:
        return [*self._busy.values(), *self._waiting, *self._retries.waiting]

    @property
    def over(self) -> bool:
        """All requests have ended, no more will be due, and the server accepts connections."""
        unsettled = self.pool.unsure or self.pool.refused_ns is not None
        left = self._busy or self._waiting or self._retries
        return self._load.pacing.exhausted and not left and not unsettled

    @property
    def has_background_work(self) -> bool:
        return self._can_send or bool(self.ended) or not self._load.window.full

    def do_background_work(self) -> None:
        """One short piece of work that can wait until the ready sockets have been read."""
        if self._can_send:
            self._send_waiting()
        elif self.ended:
            self.ended.record_one()
        elif not self._load.window.full:
            self._load.window.make_one()

    def check(self, now_ns: int) -> bool:
        """Time-outs, and whether the server is gone (False). Call it a few times a second."""
        for connection in self.pool.check(now_ns):
            self.lost(connection, Failure("connect", f"no connection within {self._config.connect_timeout_s:g} s"))
        self._time_out(now_ns)
        if self.pool.gone(now_ns) and not self._busy:
            self._fail_waiting(Failure("connect", self.pool.refusal))
            return False
        self._update_next_due()  # a server that refused connections may accept them again
        self._open_connections()
        return True

    def finish(self) -> None:
        """Record the ended requests, cancel the others, and close every connection."""
        now_ns = time.monotonic_ns()
        self.ended.record_all()
        for exchange in self.in_flight:
            self._load.recorder.ended(exchange, None, now_ns, cancelled=True)
            self._load.pacing.completed(exchange.index, now_ns - self._zero_ns)
        self._busy.clear()
        self._waiting.clear()
        self.pool.close()

    # From due to sent.

    def dispatch(self, now_ns: int) -> None:
        """Take up the requests that are due, and send them if connections are idle."""
        for due in self._load.pacing.due(now_ns - self._zero_ns):
            exchange = Exchange(
                index=due.index,
                scheduled_ns=self._zero_ns + due.scheduled_ns,
                ready_ns=self._zero_ns + due.sent_ns,
                taken_ns=now_ns,
                answer=self._new_answer(due.index),
            )
            self._waiting.append(exchange)
        for due_ns, exchange in self._retries.due(now_ns):
            exchange.ready_ns, exchange.taken_ns, exchange.sent_ns = due_ns, now_ns, None
            exchange.answer = self._new_answer(exchange.index)
            self._waiting.append(exchange)
        self._update_next_due()
        self._send_waiting()

    def _new_answer(self, index: int) -> StreamedAnswer:
        planned_tokens = self._load.recorder.planned_tokens(index)
        return StreamedAnswer(self._interpret, planned_tokens, whole=not self._config.stream)

    def _update_next_due(self) -> None:
        """Update next_due_ns: NEVER while no request can be sent."""
        if self.pool.blocked:
            self.next_due_ns = NEVER
            return
        due_ns = self._load.pacing.next_due_ns()
        self.next_due_ns = min(NEVER if due_ns is None else self._zero_ns + due_ns, self._retries.next_due_ns)

    @property
    def _can_send(self) -> bool:
        return bool(self._waiting) and self.pool.num_idle > 0

    def _send_waiting(self) -> None:
        for _ in range(min(len(self._waiting), BURST)):
            connection = self.pool.take()
            if connection is None:
                self._open_connections()
                return
            self._send(self._waiting.popleft(), connection)

    def _send(self, exchange: Exchange, connection: Connection) -> None:
        load = self._load
        again = exchange.resent or exchange.refusals > 0
        request = load.request(exchange.index) if again else load.window.take(exchange.index)
        self._busy[connection] = exchange
        sent_ns = connection.send(request, exchange.answer)
        if exchange.sent_ns is None:
            exchange.sent_ns = sent_ns
            zero_ns = self._zero_ns
            ready_ns = exchange.ready_ns
            if connection.free_ns > exchange.taken_ns:  # waiting for a handshake is not a delay of the client's
                waited_ns = connection.free_ns - exchange.taken_ns
                self._stats.connection_wait_ns.add(waited_ns)
                ready_ns += waited_ns
            if not exchange.refusals:
                self._stats.count_sent(exchange.scheduled_ns - zero_ns, ready_ns - zero_ns, sent_ns - zero_ns)

    def _open_connections(self) -> None:
        """Open the connections that the load needs. If none can be opened, waiting requests fail."""
        needed = len(self._busy) + len(self._waiting)
        kept = 0 if self._load.pacing.exhausted else self._config.kept_connections
        failure = self.pool.open_up_to(max(needed, kept))
        if failure is not None:
            self._fail_waiting(failure)

    def _fail_waiting(self, failure: Failure) -> None:
        """Fail those waiting requests for which no connection is being opened."""
        for _ in range(len(self._waiting) - self.pool.num_opening):
            self._end(self._waiting.popleft(), failure, time.monotonic_ns())

    # From sent to ended. The connections call these.

    def opened(self, connection: Connection) -> None:
        self.pool.opened(connection, for_a_request=bool(self._waiting))
        self._stats.handshake_ns.add(connection.opened_ns - connection.began_ns)
        if self._start_ns is not None:
            self._send_waiting()
            self._update_next_due()

    def read(self, connection: Connection, read_ns: int, arrived_ns: int | None) -> None:
        self._stats.reads += 1
        if arrived_ns is not None:
            self._stats.kernel_stamped += 1
            self._stats.read_lag_ns.add(read_ns - arrived_ns)
        exchange = self._busy.get(connection)
        if exchange is None:  # between requests, or the rest of a response whose stream has ended
            if not connection.reusable:
                self.pool.drop(connection)
            elif connection.complete and not self.pool.is_idle(connection):
                self.pool.give_back(connection, read_ns)
        elif connection.complete or exchange.answer.done:
            self.pool.give_back(connection, read_ns)
            self._finish(connection, exchange, None)

    def lost(self, connection: Connection, failure: Failure) -> None:
        opening = self.pool.is_opening(connection)
        self.pool.drop(connection)
        exchange = self._busy.get(connection)
        if opening:
            if self.pool.refused(connection.address, failure.message, time.monotonic_ns()):
                self._fail_waiting(failure)
            elif self._start_ns is not None:
                self._open_connections()
        elif exchange is not None:
            self.pool.unsure = True
            if connection.reused and not connection.heard and not exchange.resent:
                self._send_again(connection, exchange)
            else:
                self._finish(connection, exchange, failure)
        if self._start_ns is not None:
            self._update_next_due()

    def _send_again(self, connection: Connection, exchange: Exchange) -> None:
        """Send again after the only failure in which the server cannot have seen the request: it had closed before."""
        del self._busy[connection]
        exchange.resent = True
        self._stats.resends += 1
        self.pool.closed_under_a_request()
        self._waiting.appendleft(exchange)
        self._send_waiting()

    def _time_out(self, now_ns: int) -> None:
        limit_ns = round(self._config.read_timeout_s * 1e9)
        failure = Failure("timeout", f"no byte for {self._config.read_timeout_s:g} s")
        whole_s = self._config.request_timeout_s
        whole_ns = None if whole_s is None else round(whole_s * 1e9)
        late = Failure("timeout", f"the response had not ended {whole_s:g} s after sending" if whole_s else "")
        for connection, exchange in list(self._busy.items()):
            since_ns = exchange.answer.last_byte_ns or exchange.sent_ns or now_ns
            if now_ns - since_ns > limit_ns:
                self.pool.drop(connection)
                self._finish(connection, exchange, failure)
            elif whole_ns is not None and now_ns - (exchange.sent_ns or now_ns) > whole_ns:
                self.pool.drop(connection)
                self._finish(connection, exchange, late)

    def _finish(self, connection: Connection, exchange: Exchange, broken: Failure | None) -> None:
        del self._busy[connection]
        end_ns = exchange.answer.last_byte_ns
        if broken is None and self._retries.accepts(exchange):
            self._stats.count_retry(self._retries.add(exchange, time.monotonic_ns()), first=exchange.refusals == 1)
            self._update_next_due()
        else:
            ended_ns = time.monotonic_ns() if broken or end_ns is None else end_ns
            self._end(exchange, exchange.answer.end(broken), ended_ns)
        self._send_waiting()

    def _end(self, exchange: Exchange, failure: Failure | None, end_ns: int) -> None:
        if failure is not None:
            failure = Failure(failure.kind, self._config.hide(failure.message))
        self.ended.add(exchange, failure, end_ns)
        self._load.pacing.completed(exchange.index, end_ns - self._zero_ns)
        self._update_next_due()

    @property
    def _zero_ns(self) -> int:
        assert self._start_ns is not None, "start() comes first"
        return self._start_ns
