"""Launch: a server of our own for as long as a measurement takes.

free port --> start, in a session of its own --> healthy, and ours? --> measure --> end everything it started

A session (not a mere child) so that Ctrl-C reaches us alone, and so that all of its processes can be found and ended.
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

from engines.base import EngineError
from workloads.errors import ExitCode

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


HOST = "127.0.0.1"
LOOK_S = 0.1  # how often health is asked for
PROBE_S = 2.0  # time for one answer
END_LOOK_S = 0.02
GRACE_S = 10.0  # from SIGTERM to SIGKILL
TAIL_LINES = 12
TAIL_BYTES = 20_000
LINE_CHARACTERS = 200
SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # that would end us and leave the server running


def words_of(command: str) -> list[str]:
    """The command as words, as a shell would split it, without any other power of a shell. Raises EngineError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise EngineError(f"--launch: cannot split {command!r} into words: {str(error).lower()}") from None
    if not any("{port}" in word for word in words):
        raise EngineError('--launch: want {port} in the command, as in "vllm serve MODEL --port {port}"')
    return words


@contextmanager
def launched(command: str, fill: Mapping[str, str], log: Path, ready_timeout_s: float) -> Iterator[str]:
    """The URL of a server that is ready. It ends with the block, whatever ends the block.

    fill: text by placeholder, as {"{value}": "16"}; {port} is filled here.
    Raises EngineError, with the tail of the server's log in its message, when the server is not ready in time, when
    it dies first, or when the block finds that it is gone.
    """
    port = _free_port()
    words = [_filled(word, {"{port}": str(port), **fill}) for word in words_of(command)]
    with _interruptible(), open(log, "wb") as output:
        process = _start(words, output.fileno())
        try:
            _wait_until_ready(process, port, ready_timeout_s)
            yield f"http://{HOST}:{port}"
        except EngineError as error:
            if error.exit_code != ExitCode.SERVER:
                raise
            error.args = (f"{error}{_how_it_ended(process)}{_tail(log)}",)
            raise
        finally:
            _end(process)


def _filled(word: str, fill: Mapping[str, str]) -> str:
    for place, text in fill.items():
        word = word.replace(place, text)
    return word


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _start(words: list[str], output: int) -> subprocess.Popen[bytes]:
    # Programs that were installed beside this one are found without activating their environment.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    environment = os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"}
    try:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    except OSError as error:
        raise EngineError(f"--launch: cannot start {words[0]}: {(error.strerror or str(error)).lower()}") from None


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not _healthy(port):
        if process.poll() is not None:
            raise EngineError("the launched server ended before it was ready", ExitCode.SERVER)
        if time.monotonic() > deadline_s:
            raise EngineError(
                f"the launched server was not ready within {timeout_s:g} s (--ready-timeout)", ExitCode.SERVER
            )
        time.sleep(LOOK_S)
    owner = listener_of(port)
    if process.poll() is not None or (owner is not None and owner not in processes_of(process.pid)):
        who = "another process" if owner is None else f"process {owner}"
        raise EngineError(f"port {port} is answered by {who}, not by the launched server", ExitCode.SERVER)


def _healthy(port: int) -> bool:
    """/health says so; where there is none, the list of models."""
    status = _status(port, "/health")
    return (_status(port, "/v1/models") if status in (404, 405, 501) else status) == 200


def _status(port: int, path: str) -> int | None:
    connection = http.client.HTTPConnection(HOST, port, timeout=PROBE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """The whole session: asked first, then killed, and over when this returns: what a process of it holds of a GPU's
    memory, the next server needs. A second Ctrl-C shortens the asking."""
    try:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:
        _signal_group(process, signal.SIGKILL)
        process.wait()
        deadline_s = time.monotonic() + GRACE_S
        while (left := processes_of(process.pid)) and time.monotonic() < deadline_s:
            for pid in left:  # also those that left the group for one of their own
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(END_LOOK_S)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        process.wait(LOOK_S)  # a server that went away a moment ago may not be over yet
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
    """Signals that would end this process at once end it as Ctrl-C does, so that the server ends too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
