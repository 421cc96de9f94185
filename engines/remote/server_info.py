"""What the server says about itself before anything is measured, and the ways in which it may not be the one meant."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass
from typing import Any

import msgspec

from engines.base import EngineError
from engines.remote.config import RemoteConfig, Target
from workloads.errors import ExitCode

MOST_NAMES = 8  # of served models, in a message


@dataclass(frozen=True)
class ServerInfo:
    model: str
    served: tuple[str, ...]
    context_tokens: int | None  # prompt and output together; this and the next: None if it does not say
    vocab_size: int | None = None  # token ids below it exist


def inspect(config: RemoteConfig, target: Target) -> ServerInfo:
    """Raises EngineError in one line."""
    path = "/info" if config.api == "tgi" else "/v1/models"
    said = _get_json(config, target, path)
    if config.api == "tgi":
        name = said.get("model_id") if isinstance(said, dict) else None
        if not isinstance(name, str):
            raise EngineError(f"{config.url} is no TGI server: GET {path} names no model_id")
        return ServerInfo(config.model or name, (name,), _number(said.get("max_total_tokens")))
    models = said.get("data") if isinstance(said, dict) else None
    if not isinstance(models, list) or not all(isinstance(one, dict) and "id" in one for one in models):
        raise EngineError(f"{config.url} is no OpenAI server: GET {path} lists no models")
    return _choose(config, {str(one["id"]): one for one in models})


def _choose(config: RemoteConfig, models: dict[str, dict[str, Any]]) -> ServerInfo:
    names = list(models)
    listed = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
    if not names:
        raise EngineError(f"{config.url} serves no model yet", ExitCode.SERVER)
    if config.model is None and len(names) > 1:
        raise EngineError(f"{config.url} serves several models, so --model must name one of: {listed}")
    if config.model is not None and config.model not in models:
        raise EngineError(f"{config.url} does not serve {config.model}; it serves: {listed}")
    model = config.model or names[0]
    said = models[model]
    meta = said.get("meta")  # llama.cpp's; n_ctx is what a request may have
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
        raise EngineError(f"{where}: {config.key_problem} (HTTP {status})")
    if status == 503:
        raise EngineError(f"{where}: the server is not ready (HTTP 503)", ExitCode.SERVER)
    kind = "a TGI" if config.api == "tgi" else "an OpenAI"
    if status != 200:
        raise EngineError(f"{where}: HTTP {status}; is it {kind} server, and the path in --url right?")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EngineError(f"{where}: the answer is no JSON; is it {kind} server?") from None


def _get(config: RemoteConfig, target: Target, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(target.host, target.port)
    try:
        connection.sock = connect(config, target)
        connection.request("GET", target.base_path + path, headers=config.caller)
        response = connection.getresponse()
        return response.status, response.read()
    except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
        hint = "" if target.tls else "; is it https://?"
        raise EngineError(f"{config.url} does not speak HTTP: {_line(error)}{hint}") from None
    except OSError as error:  # refused, unreachable, timed out
        raise EngineError(f"no server answers at {config.url}: {_line(error)}", ExitCode.SERVER) from None
    finally:
        connection.close()


def connect(config: RemoteConfig, target: Target) -> socket.socket:
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
        why = f"its certificate is not trusted: {error.verify_message}; --ca-file names an authority to trust"
        raise EngineError(f"{config.url}: {why}") from None
    except (ssl.SSLError, TimeoutError, ConnectionResetError) as error:
        raise EngineError(f"{config.url}: no TLS with this server ({_line(error)}); is it http://?") from None


def _line(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join((said or type(error).__name__).split())[:200].lower()
