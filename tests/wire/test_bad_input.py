"""Every server that is not the one meant: one line, before anything is measured, and the right exit code."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from tests.wire.driving import load
from tests.wire.fake import GOOD, FakeServer, plain
from workloads.errors import CbbenchError

CERTIFICATE = str(Path(__file__).with_name("certificate.pem"))


def refusal(url: str = "", **config: object) -> CbbenchError:
    with pytest.raises(CbbenchError) as caught:
        load_info(url, **config)
    assert "\n" not in str(caught.value)
    return caught.value


def load_info(url: str, **config: object) -> None:
    engine = RemoteEngine(RemoteConfig(url=url, **config))  # type: ignore[arg-type]
    assert engine.server


def listing(*names: str, **more: object) -> bytes:
    return plain("200 OK", json.dumps({"data": [{"id": name} | more for name in names]}).encode())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host:1", "http:// or https://"),
        ("http://", "no host"),
        ("http://host:99999", "Port out of range"),
        ("http://host:abc", "abc"),
        ("http://user:word@host", "without user"),
        ("http://host:1/v1#x", "without user or fragment"),
        ("http://host:1/a b", "as %XX"),
        ("http://no-such-host.invalid:1", "cannot find the host no-such-host.invalid"),
    ],
)
def test_a_url_that_cannot_be_right(url: str, words: str) -> None:
    error = refusal(url)
    assert words in str(error)
    assert error.exit_code == 2


def test_no_process_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = refusal(f"http://127.0.0.1:{port}")
    assert "no server answers" in str(error)
    assert "refused" in str(error)
    assert error.exit_code == 6


def test_a_process_that_accepts_and_sends_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = refusal(f"http://127.0.0.1:{silent.getsockname()[1]}", connect_timeout_s=0.2)
    assert "timed out" in str(error)
    assert error.exit_code == 6


@pytest.mark.parametrize(
    ("models", "words", "code"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "does not speak HTTP", 2),
        (plain("404 Not Found"), "is it an OpenAI server", 2),
        (plain("200 OK", b"<html>", "text/html"), "is not JSON", 2),
        (plain("200 OK", b"[1]"), "lists no models", 2),
        (plain("200 OK", b'{"data":[{"title":"x"}]}'), "lists no models", 2),
        (listing(), "serves no model", 6),
        (plain("401 Unauthorized"), "the API key is missing", 2),
        (plain("503 Service Unavailable"), "not ready", 6),
        (plain("500 Internal Server Error"), "HTTP 500", 2),
    ],
)
def test_a_server_of_another_kind(models: bytes, words: str, code: int) -> None:
    with FakeServer(models=models) as server:
        error = refusal(server.url)
    assert words in str(error)
    assert error.exit_code == code


def test_a_wrong_key() -> None:
    with FakeServer(models=plain("401 Unauthorized")) as server:
        said = str(refusal(server.url, api_key="k"))
    assert "the API key is wrong; set OPENAI_API_KEY, or `header` if" in said


def test_a_key_that_only_the_generation_wants() -> None:
    with FakeServer(lambda call: call.send(plain("401 Unauthorized"))) as server, pytest.raises(CbbenchError) as caught:
        load(server, warmup_requests=1)
    assert "the API key is missing; set OPENAI_API_KEY" in str(caught.value)


def test_several_models_are_named() -> None:
    with FakeServer(models=listing("a/one", "b/two")) as server:
        assert str(refusal(server.url)) == f"model: {server.url} serves several; want one of a/one, b/two"


def test_a_model_that_is_refused_is_named() -> None:
    """Not by the page of models, which may lack an alias, but by the server."""
    said = plain("404 Not Found", b'{"error":{"message":"The model `c/three` does not exist."}}')
    server = FakeServer(lambda call: call.send(said), models=listing("a/one"))
    with server, pytest.raises(CbbenchError) as caught:
        load(server, model="c/three", warmup_requests=1)
    assert (caught.value.field, caught.value.exit_code) == ("model", 2)
    assert "does not serve c/three" in str(caught.value)


def test_a_long_list_of_models_is_cut() -> None:
    with FakeServer(models=listing(*(f"m{i}" for i in range(100)))) as server:
        assert str(refusal(server.url)).endswith("m7 and 92 more")


def test_what_the_server_says_about_itself() -> None:
    with FakeServer() as server:
        info = RemoteEngine(RemoteConfig(url=server.url)).server
    assert (info.model, info.served, info.context_tokens, info.vocab_size) == ("m", ("m",), 4096, None)
    with FakeServer(models=listing("m", meta={"n_vocab": 49152, "n_ctx": 1024, "n_ctx_train": 8192})) as llama_cpp:
        info = RemoteEngine(RemoteConfig(url=llama_cpp.url)).server
    assert (info.context_tokens, info.vocab_size) == (1024, 49152)


@pytest.mark.parametrize("said", [{"vocab_size": 512}, {"meta": {"n_vocab": 512}}], ids=["ours", "llama.cpp"])
def test_a_small_vocabulary_is_not_left(said: dict[str, Any]) -> None:
    """B3 26: ids that the server does not have would make it refuse, and the prompts text of another length."""
    with FakeServer(lambda call: call.send(GOOD), models=listing("m", **said)) as server:
        ran = load(server, requests=20, prompt_tokens=50, warmup_requests=2)
    ids = [token for body in server.bodies for token in body["prompt"]]
    assert min(ids) == 64 - 1
    assert max(ids) == 511
    assert ran.failures == [None] * 20


def test_an_api_that_the_server_does_not_have() -> None:
    with FakeServer(lambda call: call.send(plain("404 Not Found"))) as server, pytest.raises(CbbenchError) as caught:
        load(server, api="chat", warmup_requests=1)
    assert caught.value.field == "api"
    assert "no /v1/chat/completions; want completions or tgi" in str(caught.value)


def test_ids_for_an_api_that_takes_none() -> None:
    with FakeServer() as server, pytest.raises(CbbenchError, match="takes no token ids"):
        load(server, api="chat", prompt_form="ids")


# TLS


def tls_server() -> FakeServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return FakeServer(lambda call: call.send(*[GOOD[i : i + 40] for i in range(0, len(GOOD), 40)]), tls=context)


def test_tls() -> None:
    """The same client, the same stamps: what comes in encrypted was still stamped when it came in."""
    with tls_server() as server:
        ran = load(server, requests=20, concurrency=4, ca_file=CERTIFICATE, output_tokens=2)
    assert ran.failures == [None] * 20
    assert ran.report.connections == 4
    assert all(row.events == 2 for row in ran.record.rows)


def test_an_untrusted_certificate() -> None:
    with tls_server() as server:
        error = refusal(server.url)
    assert "certificate is not trusted" in str(error)
    assert "`ca_file`" in str(error)
    assert error.exit_code == 2


def test_https_to_a_server_without_tls() -> None:
    with FakeServer() as server:
        assert "no TLS" in str(refusal(server.url.replace("http", "https"), connect_timeout_s=0.3))


def test_http_to_a_server_with_tls() -> None:
    with tls_server() as server:
        assert "does not speak HTTP" in str(refusal(server.url.replace("https", "http")))


def test_a_file_of_authorities_that_is_none() -> None:
    assert "cannot read certificates" in str(refusal("https://127.0.0.1:1", ca_file="/no/such/file"))
