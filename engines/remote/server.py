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

NOT_READY = 6
MOST_NAMES = 8  # of served models, in a message


@dataclass(frozen=True)
class ServerInfo:
    model: str
    served: tuple[str, ...]
    context_tokens: int | None  # prompt and output together; None if it does not say


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
        raise EngineError(f"{config.url} serves no model yet", NOT_READY)
    if config.model is None and len(names) > 1:
        raise EngineError(f"{config.url} serves several models, so --model must name one of: {listed}")
    if config.model is not None and config.model not in models:
        raise EngineError(f"{config.url} does not serve {config.model}; it serves: {listed}")
    model = config.model or names[0]
    return ServerInfo(model, tuple(names), _number(models[model].get("max_model_len")))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _get_json(config: RemoteConfig, target: Target, path: str) -> Any:
    where = f"GET {config.url.rstrip('/').removesuffix('/v1')}{path}"
    status, body = _get(config, target, path)
    if status in (401, 403):
        raise EngineError(f"{where}: the API key is {'wrong' if config.api_key else 'missing'} (HTTP {status})")
    if status == 503:
        raise EngineError(f"{where}: the server is not ready (HTTP 503)", NOT_READY)
    kind = "a TGI" if config.api == "tgi" else "an OpenAI"
    if status != 200:
        raise EngineError(f"{where}: HTTP {status}; is it {kind} server, and the path in --url right?")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EngineError(f"{where}: the answer is no JSON; is it {kind} server?") from None


def _get(config: RemoteConfig, target: Target, path: str) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
    connection = http.client.HTTPConnection(target.host, target.port)
    try:
        sock = socket.socket(target.family, socket.SOCK_STREAM)
        connection.sock = sock
        sock.settimeout(config.connect_timeout_s)
        sock.connect(target.address)
        if target.tls is not None:
            connection.sock = target.tls.wrap_socket(sock, server_hostname=target.host)
        connection.request("GET", target.base_path + path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    except ssl.SSLCertVerificationError as error:
        hint = "; --ca-file names the authority to trust"
        raise EngineError(f"{config.url}: its certificate is not trusted: {error.verify_message}{hint}") from None
    except ssl.SSLError as error:
        raise EngineError(f"{config.url}: no TLS with this server ({error.reason or error}); is it http://?") from None
    except http.client.HTTPException as error:
        raise EngineError(f"{config.url} does not speak HTTP: {_line(error)}") from None
    except OSError as error:  # refused, unreachable, timed out, reset
        why = (error.strerror or str(error) or type(error).__name__).lower()
        raise EngineError(f"no server answers at {config.url}: {why}", NOT_READY) from None
    finally:
        connection.close()


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:200]
