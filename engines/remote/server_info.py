"""ServerInfo: the model and the limits that a server reports, read before the run, and why it may be the wrong one."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from engines.remote.config import RemoteConfig, Target
from engines.remote.tls import tls_problem
from workloads.errors import CbbenchError, ExitCode

ALERT_S = 1.0
MAX_NAMES = 8  # of served models, in a message


# The context of a model, by whom it is called so: vLLM, SGLang; Groq; OpenRouter, Together; Mistral.
CONTEXT_NAMES = ("max_model_len", "context_window", "context_length", "max_context_length")
NAME_KEYS = ("id", "name", "model")


@dataclass(frozen=True)
class ServerInfo:
    model: str
    served: tuple[str, ...]  # empty where the server does not list its models
    context_tokens: int | None  # prompt and output together; this and the next: None if not reported
    vocab_size: int | None = None  # token ids below it exist
    notes: tuple[str, ...] = ()  # what its page of models lacks


def read_server_info(config: RemoteConfig, target: Target) -> ServerInfo:
    """Raises CbbenchError if no server answers or the key is refused; without a configured model, also if the server
    does not say what it serves. With one, its page of models is advice: what it lacks is a note."""
    status, said = _get_page(config, target)
    problem = _problem(status, said, config.api)
    if problem is None and config.api == "tgi":
        return ServerInfo(config.model or said["model_id"], (said["model_id"],), _number(said.get("max_total_tokens")))
    models = {} if problem else _models(said)
    if config.model is not None:
        return _configured(config, config.model, models or {}, problem)
    if problem is not None:
        kind = "a TGI" if config.api == "tgi" else "an OpenAI"
        where = f"{config.url}: GET {target.paths.info}"
        raise CbbenchError("url", f"{where}: {problem}; is it {kind} server, and is the path right? Or give `model`")
    return _chosen(config, models or {})


def _problem(status: int, said: Any, api: str) -> str | None:
    """Why the page does not say which models are served; None if it does."""
    if status != 200:
        return f"HTTP {status}"
    if said is None:
        return "the response is not JSON"
    if api == "tgi":
        is_tgi = isinstance(said, dict) and isinstance(said.get("model_id"), str)
        return None if is_tgi else "it names no model_id"
    return "it lists no models" if _models(said) is None else None


def _models(said: Any) -> dict[str, dict[str, Any]] | None:
    """By name: of {"data": [...]}, {"models": [...]} or a bare list; None for anything else."""
    listed = said if isinstance(said, list) else None
    if isinstance(said, dict):
        listed = said.get("data") if "data" in said else said.get("models")
    if not isinstance(listed, list):
        return None
    models: dict[str, dict[str, Any]] = {}
    for one in listed:
        details = {"id": one} if isinstance(one, str) else one
        if not isinstance(details, dict):
            return None
        name = next((details[key] for key in NAME_KEYS if isinstance(details.get(key), str)), None)
        if name is None:
            return None
        models[name] = details
    return models


def _configured(config: RemoteConfig, model: str, models: dict[str, dict[str, Any]], problem: str | None) -> ServerInfo:
    """problem: why the page lists none."""
    if problem is not None:
        return ServerInfo(model, (), None, notes=(f"the server does not list its models ({problem})",))
    listed = model if model in models else next((name for name in models if fnmatchcase(model, name)), None)
    if listed is None:
        names = _listed(list(models)) if models else "none"
        notes = (f"the server does not list {model}, which may be an alias; it lists {names}",)
        return ServerInfo(model, tuple(models), None, notes=notes)
    return _described(model, models, models[listed])


def _chosen(config: RemoteConfig, models: dict[str, dict[str, Any]]) -> ServerInfo:
    names = list(models)
    if not names:
        raise CbbenchError(None, f"{config.url} serves no model yet", ExitCode.SERVER)
    if len(names) > 1:
        raise CbbenchError("model", f"{config.url} serves several; want one of {_listed(names)}")
    return _described(names[0], models, models[names[0]])


def _described(model: str, models: dict[str, dict[str, Any]], details: dict[str, Any]) -> ServerInfo:
    meta = details.get("meta")  # llama.cpp's; n_ctx is the context of one request
    meta = meta if isinstance(meta, dict) else {}
    contexts = (_number(details.get(name)) for name in CONTEXT_NAMES)
    context_tokens = next((one for one in contexts if one), None) or _number(meta.get("n_ctx"))
    vocab_size = _number(details.get("vocab_size")) or _number(meta.get("n_vocab"))
    return ServerInfo(model, tuple(models), context_tokens, vocab_size)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return value if type(value) is int and value > 0 else None


def _get_page(config: RemoteConfig, target: Target) -> tuple[int, Any]:
    """(the status, the decoded JSON or None) of the page with the models. Raises CbbenchError where no server answers,
    it is not ready, or the key is refused."""
    where = f"{config.url}: GET {target.paths.info}"
    status, body = _get(config, target, target.paths.info)
    if status in (401, 403):
        raise CbbenchError(None, f"{where}: {config.key_problem} (HTTP {status})")
    if status == 503:
        raise CbbenchError(None, f"{where}: the server is not ready (HTTP 503)", ExitCode.SERVER)
    try:
        return status, msgspec.json.decode(body) if status == 200 else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return status, None


def _get(config: RemoteConfig, target: Target, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(target.host, target.port)
    try:
        connection.sock = connect(config, target)
        connection.request("GET", path, headers=config.caller)
        response = connection.getresponse()
        return response.status, response.read()
    except (http.client.HTTPException, ConnectionResetError, BrokenPipeError, ssl.SSLError) as error:
        if target.tls is not None:
            _raise_alert(config, target)
        said = f"{config.url} does not speak HTTP: {_line(error)}"
        raise CbbenchError("url", f"{said}; {_doubt(config) if target.tls else 'is it https://?'}") from None
    except OSError as error:  # refused, unreachable, timed out
        raise CbbenchError(None, f"no server answers at {config.url}: {_line(error)}", ExitCode.SERVER) from None
    finally:
        connection.close()


def connect(config: RemoteConfig, target: Target) -> socket.socket:
    """A blocking socket, after the TLS handshake. Raises OSError, or CbbenchError where TLS fails."""
    address = target.addresses[0]
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(config.connect_timeout_s)
        sock.connect(address.sockaddr)
        return sock if target.tls is None else _with_tls(config, target, target.tls, sock)
    except BaseException:
        sock.close()
        raise


def _with_tls(config: RemoteConfig, target: Target, tls: ssl.SSLContext, sock: socket.socket) -> socket.socket:
    try:
        return tls.wrap_socket(sock, server_hostname=target.host)
    except (ssl.SSLError, TimeoutError, ConnectionResetError) as error:
        if isinstance(error, ssl.SSLError) and (problem := tls_problem(error, config, target.host)) is not None:
            raise problem from None
        why = f"no TLS with this server ({_line(error)}); is it http://?, or {_doubt(config)}"
        raise CbbenchError("url", f"{config.url}: {why}") from None


def _raise_alert(config: RemoteConfig, target: Target) -> None:
    """Raises CbbenchError where the server ends a connection with a TLS alert about a certificate. By TLS 1.3 it comes
    after the handshake, and may be lost where a request is under way."""
    try:
        with connect(config, target) as sock:
            sock.settimeout(ALERT_S)
            sock.recv(1)
    except ssl.SSLError as error:
        if (problem := tls_problem(error, config, target.host)) is not None:
            raise problem from None
    except OSError:
        return


def _doubt(config: RemoteConfig) -> str:
    """What a server may mean that closes a TLS connection without a word."""
    if config.cert_file is not None:
        return f"does it refuse the client certificate {config.cert_file}?"
    return "does it want a client certificate (`cert`)?"


def _line(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join((said or type(error).__name__).split())[:200].lower()
