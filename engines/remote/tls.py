"""TLS between our own socket and the bytes we mean: encrypted connections are read and stamped like plain ones."""

from __future__ import annotations

import ssl


class TlsLayer:
    """Ciphertext in, plain text out, and the reverse. Whatever `outgoing()` gives must be sent after every call."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, server_hostname=host)
        self.ready = False  # the handshake is over

    def handshake(self) -> None:
        """As far as it gets with what has come in. Raises ssl.SSLError."""
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
