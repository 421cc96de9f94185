"""Keys: who may use the API, and that none is ever shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.serve.api_key import ApiKeys, read_api_keys
from tests.engines.serve.serving import Running, echoing
from workloads.errors import CbbenchError

KEY = "sk-of-the-test"
BODY = json.dumps({"prompt": "abc", "max_tokens": 3}).encode()


def status_of(server: Running, path: str, **headers: str) -> int:
    method, body = ("POST", BODY) if "completions" in path else ("GET", None)
    return server.ask(method, path, body, headers)[0]


def test_only_clients_with_a_key_are_served(capfd: pytest.CaptureFixture[str]) -> None:
    with echoing(keys=ApiKeys(["other", KEY])) as (server, executor):
        for path in ("/v1/completions", "/v1/models", "/v1/nothing"):
            for wrong in (
                {},
                {"Authorization": "Bearer"},
                {"Authorization": f"Basic {KEY}"},
                {"Authorization": KEY},
                {"Authorization": f"Bearer {KEY}x"},
                {"Authorization": "Bearer \xe9"},
                {"X-Api-Key": KEY},
            ):
                assert status_of(server, path, **wrong) == 401, wrong
        assert executor.launched == []
        _, text = server.ask("POST", "/v1/completions", BODY, {"Authorization": f"Bearer {KEY}x"})
        error = json.loads(text)["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
        assert KEY not in text
        assert status_of(server, "/v1/models", Authorization=f"Bearer {KEY}") == 200
        assert status_of(server, "/v1/completions", Authorization="bearer other") == 200
        assert status_of(server, "/health") == status_of(server, "/metrics") == 200
    said = capfd.readouterr()
    assert KEY not in said.out + said.err


def test_keys_come_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", f"{KEY}\n")
    assert read_api_keys("env:A_KEY").allow(f"Bearer {KEY}")
    file = tmp_path / "keys"
    file.write_text(f"first\n\n  {KEY}\r\n")
    keys = read_api_keys(f"file:{file}")
    assert keys.allow(f"Bearer {KEY}")
    assert keys.allow("Bearer first")
    assert not keys.allow("Bearer ")
    assert not keys.allow("Bearer second")
    assert KEY not in repr(vars(keys))


@pytest.mark.parametrize(
    ("source", "content", "words"),
    [
        (KEY, "", "want env:NAME or file:PATH"),
        ("env:", "", "want env:NAME or file:PATH"),
        ("env:NO_SUCH_KEY", "", "NO_SUCH_KEY is not set, or empty"),
        ("file:none", "", "none: No such file"),
        ("file:keys", " \n", "keys is empty"),
        ("file:keys", "s\u00e9cret-1", "has a space or a character"),
        ("file:keys", "two secret-words", "has a space or a character"),
    ],
)
def test_a_wrong_source_is_said_without_a_key(
    source: str, content: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").write_text(content)
    with pytest.raises(CbbenchError, match=words) as caught:
        read_api_keys(source)
    assert caught.value.field == "api_key"
    assert KEY not in str(caught.value)
    assert "cret-" not in str(caught.value)
