"""A real server process, to be killed and stopped: python -m tests.wire.server_process; prints its port."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.wire.fake import DONE, END, HEAD, Call, FakeServer, chunk, text, usage

TOKEN_S = 0.01


async def steady(call: Call) -> None:
    """A token every 10 ms, as many as asked for."""
    tokens = call.body["max_tokens"]
    await call.send(HEAD)
    for i in range(tokens):
        await call.pause(TOKEN_S)
        await call.send(chunk(text("a", "length" if i + 1 == tokens else None)))
    await call.send(chunk(usage(tokens)) + chunk(DONE) + END)


@contextmanager
def server_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    with FakeServer(steady) as server:
        print(server.port, flush=True)
        threading.Event().wait()
