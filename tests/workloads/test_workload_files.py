from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from workloads.errors import CbbenchError
from workloads.workload_files import read_workload_file


def file_of(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_our_own_columns(tmp_path: Path) -> None:
    text = "prompt_tokens,output_tokens,arrival_s,tenant,priority\n5,6,1.5,acme,\n7,8,2.25,,2\n9,10,2.25,acme,1\n"
    trace = read_workload_file(file_of(tmp_path, text))
    assert trace.lengths.prompt_tokens.tolist() == [5, 7, 9]
    assert trace.lengths.output_tokens.tolist() == [6, 8, 10]
    assert trace.lengths.tenants == ("acme", "default")
    assert trace.lengths.tenant.tolist() == [0, 1, 0]
    assert trace.lengths.priority.tolist() == [0, 2, 1]
    assert trace.arrivals_us is not None
    assert trace.arrivals_us.tolist() == [1_500_000, 2_250_000, 2_250_000]


def test_azure(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51,879,55\n"
    )
    trace = read_workload_file(file_of(tmp_path, text))
    assert trace.lengths.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.lengths.output_tokens.tolist() == [44, 109, 55]
    gaps = trace.gaps()
    assert gaps is not None
    assert gaps.gaps.tolist() == [4_314_579, 4_831, 4_319_410 // 2]
    assert gaps.rate_per_s == pytest.approx(2 / 4.31941)


def test_mooncake_has_milliseconds(tmp_path: Path) -> None:
    lines = (
        '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n\n'
        '{"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0]}\n'
    )
    trace = read_workload_file(file_of(tmp_path, lines, "t.jsonl"))
    assert trace.lengths.prompt_tokens.tolist() == [6758, 7322]
    assert trace.arrivals_us is not None
    assert trace.arrivals_us.tolist() == [0, 3_000_000]


def test_gzip_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfprompt_tokens,output_tokens\r\n3,4\r\n"))
    trace = read_workload_file(path)
    assert trace.lengths.prompt_tokens.tolist() == [3]
    assert trace.arrivals_us is None
    assert trace.gaps() is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column prompt_tokens"),
        (
            "a,b\n1,2\n",
            "and none named by `column` prompt=NAME; the first line must name the columns, and has a, b",
        ),
        ("prompt_tokens\n1\n", "no column output_tokens"),
        ("prompt_tokens,output_tokens\n", "no requests in it"),
        ("prompt_tokens,output_tokens\n5,6\n5,x\n", "line 3: output_tokens must be a whole number, got 'x'"),
        ("prompt_tokens,output_tokens\n5,6\n5\n", "line 3: output_tokens must be a whole number, got nothing"),
        ("prompt_tokens,output_tokens\n5,6.5\n", "line 2: output_tokens must be a whole number, got '6.5'"),
        ("prompt_tokens,output_tokens\n0,6\n", "line 2: prompt_tokens is 0, must be from 1 to"),
        ("prompt_tokens,output_tokens\n9999999999999,6\n", "line 2: prompt_tokens is 9999999999999"),
        ("prompt_tokens,output_tokens,priority\n5,6,-1\n", "line 2: priority is -1, must be from 0"),
        ("prompt_tokens,output_tokens,arrival_s\n5,6,2\n5,6,1\n", "line 3: arrival_s decreases"),
        ("prompt_tokens,output_tokens,arrival_s\n5,6,\n", "line 2: arrival_s must be a time, got nothing"),
        ("prompt_tokens,output_tokens,arrival_s\n5,6,inf\n", "line 2: arrival_s must be a time, got 'inf'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,5,6\n", "line 2: TIMESTAMP must be a time, got 'noon'"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        read_workload_file(file_of(tmp_path, text))
    assert says in str(caught.value)
    assert "t.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1: not JSON"),
        ("[1, 2]", "line 1: want an object"),
        (
            '{"prompt_tokens": 5, "output_tokens": 6}\n{"prompt_tokens": 5}',
            "line 2: output_tokens must be a whole number",
        ),
        ('{"prompt_tokens": 5.5, "output_tokens": 6}', "line 1: prompt_tokens must be a whole number, got 5.5"),
        ('{"prompt_tokens": true, "output_tokens": 6}', "line 1: prompt_tokens must be a whole number, got True"),
        ('{"prompt_tokens": NaN, "output_tokens": 6}', "line 1: prompt_tokens must be a whole number, got nan"),
        ('{"prompt_tokens": [], "output_tokens": 6}', "line 1: prompt_tokens must be a whole number, got []"),
        ('\n{"prompt_tokens": 5, "output_tokens": ' + "9" * 5000 + "}", "line 2: a number with thousands of digits"),
        (
            '{"id": 7, "words": []}',
            "line 1: no prompt, messages or prompt_tokens; it has id, words. Lengths may be called",
        ),
        ("{}", "line 1: no prompt, messages or prompt_tokens; it has nothing"),
        ("", "no requests in it"),
    ],
)
def test_bad_jsonl(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        read_workload_file(file_of(tmp_path, text, "t.jsonl"))
    assert says in str(caught.value)


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match="no such file"):
        read_workload_file(tmp_path / "missing.csv")
    with pytest.raises(CbbenchError, match=r"ends in \.csv, \.jsonl"):
        read_workload_file(file_of(tmp_path, "x", "t.parquet"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(CbbenchError, match=r"folder\.jsonl: not a regular file"):
        read_workload_file(tmp_path / "folder.jsonl")
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CbbenchError, match="not readable as text"):
        read_workload_file(binary)
    with pytest.raises(CbbenchError, match="not readable as text"):
        read_workload_file(file_of(tmp_path, "not gzip", "t.csv.gz"))


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_the_line_that_is_not_utf8(tmp_path: Path, name: str) -> None:
    row = b'{"prompt_tokens": 5, "output_tokens": 6}\n'
    said = row * 400 + b'{"prompt_tokens": 5, "output_tokens": 6, "tenant": "caf\xe9"}\n' + row * 400
    (tmp_path / name).write_bytes(gzip.compress(said) if name.endswith(".gz") else said)
    with pytest.raises(CbbenchError, match=r"line 401: not readable as text, which must be UTF-8"):
        read_workload_file(tmp_path / name)
