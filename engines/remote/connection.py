"""One HTTP/1.1 connection: sends requests, reads responses with their arrival times, one request at a time."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from typing import Any, Protocol

import httptools

from engines.remote.addresses import Address
from engines.remote.answer import Failure
from engines.remote.config import Target
from engines.remote.kernel_stamps import CONTROL_BYTES, arrival_ns, enable_stamps
from engines.remote.socket_poller import EVENT_READ, EVENT_WRITE, SocketPoller


class TlsLayer:
    """TLS apart from the socket, so that encrypted reads get the kernel's stamps too.

    After every call, send what outgoing() returns.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, server_hostname=host)
        self.ready = False  # the handshake is over

    def handshake(self) -> None:
        """Continue with the bytes received so far. Raises ssl.SSLError."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.ready = True

    def encrypt(self, data: bytes) -> None:
        self._ssl.write(data)

    def decrypt(self, data: bytes) -> bytes:
        """The plain text that `data` completes. Raises ssl.SSLError."""
        self._in.write(data)
        if not self.ready:
            self.handshake()
            if not self.ready:
                return b""
        pieces = []
        try:
            while piece := self._ssl.read(65536):
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return b"".join(pieces)

    def outgoing(self) -> bytes:
        return self._out.read()


READ_BYTES = 65536
KEEPALIVE_IDLE_S = 15  # of TCP: so that a peer or a NAT that forgot the connection shows before a request needs it
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
# What is sent and not acknowledged for so long ends the connection (Linux): the peer, or a NAT between, forgot it.
UNACKNOWLEDGED_MS = 5_000
LOCAL_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


class ResponseSink(Protocol):
    """Gets the bytes of a response."""

    def head(self, status: int, headers: dict[bytes, bytes], at_ns: int) -> None: ...

    def body(self, data: bytes, at_ns: int) -> None: ...


class Owner(Protocol):
    """Is notified of the events of a connection."""

    def opened(self, connection: Connection) -> None: ...

    def read(self, connection: Connection, read_ns: int, arrived_ns: int | None) -> None:
        """Bytes were read and passed to the answer, if there is one. arrived_ns: the kernel's stamp, or None."""
        ...

    def lost(self, connection: Connection, failure: Failure) -> None:
        """The connection was closed by the server or by an error, not by close()."""
        ...


class Connection:
    """Starts to connect when created; the owner is notified when it is open. Times are of time.monotonic_ns()."""

    def __init__(
        self,
        target: Target,
        poller: SocketPoller,
        owner: Owner,
        *,
        address: Address | None = None,
        kernel_stamps: bool = True,
    ) -> None:
        """address: one of the target's; None: its first."""
        self.address = address or target.addresses[0]
        self._poller = poller
        self._owner = owner
        self._tls = TlsLayer(target.tls, target.host) if target.tls else None
        self._unsent = b""
        self._writing = False  # waiting until the socket takes more
        self._control_bytes = 0
        self._last_ns = 0
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._parser: Any = httptools.HttpResponseParser(self)
        self.answer: ResponseSink | None = None
        self.complete = True  # the response has been read to its end
        self.reusable = True  # for another request, once complete
        self.reused = False  # by this request; the server cannot have closed a fresh one for idling
        self.heard = False  # a byte came since the request was sent
        self.open = False
        self.used = False  # by any request
        self.began_ns = time.monotonic_ns()
        self.opened_ns = self.began_ns  # after the handshakes of TCP and TLS
        self.free_ns = self.began_ns  # since when it could carry the next request
        self._sock = socket.socket(self.address.family, socket.SOCK_STREAM)
        try:
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
            if kernel_stamps and enable_stamps(self._sock):
                self._control_bytes = CONTROL_BYTES
            self._fd = self._sock.fileno()
            code = self._sock.connect_ex(self.address.sockaddr)
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                raise OSError(code, os.strerror(code))
        except OSError:
            self._sock.close()
            raise
        poller.watch(self._fd, EVENT_WRITE, self._connected)

    def send(self, request: bytes, answer: ResponseSink) -> int:
        """Send a request whose response goes to `answer`. Returns the time just before the first byte left."""
        self.answer, self.complete, self.heard = answer, False, False
        if self._tls is not None:
            self._tls.encrypt(request)
            request = self._tls.outgoing()
        sent_ns = time.monotonic_ns()
        self._write(request)
        return sent_ns

    def close(self) -> None:
        if self._fd >= 0:
            self._poller.forget(self._fd)
            self._sock.close()
            self._fd = -1
            self.open = False
            self._parser = None  # the parser refers back to this object

    def _connected(self, _: int) -> None:
        if self._fd < 0:  # close() was called after it became ready
            return
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._lose(Failure("connect", os.strerror(code).lower()))
            return
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # not before, as it would end a connect() too
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        self._poller.watch(self._fd, EVENT_READ, self._ready)
        if self._tls is None:
            self._open()
        else:
            self._tls.handshake()
            self._write(self._tls.outgoing())

    def _open(self) -> None:
        self.open = True
        self.opened_ns = self.free_ns = time.monotonic_ns()
        self._owner.opened(self)

    def _ready(self, events: int) -> None:
        if events & EVENT_WRITE and self._unsent:
            self._flush()
        if events & EVENT_READ and self._fd >= 0:
            self._read()

    def _write(self, data: bytes) -> None:
        if self._fd < 0 or not data:
            return
        self._unsent += data
        if not self._writing:
            self._flush()

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            # The next read reports the error, after what the server sent before it closed.
            self._unsent = b""
        if bool(self._unsent) != self._writing:
            self._writing = not self._writing
            self._poller.watch(self._fd, EVENT_READ | EVENT_WRITE if self._writing else EVENT_READ, self._ready)

    def _read(self) -> None:
        try:
            data, control, _, _ = self._sock.recvmsg(READ_BYTES, self._control_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(self._connection_failure((error.strerror or str(error)).lower()))
            return
        read_ns = time.monotonic_ns()
        if not data:
            self._lose(self._connection_failure("closed by the server"))
            return
        arrived_ns = arrival_ns(control, read_ns) if control else None
        # Times within a connection do not decrease, even if the wall clock was set back.
        self._last_ns = max(arrived_ns or read_ns, self._last_ns)
        failure = self._process(data)
        if failure is not None:
            self._lose(failure)
        elif self.heard:
            self._owner.read(self, read_ns, arrived_ns)

    def _process(self, data: bytes) -> Failure | None:
        try:
            if self._tls is not None:
                data = self._decrypted(self._tls, data)
            if data:
                self.heard = True
                self._parser.feed_data(data)
        except ssl.SSLError as error:
            return self._connection_failure(f"TLS: {getattr(error, 'verify_message', None) or error.reason or error}")
        except httptools.HttpParserCallbackError as error:  # a bug in the callbacks below
            return Failure("client", repr(error.__context__))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return Failure("stream_error", f"malformed HTTP response: {error}")
        return None

    def _decrypted(self, tls: TlsLayer, data: bytes) -> bytes:
        opening = not tls.ready
        plain = tls.decrypt(data)
        self._write(tls.outgoing())
        if opening and tls.ready:
            self._open()
        return plain

    def _connection_failure(self, why: str) -> Failure:
        return Failure("truncated" if self.open else "connect", why)

    def _lose(self, failure: Failure) -> None:
        self.close()
        self._owner.lost(self, failure)

    # Callbacks of the HTTP parser.

    def on_message_begin(self) -> None:
        self._headers = {}
        if self.complete:  # an unsolicited response, as some proxies send before they close
            self.answer, self.reusable = None, False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if (
            self._status >= 200 and self.answer is not None
        ):  # below 200: "100 Continue" and the like, before the response
            self.answer.head(self._status, self._headers, self._last_ns)

    def on_body(self, data: bytes) -> None:
        if self.answer is not None:
            self.answer.body(data, self._last_ns)

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self.complete = True
            self.reusable = self.reusable and bool(self._parser.should_keep_alive())
