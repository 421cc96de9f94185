"""--header on the command line and in cbbench.toml: sent, never written down, and refused in one line."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cbbench.experiment.environment import without_values
from cbbench.settings.build import build_settings
from tests.cbbench.conftest import Outcome
from tests.wire.fake import FakeServer

Call = Callable[..., Outcome]
LOAD = ("--num-requests", "2", "--workload", "prompt=fixed(8);output=fixed(2)", "--warmup", "0", "--no-scrape")
SECRET = "s3cr3t-of-the-gateway"


@pytest.fixture
def as_a_process(cbbench: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """With the command line where a real process has it, as run.json keeps it."""

    def call(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["cbbench", *map(str, words)])
        return cbbench(*words)

    return call


def files_with(text: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_sent_and_never_written_down(as_a_process: Call, own_folder: Path) -> None:
    headers = ("--header", f"Authorization: Bearer {SECRET}", f"--header=X-Tenant: tenant-{SECRET}")
    with FakeServer() as server:
        outcome = as_a_process("run", "--url", server.url, *LOAD, *headers, "-o", "out", "--json")
    assert outcome.code == 0, outcome.err
    assert all(f"\r\nX-Tenant: tenant-{SECRET}\r\n" in head for head in server.heads + server.get_heads)
    assert len(server.heads) == 2
    assert server.get_heads
    run = json.loads(Path("out/run.json").read_text())
    assert run["engine"]["config"]["headers"] == ["Authorization", "X-Tenant"]
    assert "--header 'Authorization: ***' '--header=X-Tenant: ***'" in run["environment"]["command"]
    assert not files_with(SECRET, own_folder)
    assert SECRET not in outcome.out + outcome.err


def test_a_sweep_sends_them_at_every_point(as_a_process: Call, own_folder: Path) -> None:
    Path("cbbench.toml").write_text('header = ["X-Tenant: from-the-file"]\n')
    with FakeServer() as server:
        outcome = as_a_process("sweep", "concurrency", "--values", "1,2", "--url", server.url, *LOAD, "-o", "out")
    assert outcome.code == 0, outcome.err
    assert len(server.heads) == 4
    assert all("\r\nX-Tenant: from-the-file\r\n" in head for head in server.heads)
    assert not files_with("from-the-file", own_folder / "out")


@pytest.mark.parametrize("key", [f"{SECRET}\n", f" {SECRET}\t"])
def test_a_key_may_have_a_line_end(as_a_process: Call, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """As it is read out of a file."""
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with FakeServer() as server:
        assert as_a_process("run", "--url", server.url, *LOAD).code == 0
    assert all(f"\r\nAuthorization: Bearer {SECRET}\r\n" in head for head in server.heads + server.get_heads)


@pytest.mark.parametrize(
    ("key", "words"), [(f"{SECRET}\r\nX-B: 1", "has a line break"), (f"{SECRET}\N{SNOWMAN}", "not latin-1")]
)
def test_a_key_that_no_header_holds_is_not_shown(
    as_a_process: Call, monkeypatch: pytest.MonkeyPatch, key: str, words: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with FakeServer() as server:
        outcome = as_a_process("run", "--url", server.url, *LOAD, "--debug")
    assert outcome.code == 2
    assert "the value of OPENAI_API_KEY" in outcome.err
    assert words in outcome.err
    assert SECRET not in outcome.out + outcome.err
    assert not server.heads


def test_two_settings_measured_in_turns_write_none_down(as_a_process: Call, own_folder: Path) -> None:
    """Each of them is a command line within a word of the command line."""
    with FakeServer() as server:
        config = shlex.join(["--url", server.url, *LOAD, "--header", f"X-Api-Key: {SECRET}"])
        as_a_process("compare", "--ab", config, f"{config} --concurrency 1", "--pairs", 2, "-o", "out")
    assert all(f"X-Api-Key: {SECRET}" in head for head in server.heads)
    commands = [json.loads(path.read_text())["environment"]["command"] for path in Path("out").rglob("run.json")]
    assert len(commands) == 4, "the server is warmed up by each run, not by runs of its own"
    assert all("X-Api-Key: ***" in command for command in commands)
    assert not files_with(SECRET, own_folder)


def test_flags_replace_the_list_of_the_file(as_a_process: Call) -> None:
    Path("cbbench.toml").write_text('header = ["X-Tenant: file"]\n')
    with FakeServer() as server:
        assert as_a_process("run", "--url", server.url, *LOAD, "--header", "X-Other: flag").code == 0
    assert all("X-Other: flag" in head and "X-Tenant" not in head for head in server.heads)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (f"X-A: {SECRET}\r\nX-B: 1", "X-A has a line break"),
        (f"X-A: {SECRET}\N{SNOWMAN}", "not latin-1"),
        (SECRET, "no colon"),
        (f": {SECRET}", "not a header name"),
        ("X-A:", "X-A has no value"),
    ],
)
def test_refused(cbbench: Call, header: str, words: str) -> None:
    outcome = cbbench("run", "--url", "http://127.0.0.1:9", *LOAD, "--header", header)
    assert outcome.code == 2
    assert outcome.error_line.startswith("error: --header: ")
    assert words in outcome.error_line
    assert SECRET not in outcome.err


def test_refused_where_nothing_is_sent_and_as_an_axis(cbbench: Call) -> None:
    outcome = cbbench("run", "--engine", "simulated", "--hardware", "h100", "--header", f"X-A: {SECRET}")
    assert outcome.code == 2
    assert "--header: needs --url" in outcome.error_line
    swept = cbbench("sweep", "header", "--values", "a|b", "--url", "http://127.0.0.1:9", *LOAD)
    assert swept.code == 2
    assert "cannot sweep header" in swept.error_line


def test_a_wrong_kind_in_the_file_is_not_shown(cbbench: Call) -> None:
    Path("cbbench.toml").write_text(f'header = {{"X-A" = "{SECRET}"}}\n')
    outcome = cbbench("run", "--url", "http://127.0.0.1:9", *LOAD)
    assert outcome.code == 2
    assert "list of strings" in outcome.error_line
    assert SECRET not in outcome.err


def test_a_renewed_key_is_the_same_work_and_another_route_is_not() -> None:
    def work(*headers: str) -> str:
        return build_settings({"url": "http://127.0.0.1:9", "header": headers}).config_hash()

    assert work("Authorization: Bearer a", "X-Route: a") == work("Authorization: Bearer b", "X-Route: a")
    assert work("X-Route: a") != work("X-Route: b")


def test_a_command_line_keeps_the_names() -> None:
    words = ["run", "--header", "X-A: secret", "--header=Authorization: Bearer secret", "--header", "secret", "--json"]
    assert without_values(words) == [
        "run",
        "--header",
        "X-A: ***",
        "--header=Authorization: ***",
        "--header",
        "***",
        "--json",
    ]


def test_a_command_line_in_one_word() -> None:
    """As compare --ab has it."""
    config = "--url u --header 'X-A: s3cr3t' --header=X-B:s3cr3t --json"
    assert without_values(["compare", "--ab", config, "--rate 4"]) == [
        "compare",
        "--ab",
        "--url u --header 'X-A: ***' '--header=X-B: ***' --json",
        "--rate 4",
    ]
    assert "s3cr3t" not in str(without_values([f'"{config}"', f"'{config}", "x --header s3cr3t"]))
    assert without_values(["--headers", "X: a"]) == ["--headers", "X: a"], "no flag of ours, so refused"
