"""Where the API is, by the URL as users paste it; and a page of models that lists less than it might."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.remote.config import RemoteConfig
from engines.remote.engine import RemoteEngine
from engines.remote.server_info import ServerInfo
from tests.wire.driving import load
from tests.wire.fake import GOOD, FakeServer, plain


@pytest.mark.parametrize(
    ("given", "generate", "models"),
    [
        ("", "/v1/chat/completions", "/v1/models"),
        ("/", "/v1/chat/completions", "/v1/models"),
        ("/v1", "/v1/chat/completions", "/v1/models"),
        ("/v1/", "/v1/chat/completions", "/v1/models"),
        ("/v1/models", "/v1/chat/completions", "/v1/models"),
        ("/v1/completions", "/v1/chat/completions", "/v1/models"),
        ("/v1/chat/completions", "/v1/chat/completions", "/v1/models"),
        ("/openai", "/openai/v1/chat/completions", "/openai/v1/models"),
        ("/openai/v1", "/openai/v1/chat/completions", "/openai/v1/models"),
        ("/models", "/models/v1/chat/completions", "/models/v1/models"),
        ("/v1beta/openai", "/v1beta/openai/chat/completions", "/v1beta/openai/models"),
        ("/v1beta/openai/chat/completions", "/v1beta/openai/chat/completions", "/v1beta/openai/models"),
        ("/api/v3", "/api/v3/chat/completions", "/api/v3/models"),
        ("/api/v3/chat/completions", "/api/v3/chat/completions", "/api/v3/models"),
        ("/api/paas/v4", "/api/paas/v4/chat/completions", "/api/paas/v4/models"),
        ("/serving/chat/completions", "/serving/chat/completions", "/serving/models"),
        (
            "/openai/deployments/gpt?api-version=2024-06-01",
            "/openai/deployments/gpt/chat/completions?api-version=2024-06-01",
            "/openai/deployments/gpt/models?api-version=2024-06-01",
        ),
        (
            "/openai/deployments/gpt/chat/completions?api-version=2024-06-01",
            "/openai/deployments/gpt/chat/completions?api-version=2024-06-01",
            "/openai/deployments/gpt/models?api-version=2024-06-01",
        ),
    ],
)
def test_the_path_of_the_url(given: str, generate: str, models: str) -> None:
    with FakeServer(lambda call: call.send(GOOD)) as server:
        ran = load(server, url=server.url + given, api="chat")
        assert load(server, url=server.url.removeprefix("http://") + given, api="chat").failures == [None]
    assert ran.failures == [None]
    assert {head.split()[1] for head in server.heads} == {generate}
    assert {head.split()[1] for head in server.get_heads} == {models}


@pytest.mark.parametrize("given", ["", "/", "/v1", "/v1/completions", "/v1/chat/completions"])
def test_the_metrics_are_beside_the_version(given: str) -> None:
    async def metrics(path: str) -> bytes:
        asked.append(path)
        return plain("200 OK", b"vllm:num_requests_running 1\n", "text/plain")

    asked: list[str] = []
    with FakeServer(lambda call: call.send(GOOD), metrics=metrics) as server:
        load(server, url=server.url + given, scrape=True)
    assert set(asked) == {"/metrics"}


def info(models: bytes, model: str | None = "m", **config: Any) -> ServerInfo:
    with FakeServer(models=models) as server:
        return RemoteEngine(RemoteConfig(url=server.url, model=model, **config)).server


def page(content: Any) -> bytes:
    return plain("200 OK", json.dumps(content).encode())


@pytest.mark.parametrize(
    ("models", "note"),
    [
        (plain("404 Not Found"), "HTTP 404"),
        (plain("405 Method Not Allowed"), "HTTP 405"),
        (plain("500 Internal Server Error"), "HTTP 500"),
        (plain("200 OK", b"<html>", "text/html"), "not JSON"),
        (page({"models": []}), "it lists none"),
        (page([]), "it lists none"),
        (page({"data": [{"id": "a"}, {"id": "b"}]}), "does not list m, which may be an alias; it lists a, b"),
        (page({"data": {"a": 1}}), "it lists no models"),
    ],
)
def test_with_a_model_the_page_of_models_is_advice(models: bytes, note: str) -> None:
    found = info(models)
    assert (found.model, found.context_tokens) == ("m", None)
    (said,) = found.notes
    assert note in said


def test_what_is_not_listed_is_noted_and_loaded() -> None:
    with FakeServer(lambda call: call.send(GOOD), models=plain("404 Not Found")) as server:
        ran = load(server, model="alias", warmup_requests=1)
    assert ran.failures == [None]
    assert {body["model"] for body in server.bodies} == {"alias"}
    assert ran.report.notes == ("the server does not list its models (HTTP 404)",)


@pytest.mark.parametrize(
    "content",
    [
        [{"id": "m"}],
        ["m"],
        {"models": [{"name": "m"}]},
        {"models": [{"model": "m"}]},
        {"data": [{"id": "m"}]},
    ],
)
@pytest.mark.parametrize("model", ["m", None])
def test_lists_of_every_shape(content: Any, model: str | None) -> None:
    found = info(page(content), model)
    assert (found.model, found.served, found.notes) == ("m", ("m",), ())


def test_a_wildcard_lists_what_it_matches() -> None:
    listed = page({"data": [{"id": "azure/*"}, {"id": "openai/*", "context_length": 8000}]})
    found = info(listed, "openai/gpt")
    assert (found.model, found.context_tokens, found.notes) == ("openai/gpt", 8000, ())
    assert info(listed, "other/gpt").notes


@pytest.mark.parametrize("name", ["max_model_len", "context_window", "context_length", "max_context_length"])
@pytest.mark.parametrize("value", [32768, "32768"])
def test_every_name_of_the_context(name: str, value: object) -> None:
    assert info(page({"data": [{"id": "m", name: value}]}), None).context_tokens == 32768


@pytest.mark.parametrize("value", [0, -1, None, "many", 1.5, True, [1]])
def test_a_context_that_is_no_number_is_not_reported(value: object) -> None:
    assert info(page({"data": [{"id": "m", "max_model_len": value}]}), None).context_tokens is None


def test_tgi_without_a_description() -> None:
    assert info(plain("404 Not Found"), "m", api="tgi").notes == ("the server does not list its models (HTTP 404)",)
