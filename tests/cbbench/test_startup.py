"""What loads what: help needs neither NumPy nor torch, and torch is imported by the reference engine alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cbbench.cli.app import invoke
from cbbench.cli.options import names_of, run_options

HELP = "import sys; from cbbench.cli.app import invoke; invoke([*sys.argv[1:], '--help']);"
LOADED = "print('LOADED', *[name for name in ('numpy', 'torch', 'msgspec', 'scipy') if name in sys.modules])"


def loaded_by(code: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code + LOADED, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("arguments", [(), ("report",), ("workload",), ("doctor",)])
def test_help_is_light(arguments: tuple[str, ...]) -> None:
    assert loaded_by(HELP, *arguments) == []


@pytest.mark.parametrize("command", ["run", "sweep", "tune", "serve"])
def test_help_of_settings_loads_the_settings_alone(command: str) -> None:
    assert loaded_by(HELP, command) == ["msgspec"]


def test_help_has_every_name_whole_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert invoke(["run", "--help"]) == 0
    words = set(capsys.readouterr().out.split())
    pairs = [names_of(option.annotation.__metadata__[0]) for option in run_options()]
    assert {names[0].partition("/")[0] for names in pairs if "/" in names[0]} <= words


def test_a_checkout_runs_without_being_installed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    run = [sys.executable, "-m", "cbbench", "--version"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=tmp_path, env={"PYTHONPATH": root})
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "cbbench", "")


def test_a_folder_may_have_packages_of_our_rooms_names(tmp_path: Path) -> None:
    for room in ("reports", "engines", "workloads"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise RuntimeError('not ours')")
    run = [sys.executable, "-m", "cbbench", "workload", "list"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "azure-conv" in done.stdout


def test_a_checkout_finds_its_own_rooms() -> None:
    """Also where another version is installed, although the current folder is taken off the path."""
    root = Path(__file__).parents[2]
    run = "sys.argv[1:] = ['workload', 'list']; runpy.run_module('cbbench', run_name='__main__')"
    code = f"import atexit, runpy, sys; atexit.register(lambda: print(sys.modules['workloads'].__file__)); {run}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]).parents[1] == root


def test_import_is_light() -> None:
    assert loaded_by("import sys, cbbench;") == []


def test_torch_free_rooms() -> None:
    root = Path(__file__).parents[2]
    rooms = [root / "workloads", root / "reports", root / "engines" / "scheduling"]
    files = [root / "engines" / name for name in ("base.py", "loop.py", "telemetry.py")]
    files += [file for room in rooms for file in room.rglob("*.py")]
    names = {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for file in files}
    modules = sorted(names)
    assert "engines.loop" in modules
    assert len(modules) > 10
    assert "torch" not in loaded_by(f"import sys, {', '.join(modules)};")
