"""Every script in benchmarks/ loads: a name that it imports and that has changed shows here, not when it is needed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow  # some load transformers
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_script_loads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])  # as for a script
    importlib.import_module(f"benchmarks.{name}")
