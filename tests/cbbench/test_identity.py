"""Identities of runs and sweeps made before: a sweep resumes only where its points' hashes are still the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cbbench.settings.build import build_settings

OLD = json.loads((Path(__file__).parent / "old" / "config_hashes.json").read_text())


@pytest.mark.parametrize("case", OLD, ids=lambda case: json.dumps(case["given"])[:60])
def test_hash_is_what_it_was(case: dict[str, Any]) -> None:
    """By the code before settings were nested: every setting once, and those that need one another together."""
    assert build_settings(case["given"]).config_hash() == case["sha256"]


@pytest.mark.parametrize("given", [{"quota": ["a:max-num-seqs=4"]}, {"quota": ["a:max_num_seqs=4,kv-blocks=9"]}])
def test_a_new_name_makes_no_other_work(given: dict[str, Any]) -> None:
    old = {"quota": [text.replace("max-num-seqs", "rows").replace("max_num_seqs", "rows") for text in given["quota"]]}
    assert build_settings(given).config_hash() == build_settings(old).config_hash()
    simulated = {"engine": "simulated"}
    today = build_settings({**simulated, "step_time_model": "runs/a"})
    assert today.config_hash() == build_settings({**simulated, "law": "runs/a"}).config_hash()
