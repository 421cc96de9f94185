"""The connections of a load: as many as its requests need; detects that a server is gone.

The longest idle one is used first, so that requests rotate over the replicas behind a balancer of connections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from engines.remote.addresses import Address, AddressRotation
from engines.remote.answer import Failure
from engines.remote.config import RemoteConfig, Target
from engines.remote.connection import LOCAL_LIMITS, Connection, Owner
from engines.remote.socket_poller import SocketPoller

MAX_OPENING = 64  # at a time: a server's queue of connections to accept can be as short as 100
MIN_CLOSINGS = 3  # of reused connections, before the share that the server closes decides anything
FINISHING_NS = 1_000_000_000  # from the last event of a stream to the end of its response, at most


class ConnectionPool:
    """Times are of time.monotonic_ns()."""

    def __init__(self, target: Target, config: RemoteConfig, poller: SocketPoller, owner: Owner) -> None:
        self._target = target
        self._config = config
        self._poller = poller
        self._owner = owner
        self._idle: OrderedDict[Connection, int] = OrderedDict()  # since when; the longest idle one is first
        self._finishing: dict[Connection, int] = {}  # since when: the stream has ended, the response has not
        self._opening: set[Connection] = set()
        self._busy: set[Connection] = set()
        self.addresses = AddressRotation(target.addresses, target.left_out)
        self.opened_ever = 0
        self.used_ever = 0  # of these, by at least one request
        self.peak = 0  # open at once
        self._recent_peaks = (0, 0)  # needed at once: in this idle_timeout_s and the one before
        self._peaks_from_ns = 0
        self._kept = 0  # times a connection was kept for reuse
        self._closed = 0  # times the server then closed it as the next request was sent
        self.unsure = False  # a connection broke during a request, and none has been opened since
        self.refused_ns: int | None = None  # since when no connection can be opened
        self.refusal = ""

    def __len__(self) -> int:
        """Connections that carry a request, or can. A finishing one may never become free, so it does not count."""
        return len(self._idle) + len(self._opening) + len(self._busy)

    @property
    def num_opening(self) -> int:
        return len(self._opening)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def open_up_to(self, total: int) -> Failure | None:
        """Open connections until there are `total`, at most MAX_OPENING at a time; call again for the rest.

        Returns why no connection could be started, if so.
        """
        self._note_need(total)
        if total and self.addresses.lacks(self._connected_to()):  # so that the requests after this one can rotate
            total = max(total, len(self) + 1)
        while len(self) < total and len(self._opening) < MAX_OPENING and self.refused_ns is None:
            failure = self._open()
            if failure is not None:
                return failure
        return None

    def _connected_to(self) -> Iterator[Address]:
        for group in (self._idle, self._opening, self._busy):
            for connection in group:
                yield connection.address

    def take(self) -> Connection | None:
        if not self._idle:
            return None
        if len(self.addresses) == 1:
            connection, _ = self._idle.popitem(last=False)
        else:
            requests = self.addresses.requests
            connection = min(self._idle, key=lambda one: requests[one.address])
            del self._idle[connection]
        self.addresses.requests[connection.address] += 1
        self._busy.add(connection)
        if not connection.used:
            connection.used = True
            self.used_ever += 1
        self._note_need(len(self._busy))
        return connection

    def _note_need(self, needed: int) -> None:
        if needed > self._recent_peaks[0]:
            self._recent_peaks = (needed, self._recent_peaks[1])

    @property
    def blocked(self) -> bool:
        """No connection is idle, and none can be opened."""
        return self.refused_ns is not None and not self._idle

    def opened(self, connection: Connection, *, for_a_request: bool) -> None:
        self._opening.discard(connection)
        self._idle[connection] = connection.opened_ns
        self.peak = max(self.peak, len(self._idle) + len(self._busy) + len(self._finishing))
        connection.reused = not for_a_request  # the server may close an idle one just as a request is sent
        self.opened_ever += 1
        self.refused_ns, self.unsure = None, False

    def give_back(self, connection: Connection, now_ns: int) -> None:
        """Its stream has ended. It becomes idle once the response has ended too."""
        self._busy.discard(connection)
        connection.answer = None
        if not connection.complete:
            self._finishing[connection] = now_ns
        elif connection.reusable and self._worth_keeping and not self._config.one_request_each:
            self._finishing.pop(connection, None)
            self._kept += 1
            self._idle[connection] = connection.free_ns = now_ns
            connection.reused = True
        else:
            self.drop(connection)

    def closed_under_a_request(self) -> None:
        """The server closed a connection that it had declared reusable, as the next request was sent."""
        self._closed += 1

    @property
    def _worth_keeping(self) -> bool:
        """False if the server closes most of them anyway, as llama.cpp's does after every stream."""
        return self._closed < MIN_CLOSINGS or self._closed <= self._kept // 2

    def drop(self, connection: Connection) -> None:
        """Close it, if it is open, and forget it."""
        connection.close()
        self._busy.discard(connection)
        self._opening.discard(connection)
        self._finishing.pop(connection, None)
        self._idle.pop(connection, None)

    def is_idle(self, connection: Connection) -> bool:
        return connection in self._idle

    def is_opening(self, connection: Connection) -> bool:
        return connection in self._opening

    def refused(self, address: Address, why: str, now_ns: int) -> bool:
        """A connection could not be opened. True if no address is left: until one can be opened, check() tries one at a
        time."""
        if self.addresses.leave_out(address, why):
            return False
        self.refusal = why
        if self.refused_ns is None:
            self.refused_ns = now_ns
        return True

    def gone(self, now_ns: int) -> bool:
        return self.refused_ns is not None and now_ns - self.refused_ns > self._config.gone_after_s * 1e9

    def check(self, now_ns: int) -> list[Connection]:
        """Call a few times a second. Tries to connect if the server may be gone; returns those that timed out."""
        for connection in [one for one, since in self._finishing.items() if now_ns - since > FINISHING_NS]:
            self.drop(connection)
        self._close_surplus(now_ns)
        if not self._opening and (self.refused_ns is not None or self.unsure):
            self._open()
        limit_ns = round(self._config.connect_timeout_s * 1e9)
        return [one for one in self._opening if now_ns - one.began_ns > limit_ns]

    def _close_surplus(self, now_ns: int) -> None:
        """Close what has been idle for idle_timeout_s, and what is beyond the most that were needed at once lately."""
        limit_ns = round(self._config.idle_timeout_s * 1e9)
        if now_ns - self._peaks_from_ns > limit_ns:
            self._recent_peaks = (len(self._busy), self._recent_peaks[0] if self._peaks_from_ns else len(self))
            self._peaks_from_ns = now_ns
        kept = max(self._config.kept_connections, len(self.addresses) if len(self.addresses) > 1 else 0)
        while len(self._idle) > 0 and len(self) > kept:
            connection, since_ns = next(iter(self._idle.items()))
            if now_ns - since_ns <= limit_ns and len(self) <= max(*self._recent_peaks, kept):
                return
            self.drop(connection)

    def close(self) -> None:
        for connection in (*self._idle, *self._opening, *self._busy, *self._finishing):
            connection.close()
        for group in (self._idle, self._opening, self._busy, self._finishing):
            group.clear()

    def _open(self) -> Failure | None:
        """Open one to the next address, leaving out those that this machine has no route to."""
        while True:
            address = self.addresses.next(self._connected_to())
            stamps = self._config.kernel_stamps
            try:
                connection = Connection(self._target, self._poller, self._owner, address=address, kernel_stamps=stamps)
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                if error.errno in LOCAL_LIMITS:
                    return Failure("client", why)
                if not self.addresses.leave_out(address, why):
                    return Failure("connect", why)
            else:
                self._opening.add(connection)
                return None
