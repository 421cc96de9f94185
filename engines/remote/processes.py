"""Who belongs to a session, and who listens on a port: from /proc, so on Linux; elsewhere nothing is known."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"  # the kernel's word in /proc/net/tcp


def processes_of(session: int) -> set[int]:
    """The living processes of a session."""
    found = set()
    for pid in _all_processes():
        with suppress(OSError):
            if os.getsid(pid) == session and not _is_zombie(pid):
                found.add(pid)
    return found


def listener_of(port: int) -> int | None:
    """A process that listens on the port. None where nobody does, or where it is not ours to see."""
    inodes = _listening_inodes(port)
    for pid in _all_processes() if inodes else ():
        with suppress(OSError):  # another user's, or gone
            for handle in (PROC / str(pid) / "fd").iterdir():
                if os.readlink(handle) in inodes:
                    return pid
    return None


def _all_processes() -> list[int]:
    return [int(one.name) for one in PROC.iterdir() if one.name.isdigit()] if PROC.is_dir() else []


def _is_zombie(pid: int) -> bool:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _listening_inodes(port: int) -> set[str]:
    """As the links in /proc/PID/fd name them."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()  # number, local address:port, remote, state, ..., inode at 9
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    return inodes
