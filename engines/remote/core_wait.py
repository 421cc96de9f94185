"""How long a thread was kept waiting for a core by other work on the machine: what looks like a stall, and is none."""

from __future__ import annotations

from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a core, ns ready to run but without one, time slices


def core_wait_ns() -> int | None:
    """Of the calling thread, since it began; None where the kernel does not say."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
