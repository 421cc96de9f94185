"""Certificates of the server and of the client, and in words which of them was wrong."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from tests.wire.driving import load
from tests.wire.fake import GOOD, Call, FakeServer
from workloads.errors import CbbenchError

CERTIFICATE = str(Path(__file__).with_name("certificate.pem"))


async def good(call: Call) -> None:
    await call.send(GOOD)


def self_signed(folder: Path, host: str) -> str:
    """A certificate and its key in one file."""
    path = folder / f"{host}.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-keyout", "key.pem", "-out", "cert.pem"]
    name = f"DNS:{host}" if host[0].isalpha() else f"IP:{host}"
    try:
        subprocess.run(
            [*words, "-subj", f"/CN={host}", "-addext", f"subjectAltName={name}"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    path.write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    return str(path)


def tls_server(certificate: str = CERTIFICATE, *, client_ca: str | None = None, tls13: bool = True) -> FakeServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if not tls13:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return FakeServer(good, tls=context)


def test_a_certificate_need_not_be_verified() -> None:
    with tls_server() as server:
        assert load(server, requests=2, concurrency=1, insecure=True).failures == [None, None]
        assert "ca_file" in str(refusal(server, insecure=True, ca_file=CERTIFICATE))


def test_an_unknown_authority() -> None:
    with tls_server() as server:
        error = refusal(server)
    assert "no known authority signed it" in str(error)
    assert "`ca_file`" in str(error)
    assert error.exit_code == 2


def test_a_certificate_of_another_host(tmp_path: Path) -> None:
    other = self_signed(tmp_path, "other.test")
    with tls_server(other) as server:
        error = refusal(server, ca_file=other)
    assert "not for the host 127.0.0.1" in str(error)
    assert error.exit_code == 2


@contextmanager
def server_with_alerts(client_ca: str, *, tls13: bool) -> Iterator[str]:
    """It says why a handshake fails, as OpenSSL does; asyncio's servers close the connection without a word."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(client_ca)
    if not tls13:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with suppress(OSError), sock, context.wrap_socket(sock, server_side=True) as secure:
                    secure.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def refusal_by(url: str, **config: object) -> CbbenchError:
    with pytest.raises(CbbenchError) as caught:
        _ = RemoteEngine(RemoteConfig(url=url, **config)).server  # type: ignore[arg-type]
    return caught.value


def refusal(server: FakeServer, **config: object) -> CbbenchError:
    return refusal_by(server.url, **config)


@pytest.mark.parametrize("tls13", [True, False])
def test_a_client_certificate(tmp_path: Path, tls13: bool) -> None:
    ours, unknown = self_signed(tmp_path, "client"), self_signed(tmp_path, "stranger")
    with tls_server(client_ca=ours, tls13=tls13) as server:
        ran = load(server, requests=2, concurrency=1, ca_file=CERTIFICATE, cert_file=ours)
        assert ran.failures == [None, None]
        silent = refusal(server, ca_file=CERTIFICATE)
        assert (silent.exit_code, "want a client certificate (`cert`)?" in str(silent)) == (2, True)
        silent = refusal(server, ca_file=CERTIFICATE, cert_file=unknown)
        assert (silent.exit_code, f"refuse the client certificate {unknown}?" in str(silent)) == (2, True)
    with server_with_alerts(ours, tls13=tls13) as url:
        wanted = refusal_by(url, ca_file=CERTIFICATE)
        assert (wanted.exit_code, wanted.field, "wants a client certificate" in str(wanted)) == (2, "cert", True)
        refused = refusal_by(url, ca_file=CERTIFICATE, cert_file=unknown)
        assert (refused.exit_code, refused.field, f"refuses the client certificate {unknown}" in str(refused)) == (
            2,
            "cert",
            True,
        )


def test_files_that_hold_no_certificate(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    with tls_server() as server:
        for path in (str(empty), str(tmp_path / "missing.pem")):
            error = refusal(server, ca_file=CERTIFICATE, cert_file=path)
            assert (error.field, path in str(error)) == ("cert", True)
