"""SocketPoller: waits until sockets are ready or until a time, accurate to some tens of microseconds.

asyncio rounds its timers up to the millisecond, which would make every send 0.6 ms late.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE

OnReady = Callable[[int], None]  # gets EVENT_READ | EVENT_WRITE, whichever are ready

__all__ = ["EVENT_READ", "EVENT_WRITE", "OnReady", "SocketPoller"]


class SocketPoller:
    """All times are of time.monotonic_ns()."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timer = _TimerFd.make()
        if self._timer is not None:
            self._selector.register(self._timer.fd, EVENT_READ, self._timer.clear)

    @property
    def precise(self) -> bool:
        """Whether waits end within some tens of microseconds of their time, rather than up to 1 ms late."""
        return self._timer is not None

    def watch(self, fd: int, events: int, on_ready: OnReady) -> None:
        """Return on_ready from ready() when fd can be read or written; replaces an earlier watch of fd."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, on_ready)
        else:
            self._selector.register(fd, events, on_ready)

    def forget(self, fd: int) -> None:
        """Stop watching fd. Call it before the file is closed."""
        self._selector.unregister(fd)

    def ready(self, until_ns: int) -> list[tuple[OnReady, int]]:
        """Wait until something is ready, at most until `until_ns`; [] if that comes first."""
        wait_ns = until_ns - time.monotonic_ns()
        timeout: float | None = max(wait_ns, 0) / 1e9
        if self._timer is not None and wait_ns > 0:
            self._timer.set(until_ns)
            timeout = None
        return [(key.data, mask) for key, mask in self._selector.select(timeout)]

    def close(self) -> None:
        if self._timer is not None:
            os.close(self._timer.fd)
        self._selector.close()


class _TimerFd:
    """Linux's timerfd on CLOCK_MONOTONIC, at absolute times. Python has it from 3.13 on; before, through libc."""

    _ABSTIME = 1
    _ITIMERSPEC = struct.Struct("qqqq")  # interval s, ns; value s, ns

    def __init__(self, libc: ctypes.CDLL, fd: int) -> None:
        self._libc = libc
        self.fd = fd
        self._set_ns = 0

    @classmethod
    def make(cls) -> _TimerFd | None:
        if sys.platform != "linux" or sys.maxsize <= 2**32:
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:  # a libc without it
            return None
        return cls(libc, fd) if fd >= 0 else None

    def set(self, at_ns: int) -> None:
        if at_ns == self._set_ns:
            return
        spec = self._ITIMERSPEC.pack(0, 0, *divmod(at_ns, 1_000_000_000))
        if self._libc.timerfd_settime(self.fd, self._ABSTIME, spec, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._set_ns = at_ns

    def clear(self, _: int) -> None:
        """Read the expiry, or the file stays ready."""
        self._set_ns = 0
        with suppress(BlockingIOError):  # set again since it expired
            os.read(self.fd, 8)
