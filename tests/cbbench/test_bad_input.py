"""Bad input: one clear line each, exit code 2, no traceback."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cbbench.cli.errors import explain
from tests.cbbench.conftest import TINY, Outcome

Call = Callable[..., Outcome]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--workload", "azure-chat"], ["azure-chat", "azure-conv"]),
        (["--workload", "prompt=uniform(9,3);output=fixed(4)"], ["uniform"]),
        (["--workload", "prompt=fixed(0);output=fixed(4)"], ["fixed"]),
        (["--workload", "prompt=fixed(9000);output=fixed(4)"], ["9000"]),
        (["--workload", "prompt=fixed(64);output=fixed(64)", "--max-model-len", "100"], ["100"]),
        (["--workload", "none.csv"], ["none.csv"]),
        (["--workload", "prompt=fixed(64);output=fixed(64)", "--kv-blocks", "7"], ["--kv-blocks", "8", "7"]),
        (["--tenants", "a;b", "--quota", "b:kv-blocks=1"], ["--quota: b:kv-blocks=1", "too few", "--misfit reject"]),
        (["--arrival", "weekly", "--rate", "1"], ["weekly", "poisson"]),
        (["--rate", "0"], ["--rate"]),
        (["--num-requests", "0"], ["--num-requests"]),
        (["--num-requests", "few"], ["--num-requests"]),
        (["--mode", "batched"], ["--mode", "continuous, static"]),
        (["--model", "no-such-model"], ["no-such-model"]),
        (["--model", "broken.gguf"], ["broken.gguf"]),
        (["--engine", "simulated"], ["--engine: simulated needs", "--step-time-model", "--hardware"]),
        (["--url", "http://127.0.0.1:9"], ["--device", "the server at --url has its own"]),
        (["--tenants", "a:weigth=3;b"], ["--tenants", "weigth"]),
        (["--on-kv-pressure", "forget"], ["--on-kv-pressure", "swap"]),
        (["--sla", "p99_ttft_ms=5"], ["--sla"]),
        (["--sla", "mlperf:llama2-70b-server"], ["--sla", "cbbench gate RUN"]),
        (["-o", "x" * 300], ["File name too long"]),
        (["--config", "none.toml"], ["none.toml"]),
        (["--speed", "9"], ["--speed"]),
    ],
)
def test_run_refuses(cbbench: Call, arguments: list[str], names: list[str]) -> None:
    Path("broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00 and then nothing of use")
    outcome = cbbench("run", "--model", "tiny", "--device", "cpu", "--num-requests", "4", *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    for name in names:
        assert name in outcome.error_line
    assert not Path("runs").exists(), "nothing is left behind by a run that never began"


def test_wrong_type_in_the_config_file(cbbench: Call) -> None:
    Path("cbbench.toml").write_text('max-num-seqs = "many"\n')
    outcome = cbbench("run", "--model", "tiny")
    assert outcome.code == 2
    assert outcome.error_line == "error: cbbench.toml: max-num-seqs: must be a whole number, got 'many'"


@pytest.mark.parametrize(
    "arguments", [["fly"], ["sweep", "colour", "--values", "1,2"], ["sweep", "max-num-seqs", "--values", "1,x"],
                  ["sweep", "max-num-seqs", "--values", "4,4"], ["sweep", "max-num-seqs"], ["report", "nowhere"],
                  ["compare", "nowhere", "elsewhere"]],
)  # fmt: skip
def test_other_commands_refuse(cbbench: Call, arguments: list[str]) -> None:
    outcome = cbbench(*arguments)
    assert outcome.code == 2
    assert outcome.error_line


def test_without_torch_says_what_to_install(cbbench: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr("engines.reference.find_spec", lambda name: None if name == "torch" else real(name))
    outcome = cbbench("run", *TINY)
    assert outcome.code == 2
    assert "cbbench[engine]" in outcome.error_line


@pytest.mark.parametrize(("package", "command"), [("msgspec", "run"), ("httptools", "run --url http://127.0.0.1:9")])
def test_a_package_that_is_missing_is_one_line(package: str, command: str) -> None:
    """As in a checkout that is not installed."""
    code = f"import sys; sys.modules['{package}'] = None; from cbbench.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True, timeout=60)
    line = f"error: needs the Python package {package}, which is not installed here\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_full_disk_is_one_line_and_exit_1() -> None:
    line, code = explain(OSError(errno.ENOSPC, "No space left on device", "runs/x/tokens.bin"))
    assert code == 1
    assert "full" in line
    assert "runs/x/tokens.bin" in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_during_a_run(cbbench: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request log goes to a device that is always full."""

    def open_full(path: Path, mode: str) -> object:
        return open("/dev/full", "wb") if path.name == "requests.jsonl" else open(path, mode)

    monkeypatch.setattr("reports.folder.open", open_full, raising=False)
    outcome = cbbench("run", *TINY, "--num-requests", 4, "-o", "out")
    assert outcome.code == 1
    assert "No space left" in outcome.error_line


def test_unexpected_error_hides_its_traceback_until_asked(cbbench: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("it broke")

    monkeypatch.setattr("cbbench.experiment.run.run", broken)
    outcome = cbbench("run", *TINY)
    assert outcome.code == 1
    assert "RuntimeError: it broke" in outcome.error_line
    assert "--debug" in outcome.error_line
    assert "Traceback" in cbbench("run", *TINY, "--debug").err


def test_keyboard_interrupt_before_the_run(cbbench: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cbbench.experiment.run.run", interrupted)
    assert cbbench("run", *TINY).code == 130


def test_version(cbbench: Call) -> None:
    outcome = cbbench("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("cbbench ")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--max-num-seqs", "1000000000"], ["--max-num-seqs", "65536"]),
        (["--kv-blocks", "99999999999999"], ["--kv-blocks", "10000000"]),
        (["--num-requests", "99999999999999999999"], ["--num-requests"]),
        (["--rate", "inf"], ["--rate"]),
        (["--rate", "1e-320"], ["--rate"]),
        (["--ageing", "inf", "--order", "shortest-prompt"], ["--ageing"]),
        (["--duration", "inf"], ["--duration"]),
        (["--quota", "a:tokens-per-s=nan"], ["--quota"]),
        (["--quota", "default:max-num-seqs=0"], ["--quota", "above 0"]),
        (["--quota", "default:max-num-seqs=1,max-num-seqs=2"], ["--quota", "once"]),
        (["--quota", "default:max-num-seqs=1", "--quota", "default:max-num-seqs=2"], ["--quota", "once"]),
        (["--quota", "b:max-num-seqs=1"], ["--quota: b", "no such tenant", "default"]),
        (["--tenant-weight", "default:2"], ["--tenant-weight", "needs --order fair"]),
        (["--order", "fair", "--tenant-weight", "b:2"], ["--tenant-weight: b", "no such tenant", "default"]),
        (["--order", "fair", "--tenant-weight", "default:0"], ["--tenant-weight", "TENANT:W", "default:0"]),
        (["--order", "fair", "--tenant-weight", "default"], ["--tenant-weight", "TENANT:W"]),
        (["--order", "fair", "--tenant-weight", "default:nan"], ["--tenant-weight", "TENANT:W"]),
        (["--order", "fair", "--tenant-weight", "default:1", "--tenant-weight", "default:2"], ["once a tenant"]),
        (["--max-model-len", "99999999"], ["--max-model-len", "131072"]),
        (["--sla", "p100_ttft_ms<=20"], ["p100", "p99"]),
        (
            ["--gpu-memory-utilization", "0.00001"],
            ["--hardware: ", "no room for KV", "--gpu-memory-utilization"],
        ),
    ],
)
def test_simulated_run_refuses_what_is_out_of_all_bounds(
    cbbench: Callable[..., Outcome], arguments: list[str], names: list[str]
) -> None:
    simulated = ("--engine", "simulated", "--hardware", "h100", "--model", "llama-3.1-8b", "--num-requests", 4)
    outcome = cbbench("run", *simulated, "-o", "out", *arguments)
    assert outcome.code == 2, outcome.err
    assert all(name in outcome.error_line for name in names), outcome.error_line
    assert not Path("out").exists()


def test_a_place_for_the_verdict_is_looked_at_before_anything_is_measured(cbbench: Call) -> None:
    Path("file").touch()
    Path("folder").mkdir()
    settings = "--engine simulated --hardware h100 --model llama-3.1-8b --num-requests 4"
    for flag, place in (("--junit", "folder"), ("--benchmark-json", "folder"), ("--junit", "file/verdict.xml")):
        outcome = cbbench("compare", "--aa", settings, "--pairs", 2, flag, place, "-o", "aa")
        assert outcome.code == 2
        assert place in outcome.error_line
        assert not Path("aa").exists()
