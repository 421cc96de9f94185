"""cbbench.toml: precedence, and one clear line for everything that can be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbbench.settings.build import build_settings
from cbbench.settings.sources import gather, read_config_files
from workloads.errors import CbbenchError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str) -> None:
    Path("cbbench.toml").write_text(text, encoding="utf-8")


def test_no_file_no_settings() -> None:
    assert read_config_files([], "run") == {}


def test_flags_win_over_the_file_and_the_file_over_the_workload() -> None:
    write('workload = "bus-stop"\nmax-num-seqs = 7\nseed = 3\nrate = 2\nsla = ["p99_ttft_ms<=500"]\n')
    config = build_settings(gather("run", {"seed": 5, "max_num_seqs": None, "sla": []}))
    assert (config.workload.seed, config.scheduler.max_num_seqs, config.load.rate) == (5, 7, 2.0)
    assert [one.expr for one in config.slo.sla] == ["p99_ttft_ms<=500"]


def test_of_what_may_be_there_more_than_once_one_needs_no_list() -> None:
    write('sla = "p99_ttft_ms<=500"\n[run]\nquota = "a:max-num-seqs=4"\n')
    config = build_settings(gather("run", {}))
    assert [one.expr for one in config.slo.sla] == ["p99_ttft_ms<=500"]
    assert [(one.tenant, one.limits.max_num_seqs) for one in config.scheduler.quota] == [("a", 4)]


def test_a_workload_suggests() -> None:
    assert build_settings(gather("run", {"workload": "bus-stop"})).scheduler.max_num_seqs == 3


def test_tables_belong_to_their_command() -> None:
    write("seed = 1\n[run]\nseed = 2\n[sweep]\nnum_requests = 10\n")
    assert read_config_files([], "run") == {"seed": 2}
    assert read_config_files([], "sweep") == {"seed": 1, "num_requests": 10}


def test_later_files_are_laid_over_earlier_ones() -> None:
    Path("first.toml").write_text("seed = 1\nrate = 2\n[run]\nmax-num-seqs = 7\n", encoding="utf-8")
    Path("second.toml").write_text("seed = 3\n", encoding="utf-8")
    config = build_settings(gather("run", {"config": [Path("first.toml"), Path("second.toml")]}))
    assert (config.workload.seed, config.load.rate, config.scheduler.max_num_seqs) == (3, 2.0, 7)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('max-num-seqs = "many"', ["max-num-seqs", "whole number", "'many'"]),
        ("max-num-seqs = 1.5", ["max-num-seqs", "whole number", "1.5"]),
        ("max-num-seqs = 0", ["max-num-seqs", ">= 1"]),
        ("chunked-prefill = 1", ["chunked-prefill", "true or false"]),
        ('mode = "batch"', ["mode", "continuous, static"]),
        ("sla = 5", ["sla", "list"]),
        ("sla = [5]", ["sla", "[5]"]),
        ("max-num-seq = 4", ["max-num-seq", "max-num-seqs"]),
        ("zzz = 4", ["zzz", "unknown setting"]),
        ("[run]\nseed = -1", ["run.seed", ">= 0"]),
        ("run = 3", ["run", "table"]),
        ("[other]\nseed = 1", ["other", "unknown setting"]),
        ("mode = static\n", ["not valid TOML", "line 1"]),
    ],
)
def test_one_line_names_file_and_key(text: str, names: list[str]) -> None:
    write(text)
    with pytest.raises(CbbenchError) as caught:
        read_config_files([], "run")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("cbbench.toml: ")
    for name in names:
        assert name in message


def test_not_text() -> None:
    Path("cbbench.toml").write_bytes(b"seed = \xff\xfe")
    with pytest.raises(CbbenchError, match="UTF-8"):
        read_config_files([], "run")


def test_named_file_must_exist() -> None:
    with pytest.raises(CbbenchError, match=r"config: no\.toml"):
        read_config_files([Path("no.toml")], "run")
