"""TLS with a server: what it is verified by, and in words which of the certificates was wrong."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from workloads.errors import CbbenchError

if TYPE_CHECKING:
    from engines.remote.config import RemoteConfig

# X509_V_ERR_... of OpenSSL.
_OTHER_HOST = (62, 64)  # HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH
_EXPIRED = (9, 10)  # CERT_NOT_YET_VALID, CERT_HAS_EXPIRED


def context_of(config: RemoteConfig) -> ssl.SSLContext:
    """Raises CbbenchError for files that cannot be read, or that contradict each other."""
    if config.insecure and config.ca_file is not None:
        raise CbbenchError("insecure", "verifies no certificate, so `ca_file` has no use; want one of them")
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise CbbenchError("ca_file", f"cannot read certificates from {config.ca_file}: {error}") from None
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.cert_file is not None:
        try:
            context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            said = "the key is encrypted" if isinstance(error, ValueError) else str(error)
            where = f"{config.cert_file}" + (f" and {config.key_file}" if config.key_file else "")
            raise CbbenchError("cert", f"cannot read a certificate and its key from {where}: {said}") from None
    return context


def _no_password() -> str:
    raise ValueError("encrypted")  # rather than to ask on the terminal


def tls_problem(error: ssl.SSLError, config: RemoteConfig, host: str) -> CbbenchError | None:
    """Which certificate was wrong; None where the error is about none. It may come with the first read: by TLS 1.3 a
    server looks at the client's certificate after the handshake."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message
        if error.verify_code in _OTHER_HOST:
            why = f"its certificate is not for the host {host}: {said}; want a `url` with a name that it is for"
        elif error.verify_code in _EXPIRED:
            why = f"its certificate is not trusted: {said}; `insecure` does without"
        else:
            why = (
                f"its certificate is not trusted, as no known authority signed it: {said}; `ca_file` names one to trust"
            )
        return CbbenchError(None, f"{config.url}: {why}")
    if "CERTIFICATE_REQUIRED" in reason or ("HANDSHAKE_FAILURE" in reason and config.cert_file is None):
        return CbbenchError(
            "cert", f"{config.url} wants a client certificate ({_words(reason)}); give `cert` and `key`"
        )
    refused = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "CERTIFICATE_REVOKED")
    if any(f"ALERT_{one}" in reason for one in refused):
        return CbbenchError(
            "cert", f"{config.url} refuses the client certificate {config.cert_file} ({_words(reason)})"
        )
    return None


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
