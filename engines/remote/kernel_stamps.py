"""Arrival times of bytes from the kernel, which a busy process does not delay.

Linux stamps a packet when it receives it (SO_TIMESTAMPING) and returns the stamp with the bytes. A late read still has
the right time, unless further packets of the connection are merged into it: then it has the time of the newest.
Elsewhere the time is that of the read.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

_SO_TIMESTAMPING = 37  # asm-generic/socket.h; also the type of the control message
_RX_SOFTWARE = 1 << 3  # stamp packets received
_SOFTWARE = 1 << 4  # and return the stamps
_FLAGS = struct.pack("i", _RX_SOFTWARE | _SOFTWARE)
_SECONDS_NS = struct.Struct("qq")  # the first of three timespecs: the software stamp
_TIMESPECS_BYTES = 48
CONTROL_BYTES = socket.CMSG_SPACE(_TIMESPECS_BYTES) if hasattr(socket, "CMSG_SPACE") else 0

SUPPORTED = sys.platform == "linux" and sys.maxsize > 2**32

ControlMessages = list[tuple[int, int, bytes]]


def enable_stamps(sock: socket.socket) -> bool:
    """Make the kernel stamp what the socket receives; False where it cannot."""
    if not SUPPORTED:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _FLAGS)
    except OSError:
        return False
    return True


def arrival_ns(control: ControlMessages, read_ns: int) -> int | None:
    """The kernel's stamp on the monotonic clock, or None without one. read_ns: time.monotonic_ns() at the read.

    The kernel stamps by the wall clock, so the offset between the clocks is taken at each read: a step of the wall
    clock affects only bytes that wait to be read at that moment.
    """
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPING and len(data) >= _SECONDS_NS.size:
            seconds, ns = _SECONDS_NS.unpack_from(data)
            if seconds:
                late_ns: int = time.time_ns() - (seconds * 1_000_000_000 + ns)
                return read_ns - max(late_ns, 0)
    return None
