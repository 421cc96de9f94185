"""ServerInfo: the model and the limits that a server reports, read before the run, and why it may be the wrong one."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass
from typing import Any

import msgspec

from engines.remote.config import RemoteConfig, Target
from workloads.errors import CbbenchError, ExitCode

MAX_NAMES = 8  # of served models, in a message


@dataclass(frozen=True)
class ServerInfo:
    model: str
    served: tuple[str, ...]
    context_tokens: int | None  # prompt and output together; this and the next: None if not reported
    vocab_size: int | None = None  # token ids below it exist


def read_server_info(config: RemoteConfig, target: Target) -> ServerInfo:
    """Raises CbbenchError if no server answers, if it has another API, or if it does not serve the configured model."""
    path = "/info" if config.api == "tgi" else "/v1/models"
    said = _get_json(config, target, path)
    if config.api == "tgi":
        name = said.get("model_id") if isinstance(said, dict) else None
        if not isinstance(name, str):
            raise CbbenchError("url", f"{config.url} is not a TGI server: GET {path} names no model_id")
        return ServerInfo(config.model or name, (name,), _number(said.get("max_total_tokens")))
    models = said.get("data") if isinstance(said, dict) else None
    if not isinstance(models, list) or not all(isinstance(one, dict) and "id" in one for one in models):
        raise CbbenchError("url", f"{config.url} is not an OpenAI server: GET {path} lists no models")
    return _choose(config, {str(one["id"]): one for one in models})


def _choose(config: RemoteConfig, models: dict[str, dict[str, Any]]) -> ServerInfo:
    names = list(models)
    listed = ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
    if not names:
        raise CbbenchError(None, f"{config.url} serves no model yet", ExitCode.SERVER)
    if config.model is None and len(names) > 1:
        raise CbbenchError("model", f"{config.url} serves several; want one of {listed}")
    if config.model is not None and config.model not in models:
        raise CbbenchError("model", f"{config.url} does not serve {config.model}; it serves: {listed}")
    model = config.model or names[0]
    said = models[model]
    meta = said.get("meta")  # llama.cpp's; n_ctx is the context of one request
    meta = meta if isinstance(meta, dict) else {}
    context_tokens = _number(said.get("max_model_len")) or _number(meta.get("n_ctx"))
    vocab_size = _number(said.get("vocab_size")) or _number(meta.get("n_vocab"))
    return ServerInfo(model, tuple(names), context_tokens, vocab_size)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _get_json(config: RemoteConfig, target: Target, path: str) -> Any:
    where = f"GET {config.url.rstrip('/').removesuffix('/v1')}{path}"
    status, body = _get(config, target, path)
    if status in (401, 403):
        raise CbbenchError(None, f"{where}: {config.key_problem} (HTTP {status})")
    if status == 503:
        raise CbbenchError(None, f"{where}: the server is not ready (HTTP 503)", ExitCode.SERVER)
    kind = "a TGI" if config.api == "tgi" else "an OpenAI"
    if status != 200:
        raise CbbenchError("url", f"{where}: HTTP {status}; is it {kind} server, and is the path right?")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CbbenchError("url", f"{where}: the response is not JSON; is it {kind} server?") from None


def _get(config: RemoteConfig, target: Target, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(target.host, target.port)
    try:
        connection.sock = connect(config, target)
        connection.request("GET", target.base_path + path, headers=config.caller)
        response = connection.getresponse()
        return response.status, response.read()
    except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
        hint = "" if target.tls else "; is it https://?"
        raise CbbenchError("url", f"{config.url} does not speak HTTP: {_line(error)}{hint}") from None
    except OSError as error:  # refused, unreachable, timed out
        raise CbbenchError(None, f"no server answers at {config.url}: {_line(error)}", ExitCode.SERVER) from None
    finally:
        connection.close()


def connect(config: RemoteConfig, target: Target) -> socket.socket:
    """A blocking socket, after the TLS handshake. Raises OSError, or CbbenchError where TLS fails."""
    sock = socket.socket(target.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(config.connect_timeout_s)
        sock.connect(target.address)
        return sock if target.tls is None else _with_tls(config, target, target.tls, sock)
    except BaseException:
        sock.close()
        raise


def _with_tls(config: RemoteConfig, target: Target, tls: ssl.SSLContext, sock: socket.socket) -> socket.socket:
    try:
        return tls.wrap_socket(sock, server_hostname=target.host)
    except ssl.SSLCertVerificationError as error:
        why = f"its certificate is not trusted: {error.verify_message}; `ca_file` names an authority to trust"
        raise CbbenchError(None, f"{config.url}: {why}") from None
    except (ssl.SSLError, TimeoutError, ConnectionResetError) as error:
        why = f"no TLS with this server ({_line(error)}); is it http://?"
        raise CbbenchError("url", f"{config.url}: {why}") from None


def _line(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join((said or type(error).__name__).split())[:200].lower()
