"""The command itself, as a process: what it says, what it ends with, and how little its help loads."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.serve.serving import WAIT_S

RUN = """
import sys
from cbbench.cli.app import invoke
code = invoke(["serve", *sys.argv[1:]])
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RUN + "sys.exit(code)", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def test_help_is_light() -> None:
    show = "print('LOADED', *[name for name in ('numpy', 'torch', 'msgspec', 'aiohttp') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", RUN + show, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED msgspec"
    for flag in ("--port", "--max-num-seqs", "--on-kv-pressure", "--drain"):
        assert flag in done.stdout
    assert "--workload" not in done.stdout


def test_it_serves_until_it_is_told_to_stop() -> None:
    pytest.importorskip("torch")
    settings = ["--max-model-len", "256", "--max-num-seqs", "4", "--served-model-name", "mine"]
    with process("--model", "tiny", "--port", "0", *settings) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        port = re.fullmatch(r"continuous · mine at http://127\.0\.0\.1:(\d+)/v1 \(Ctrl-C stops\)\n", line)
        assert port, line + running.stderr.read()
        connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=WAIT_S)
        connection.request("POST", "/v1/completions", b'{"model": "mine", "prompt": "hello", "max_tokens": 3}')
        assert json.loads(connection.getresponse().read())["usage"]["completion_tokens"] == 3
        running.send_signal(signal.SIGTERM)
        assert running.wait(WAIT_S) == 0
        assert running.stderr.read() == ""


def test_a_wrong_setting_is_one_line() -> None:
    with process("--port", "0", "--max-num-seqs", "64", "--max-num-batched-tokens", "8") as running:
        _, said = running.communicate(timeout=WAIT_S)
    assert running.returncode == 2
    assert said.startswith("error: --max-num-batched-tokens: 8 is less than")
    assert said.count("\n") == 1


def test_a_key_on_the_command_line_is_refused_and_not_repeated() -> None:
    with process("--port", "0", "--api-key", "sk-visible") as running:
        out, said = running.communicate(timeout=WAIT_S)
    assert running.returncode == 2
    assert said.startswith("error: --api-key: want env:NAME or file:PATH")
    assert "visible" not in out + said


def test_settings_come_from_the_file_too(tmp_path: Path) -> None:
    """Of what is for all commands only the engine's settings count; a table of its own wins."""
    file = tmp_path / "cbbench.toml"
    file.write_text('rate = 5\nurl = "http://127.0.0.1:1"\nmax-num-seqs = 64\n[serve]\nmax-num-batched-tokens = 8\n')
    with process("--port", "0", "--config", str(file)) as running:
        _, said = running.communicate(timeout=WAIT_S)
    assert said.startswith("error: --max-num-batched-tokens: 8 is less than --max-num-seqs 64")
