"""Ends a launched server when the process that launched it is gone, however it ended: a SIGKILL runs no `finally`.

cbbench ── pipe ──► python -m engines.remote.launch_guard SESSION      the pipe ends with cbbench
"""

from __future__ import annotations

import sys

from engines.remote.launch import end_session


def main() -> None:
    session = int(sys.argv[1])
    sys.stdin.buffer.read()
    end_session(session)


if __name__ == "__main__":
    main()
