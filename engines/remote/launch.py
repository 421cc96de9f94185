"""A server of our own, launched for as long as a measurement takes.

free port --> start, in a session of its own --> healthy, and ours? --> measure --> end all its processes

It has a session of its own, not only a process: Ctrl-C then reaches cbbench alone, and every process the server
started can be found and ended, also one whose parent has ended. A guard (launch_guard.py) does that where cbbench is
killed.
"""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

from workloads.errors import CbbenchError, ExitCode

HOST = "127.0.0.1"
HEALTH_PERIOD_S = 0.1
HEALTH_TIMEOUT_S = 2.0
END_PERIOD_S = 0.02
GRACE_S = 10.0  # from SIGTERM to SIGKILL
TAIL_LINES = 12
TAIL_BYTES = 20_000
LINE_CHARACTERS = 200
SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # would end this process at once and leave the server running


def processes_of(session: int) -> set[int]:
    """The ids of the living processes of a session."""
    found = set()
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):  # it has ended, or belongs to another user
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


def listener_of(port: int) -> int | None:
    """The id of a process that listens on the port; None where none does, or where this user may not see it."""
    with suppress(OSError, psutil.Error):  # macOS shows connections to root alone
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid is not None:
                return one.pid
    return None


def words_of(command: str) -> list[str]:
    """The command as words, split as a shell does; nothing is expanded. Raises CbbenchError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CbbenchError("launch", f"cannot split {command!r} into words: {str(error).lower()}") from None
    if not any("{port}" in word for word in words):
        raise CbbenchError("launch", "want {port} in the command, where the server takes the port to listen on")
    return words


@contextmanager
def launched(command: str, fill: Mapping[str, str], log: Path, ready_timeout_s: float) -> Iterator[str]:
    """The URL of a server that is ready. The server ends with the block, whatever ends the block.

    fill: text by placeholder, as {"{value}": "16"}; {port} is filled here.
    Raises CbbenchError (ExitCode.SERVER) with the tail of the server's log in its message when the server is not
    ready in time or dies first; such an error raised in the block, as the server went away, gets the tail too.
    """
    port = _free_port()
    words = [_filled(word, {"{port}": str(port), **fill}) for word in words_of(command)]
    with _interruptible(), open(log, "wb") as output:
        process = _start(words, output.fileno())
        guard = _guard_of(process.pid)
        try:
            _wait_until_ready(process, port, ready_timeout_s)
            yield f"http://{HOST}:{port}"
        except CbbenchError as error:
            if error.exit_code == ExitCode.SERVER:
                error.message += _how_it_ended(process) + _tail(log)
            raise
        finally:
            _end(process)
            guard.kill()
            guard.communicate()


def _guard_of(session: int) -> subprocess.Popen[bytes]:
    """A process that ends the session when this one is gone: then its standard input ends."""
    return subprocess.Popen(
        [sys.executable, "-m", "engines.remote.launch_guard", str(session)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _filled(word: str, fill: Mapping[str, str]) -> str:
    for place, text in fill.items():
        word = word.replace(place, text)
    return word


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _start(words: list[str], output: int) -> subprocess.Popen[bytes]:
    # Programs in the environment of this interpreter are found without activating it.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    environment = os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"}
    try:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CbbenchError("launch", f"cannot start {words[0]}: {why}") from None


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not _healthy(port):
        if process.poll() is not None:
            raise CbbenchError(None, "the launched server ended before it was ready", ExitCode.SERVER)
        if time.monotonic() > deadline_s:
            why = f"the launched server was not ready within {timeout_s:g} s (`ready_timeout`)"
            raise CbbenchError(None, why, ExitCode.SERVER)
        time.sleep(HEALTH_PERIOD_S)
    owner = listener_of(port)
    if process.poll() is not None or (owner is not None and owner not in processes_of(process.pid)):
        other = "another process" if owner is None else f"process {owner}"
        why = f"port {port} is answered by {other}, not by the launched server"
        raise CbbenchError(None, why, ExitCode.SERVER)


def _healthy(port: int) -> bool:
    """By /health; by the list of models on a server without it."""
    status = _status(port, "/health")
    return (_status(port, "/v1/models") if status in (404, 405, 501) else status) == 200


def _status(port: int, path: str) -> int | None:
    connection = http.client.HTTPConnection(HOST, port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole session: SIGTERM, then SIGKILL. No process of it is left on return, as the next server needs the
    GPU memory that they hold. A second Ctrl-C cuts the grace period short."""
    try:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        _kill_all(process.pid)


def end_session(session: int) -> None:
    """As _end, for a server that is no child of this process."""
    _signal_group(session, signal.SIGTERM)
    deadline_s = time.monotonic() + GRACE_S
    while processes_of(session) and time.monotonic() < deadline_s:
        time.sleep(END_PERIOD_S)
    _kill_all(session)


def _kill_all(session: int) -> None:
    deadline_s = time.monotonic() + GRACE_S
    while (left := processes_of(session)) and time.monotonic() < deadline_s:
        for pid in left:  # also those in a process group of their own
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(END_PERIOD_S)


def _signal_group(session: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        process.wait(HEALTH_PERIOD_S)  # a server that went away a moment ago may not have ended yet
    if process.returncode is None:
        return ""
    if process.returncode < 0:
        return f" (killed by {signal.Signals(-process.returncode).name})"
    return f" (exit code {process.returncode})"


def _tail(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
        said = file.read().decode("utf-8", "replace")
    lines = [line.rstrip()[:LINE_CHARACTERS] for line in said.splitlines() if line.strip()][-TAIL_LINES:]
    if not lines:
        return f"; its log ({log}) is empty"
    return "\n  | ".join([f"; its log ({log}) ends with", *lines])


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGNALS raise KeyboardInterrupt, as Ctrl-C does, so that the server ends too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
