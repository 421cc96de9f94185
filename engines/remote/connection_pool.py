"""Connections, opened ahead of the load so that no request waits for one, and whether the server still takes any."""

from __future__ import annotations

from engines.remote.answer import Failure
from engines.remote.config import RemoteConfig, Target
from engines.remote.connection import OUT_OF_OURS, Connection, Owner
from engines.remote.socket_poller import SocketPoller

MAX_OPENING = 64  # at a time: a server's queue of connections to accept can be as short as 100
CLOSINGS = 3  # of kept connections under a request, before most of them can mean something
FINISHING_NS = 1_000_000_000  # how long after its last event a response may take to end


class ConnectionPool:
    """Times are of time.monotonic_ns()."""

    def __init__(self, target: Target, config: RemoteConfig, poller: SocketPoller, owner: Owner) -> None:
        self._target = target
        self._config = config
        self._poller = poller
        self._owner = owner
        self._idle: list[Connection] = []  # the last used is taken first, while the server still keeps it open
        self._finishing: dict[Connection, int] = {}  # the answer is over, its response is not: since when
        self._opening: set[Connection] = set()
        self._busy: set[Connection] = set()
        self.opened_ever = 0
        self._kept = 0  # times that a connection was kept for another request
        self._closed = 0  # and that the server closed it under that one
        self.unsure = False  # a connection broke under a request, and none has been opened since
        self.refused_ns: int | None = None  # since when none can be opened
        self.refusal = ""

    def __len__(self) -> int:
        """Those that carry a request, or can; one that is finishing may never end, so it is not counted on."""
        return len(self._idle) + len(self._opening) + len(self._busy)

    @property
    def num_opening(self) -> int:
        return len(self._opening)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def open_up_to(self, total: int) -> Failure | None:
        """Open connections until there are `total`, some at a time; the rest when called again. Failure: of ours."""
        while len(self) < total and len(self._opening) < MAX_OPENING and self.refused_ns is None:
            failure = self._open()
            if failure is not None:
                return failure
        return None

    def take(self) -> Connection | None:
        if not self._idle:
            return None
        connection = self._idle.pop()
        self._busy.add(connection)
        return connection

    @property
    def blocked(self) -> bool:
        """There is no connection to send on, and none can be opened."""
        return self.refused_ns is not None and not self._idle

    def opened(self, connection: Connection, *, for_a_request: bool) -> None:
        self._opening.discard(connection)
        self._idle.append(connection)
        connection.reused = not for_a_request  # one that waits idle may be closed by the server while we send on it
        self.opened_ever += 1
        self.refused_ns, self.unsure = None, False

    def give_back(self, connection: Connection, now_ns: int) -> None:
        """Its answer is over. It serves again once its response is, too."""
        self._busy.discard(connection)
        connection.answer = None
        if not connection.complete:
            self._finishing[connection] = now_ns
        elif connection.reusable and self._worth_keeping:
            self._finishing.pop(connection, None)
            self._kept += 1
            self._idle.append(connection)
            connection.reused = True
        else:
            self.drop(connection)

    def closed_under_a_request(self) -> None:
        """The server closed a connection that it had said could be used again, as the request came."""
        self._closed += 1

    @property
    def _worth_keeping(self) -> bool:
        """Not if the server closes most of them all the same: llama.cpp's does, after every stream."""
        return self._closed < CLOSINGS or self._closed <= self._kept // 2

    def drop(self, connection: Connection) -> None:
        """Close it, or note that it is closed."""
        connection.close()
        self._busy.discard(connection)
        self._opening.discard(connection)
        self._finishing.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def is_idle(self, connection: Connection) -> bool:
        return connection in self._idle

    def is_opening(self, connection: Connection) -> bool:
        return connection in self._opening

    def refused(self, why: str, now_ns: int) -> None:
        """A connection could not be opened. While that lasts, one is tried at a time, in check()."""
        self.refusal = why
        if self.refused_ns is None:
            self.refused_ns = now_ns

    def gone(self, now_ns: int) -> bool:
        return self.refused_ns is not None and now_ns - self.refused_ns > self._config.gone_after_s * 1e9

    def check(self, now_ns: int) -> list[Connection]:
        """Call now and then. Tries whether a server that is in doubt is there; returns what took too long to open."""
        for connection in [one for one, since in self._finishing.items() if now_ns - since > FINISHING_NS]:
            self.drop(connection)
        if not self._opening and (self.refused_ns is not None or self.unsure):
            self._open()
        limit_ns = round(self._config.connect_timeout_s * 1e9)
        return [one for one in self._opening if now_ns - one.began_ns > limit_ns]

    def close(self) -> None:
        for connection in (*self._idle, *self._opening, *self._busy, *self._finishing):
            connection.close()
        for group in (self._idle, self._opening, self._busy, self._finishing):
            group.clear()

    def _open(self) -> Failure | None:
        try:
            connection = Connection(self._target, self._poller, self._owner, kernel_stamps=self._config.kernel_stamps)
        except OSError as error:
            why = error.strerror or str(error)
            return Failure("client" if error.errno in OUT_OF_OURS else "connect", why.lower())
        self._opening.add(connection)
        return None
