"""cbbench sweep --launch: a server per point, ready before it is loaded, known to be ours, and gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.remote.launch import launched, listener_of, processes_of
from tests.cbbench.conftest import Outcome
from tests.wire.fake import FakeServer
from workloads.errors import CbbenchError, ExitCode

Call = Callable[..., Outcome]
CBBENCH = f"{sys.executable} -c 'from cbbench.cli.app import main; main()'"
SERVE = f"{CBBENCH} serve --model tiny --device cpu --port {{port}}"
WORK = ("--workload", "prompt=uniform(4,24);output=uniform(8,16)", "--num-requests", 6)
# A server that is ready within milliseconds. It says where it is, starts a helper of its own and waits.
QUICK = """
import subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in {healthy!r} else 404)
        self.end_headers()
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("helper", helper.pid, flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture(autouse=True)
def one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """The command that runs some Python as a server."""

    def write(source: str) -> str:
        path = tmp_path / "server.py"
        path.write_text(source)
        return f"{sys.executable} {path} {{port}} {{value}}"

    return write


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def run_of(point: str) -> Any:
    return json.loads(Path("out", point, "run.json").read_text())


def port_of(run: Any) -> int:
    return int(run["engine"]["config"]["url"].rpartition(":")[2])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(path: Path, words: str, process: subprocess.Popen[str], timeout_s: float = 60) -> str:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if path.exists() and words in (said := path.read_text()):
            return said
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"no {words!r} in {path}")


def test_a_server_per_point(cbbench: Call) -> None:
    sweep = ("sweep", "max-num-seqs", "--launch", f"{SERVE} --max-num-seqs {{value}}", *WORK, "-o", "out")
    outcome = cbbench(*sweep, "--values", "0,1,3", "--json")
    assert outcome.code == 0, outcome.err
    state = json.loads(outcome.out)
    assert [point["values"] for point in state["points"]] == [[0], [1], [3]]
    error = state["points"][0]["error"]
    assert error.startswith("the launched server ended before it was ready (exit code 2); its log (")
    assert "\n  | error: --max-num-seqs: must be a whole number" in error
    runs = [run_of("max-num-seqs-1"), run_of("max-num-seqs-3")]
    assert {run["workload"]["sha256"] for run in runs} == {state["workload_sha256"]}
    assert runs[0]["workload"]["prompt_seed"] != runs[1]["workload"]["prompt_seed"]
    for run in runs:
        scrape = run["client"]["scrape"]
        assert scrape["output_tokens"] == scrape["output_tokens_received"] > 0
        assert scrape["requests"] == scrape["requests_ended"] == 6
        assert listener_of(port_of(run)) is None, "the server is gone"
    again = cbbench(*sweep, "--values", "1,3")
    assert again.code == 0, again.err
    assert again.err.count("already there") == 2


@pytest.mark.slow
def test_ctrl_c_keeps_the_results_and_ends_the_server(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    work = ("--workload", "prompt=uniform(4,24);output=fixed(200)", "--num-requests", 200, "--concurrency", 1)
    process = spawn("run", "--launch", SERVE, *work, "-o", "out")
    wait_for(Path("out/requests.jsonl"), "\n", process)
    owner = listener_of(port_of(json.loads(Path("out/run.json").read_text())))
    assert owner is not None
    assert os.getsid(owner) != os.getsid(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not alive(owner)
    assert json.loads(Path("out/run.json").read_text())["summary"]["requests"]["completed"] > 0
    assert "tiny at http://127.0.0.1" in Path("out.server.log").read_text()


def test_no_server_at_any_point(cbbench: Call, script: Callable[[str], str]) -> None:
    launch = script("import sys; print('no', sys.argv[2], 'today'); sys.exit(3)")
    outcome = cbbench("sweep", "option", "--values", "a b,c/d", "--launch", launch, *WORK, "-o", "out")
    assert outcome.code == 6
    points = json.loads(Path("out/sweep.json").read_text())["points"]
    assert [point["values"] for point in points] == [["a b"], ["c/d"]]
    assert len({point["folder"] for point in points}) == 2
    assert points[0]["error"].endswith("\n  | no a b today")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_waiting_ends_all_that_was_started(
    number: signal.Signals, spawn: Callable[..., subprocess.Popen[str]], script: Callable[[str], str]
) -> None:
    launch = script(QUICK.format(healthy=()))
    process = spawn("sweep", "n", "--values", "1", "--launch", launch, *WORK, "-o", "out")
    said = wait_for(Path("out/n-1.server.log"), "GET /v1/models", process)
    helper = int(said.split()[1])
    assert alive(helper)
    process.send_signal(number)
    assert process.wait(30) == 130
    assert not alive(helper)


def test_a_server_does_not_outlive_cbbench_that_is_killed(
    spawn: Callable[..., subprocess.Popen[str]], script: Callable[[str], str]
) -> None:
    """SIGKILL leaves cbbench no moment to end it; the helper that the server started ends too."""
    process = spawn("sweep", "n", "--values", "1", "--launch", script(QUICK.format(healthy=())), *WORK, "-o", "out")
    helper = int(wait_for(Path("out/n-1.server.log"), "GET /v1/models", process).split()[1])
    session = os.getsid(helper)
    process.kill()
    process.wait()
    deadline_s = time.monotonic() + 20
    while processes_of(session) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not alive(helper)
    assert not processes_of(session)


@pytest.mark.parametrize("healthy", ["/health", "/v1/models"])
def test_ready_and_ended(healthy: str, script: Callable[[str], str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with launched(script(QUICK.format(healthy=(healthy,))), {}, log, 30) as url:
        owner = listener_of(int(url.rpartition(":")[2]))
        helper = int(log.read_text().split()[1])
        assert owner is not None
        assert {owner, helper} <= processes_of(owner)
    assert not alive(owner)
    assert not alive(helper)


def test_not_ready_in_time(script: Callable[[str], str], tmp_path: Path) -> None:
    command = script(QUICK.format(healthy=()))
    with (
        pytest.raises(CbbenchError, match=r"not ready within 0\.5 s") as caught,
        launched(command, {}, tmp_path / "l", 0.5),
    ):
        raise AssertionError
    assert caught.value.exit_code == 6
    assert not alive(int((tmp_path / "l").read_text().split()[1]))


def test_a_server_that_ignores_being_asked_is_killed(
    script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.remote.launch.GRACE_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + QUICK.format(healthy=("/health",))
    with launched(script(deaf), {}, tmp_path / "log", 30) as url:
        owner = listener_of(int(url.rpartition(":")[2]))
        assert owner is not None
    assert not alive(owner)


def test_another_process_answers(script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer() as other:
        monkeypatch.setattr("engines.remote.launch._free_port", lambda: other.port)
        with (
            pytest.raises(CbbenchError, match="is answered by process") as caught,
            launched(script("import time; time.sleep(60)"), {}, tmp_path / "log", 30),
        ):
            raise AssertionError
    assert caught.value.exit_code == 6
    assert str(os.getpid()) in str(caught.value)


def test_a_server_that_dies_while_it_is_loaded(script: Callable[[str], str], tmp_path: Path) -> None:
    quick = script(QUICK.format(healthy=("/health",)))

    def die(url: str) -> None:
        owner = listener_of(int(url.rpartition(":")[2]))
        assert owner is not None
        os.kill(owner, signal.SIGKILL)
        raise CbbenchError(None, "the server went away", ExitCode.SERVER)

    with pytest.raises(CbbenchError) as caught, launched(quick, {}, tmp_path / "log", 30) as url:
        die(url)
    assert str(caught.value).startswith("the server went away (killed by SIGKILL); its log (")
    assert "helper" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--launch", "serve {value}"), "{port}"),
        (("--launch", "serve '{value} {port}"), "cannot split"),
        (("--launch", "no-such-program {value} {port}"), "cannot start no-such-program: no such file"),
        (("--launch", "x {value} {port}", "--url", "http://h:1"), "--url cannot name another"),
        (("--launch", "x {value} {port}", "--max-num-seqs", 4), "--max-num-seqs: belongs to cbbench's own engine"),
        (("--launch", "x {port}"), "cannot sweep 'option'"),
        (("--ready-timeout", 5), "cannot sweep 'option'"),
        (("--launch", "x {value} {port}", "--no-scrape", "--metrics-url", "http://h:1"), "--metrics-url"),
        (("--launch", "x {value} {port}", "--values", "1,1"), "each value once"),
        (("--launch", "x {value} {port}", "--values", "1,,2"), "without gaps"),
    ],
)
def test_bad_input(cbbench: Call, arguments: tuple[object, ...], words: str) -> None:
    values = () if "--values" in arguments else ("--values", "1")
    outcome = cbbench("sweep", "option", *values, *arguments, *WORK, "-o", "out")
    assert outcome.code == 2, outcome.err
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_bad_input_of_run(cbbench: Call) -> None:
    assert "{value}" in cbbench("run", "--launch", "x {value} {port}", *WORK).error_line
    assert "--ready-timeout: needs --launch" in cbbench("run", "--ready-timeout", 5, *WORK).error_line
    assert "needs --url" in cbbench("run", "--no-scrape", *WORK).error_line
