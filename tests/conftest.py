"""What costs every run of a test some time and changes nothing it shows."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace

import pytest
import typer.main

# The tests of one process load everything there is, and a full collection of it takes 0.2 s before each short run.
# tests/engines/reference/test_garbage.py and tests/engines/serve/test_shutdown.py put the real one back.
YOUNG_ONLY = SimpleNamespace(collect=lambda: gc.collect(0), freeze=gc.freeze, unfreeze=gc.unfreeze)


@pytest.fixture(autouse=True, scope="session")
def quick_runs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engines.garbage.gc", YOUNG_ONLY)
        patch.setattr(os, "fsync", lambda file: None)  # no power is cut
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))  # the same commands for every call
        yield


@pytest.fixture
def real_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.garbage.gc", gc)
