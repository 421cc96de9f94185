"""A server that sends raw bytes, so that a test decides what is on the wire and where it is cut."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def text(piece: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": piece, "finish_reason": finish}]})


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(output_tokens: int, prompt_tokens: int = 8) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}})


DONE = b"data: [DONE]\n\n"


def response(*events: bytes) -> bytes:
    """A whole, well-formed answer, one HTTP chunk per event."""
    return HEAD + b"".join(map(chunk, events)) + END


def plain(status: str, body: bytes = b"", kind: str = "application/json", *, close: bool = False) -> bytes:
    closing = "Connection: close\r\n" if close else ""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{closing}Content-Length: {len(body)}\r\n\r\n".encode() + body


GOOD = response(text("a"), text("b", "length"), usage(2), DONE)


class Call:
    """A request that came in, and the means to answer it."""

    def __init__(self, number: int, on_connection: int, body: dict[str, Any], head: str, writer: asyncio.StreamWriter):
        self.number = number  # of the generation requests, from 0
        self.on_connection = on_connection  # how many requests came before on the same connection
        self.body = body
        self.head = head
        self.closed = False
        self._writer = writer

    async def send(self, *pieces: bytes, gap_s: float = 0.002) -> None:
        """Each piece in a read of its own, as far as a gap can make sure of that."""
        for i, piece in enumerate(pieces):
            if i:
                await asyncio.sleep(gap_s)
            self._writer.write(piece)
            await self._writer.drain()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def close(self, *, reset: bool = False) -> None:
        sock = self._writer.get_extra_info("socket")
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.close()
        self.closed = True


Script = Callable[[Call], Awaitable[None]]


async def good(call: Call) -> None:
    await call.send(GOOD)


class FakeServer:
    """Runs in a thread. `script` answers generation requests, `metrics` GET .../metrics, `models` all other GETs."""

    def __init__(
        self,
        script: Script = good,
        *,
        models: bytes | None = None,
        metrics: Callable[[str], Awaitable[bytes]] | None = None,
        tls: ssl.SSLContext | None = None,
        host: str | tuple[str, ...] = "127.0.0.1",
    ) -> None:
        self._script = script
        self._models = models if models is not None else plain("200 OK", json.dumps(MODELS).encode())
        self._metrics = metrics
        self._tls = tls
        self._hosts = (host,) if isinstance(host, str) else host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self.bodies: list[dict[str, Any]] = []  # of the generation requests
        self.heads: list[str] = []
        self.get_heads: list[str] = []
        self.connections = 0
        self.connections_at_first_call: int | None = None
        self.open_now = 0
        self.most_open_calls = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = 0
        self._servers = {}
        for host in self._hosts:
            listening = asyncio.start_server(self._serve, host, self.port, ssl=self._tls, limit=2**24)
            self._servers[host] = self._in_loop(listening)
            self.port = self._servers[host].sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._in_loop(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def vanish(self) -> None:
        """As if the process had died: no listener, every connection reset. Call it from a script."""
        for server in self._servers.values():
            server.close()
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def close_host(self, host: str) -> None:
        """No longer listen there. Call it from a script."""
        self._servers[host].close()

    def _in_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _shut(self) -> None:
        for server in self._servers.values():
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        served = 0
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    (int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")), 0
                )
                body = await reader.readexactly(length)
                if head.startswith("GET"):
                    self.get_heads.append(head)
                    path = head.split(" ", 2)[1]
                    asked = self._metrics if path.endswith("/metrics") else None
                    writer.write(self._models if asked is None else await asked(path))
                    await writer.drain()
                    continue
                call = Call(len(self.bodies), served, json.loads(body), head, writer)
                await self._answer(call)
                served += 1
                if call.closed:
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, call: Call) -> None:
        self.bodies.append(call.body)
        self.heads.append(call.head)
        self.open_now += 1
        self.most_open_calls = max(self.most_open_calls, self.open_now)
        if len(self.bodies) == 1:
            for _ in range(20):  # turns of the loop: connections that are open already may not have been counted yet
                await asyncio.sleep(0)
            self.connections_at_first_call = self.connections
        try:
            await self._script(call)
        finally:
            self.open_now -= 1
