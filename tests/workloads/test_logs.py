"""Logs as they are found: a small file in each format, and the requests that it must give."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from workloads.errors import CbbenchError
from workloads.file_lines import KINDS
from workloads.log_names import parse_columns
from workloads.workload_files import Reading, WorkloadFile, read_workload_file

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "startTimeUnixNano": str(1_700_000_000_000_000_000 + second * 10**9),
                            "attributes": [
                                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(tokens)}},
                                {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "7"}},
                            ],
                        }
                        for second, tokens in ((2, 30), (0, 10))
                    ]
                    + [{"startTimeUnixNano": "1", "attributes": [{"key": "tool", "value": {"stringValue": "x"}}]}]
                }
            ]
        }
    ]
}
VLLM = (
    "INFO 08-11 10:20:30 [logger.py:39] Received request cmpl-1-0: prompt: 'it\\'s, params: ', params: "
    "SamplingParams(n=1, temperature=0.0, max_tokens=16, min_tokens=0), prompt_token_ids: [1, 2, 3], "
    "lora_request: None.\n"
    "INFO 08-11 10:20:31 [engine.py:1] Avg prompt throughput: 1 tokens/s\n"
    "INFO 08-11 10:20:32 [logger.py:39] Received request cmpl-2-0: prompt: 'b', params: "
    "SamplingParams(n=1, max_tokens=8), prompt_token_ids: [1], lora_request: None.\n"
)
SGLANG = (
    "[2026-02-13 09:29:32] Receive: obj=GenerateReqInput(text='a')\n"
    "[2026-02-13 09:29:34] Finish: obj=GenerateReqInput(text='a'), out={'text': 'b', 'meta_info': {'id': '1', "
    "'prompt_tokens': 5, 'completion_tokens': 16, 'e2e_latency': 1.5}}\n"
    "[2026-02-13 09:29:35] Finish: obj=GenerateReqInput(text='c'), out={'text': 'd', 'meta_info': {'id': '2', "
    "'prompt_tokens': 9, 'completion_tokens': 2, 'e2e_latency': 3.0}}\n"
)


def finished(prompt: int, output: int, at: str, e2e_latency: float) -> dict[str, Any]:
    meta = {"prompt_tokens": prompt, "completion_tokens": output, "e2e_latency": e2e_latency}
    return {"timestamp": at, "event": "request.finished", "rid": "r", "out": {"meta_info": meta}}


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(tmp_path: Path, name: str, text: str, **how: Any) -> WorkloadFile:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_workload_file(path, Reading(**how))


CASES: dict[str, tuple[str, str, list[tuple[int, int]], list[float] | None]] = {
    "OpenAI names": (
        "t.jsonl",
        lines({"created": 1_700_000_000, "prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}),
        [(5, 6)],
        [0],
    ),
    "OpenAI usage": (
        "t.jsonl",
        lines({"id": "x", "created": 1_700_000_000, "usage": {"prompt_tokens": 5, "completion_tokens": 6}}),
        [(5, 6)],
        [0],
    ),
    "OpenAI batch output": (
        "t.jsonl",
        lines({"custom_id": "a", "response": {"body": {"usage": {"prompt_tokens": 5, "completion_tokens": 6}}}}),
        [(5, 6)],
        None,
    ),
    "vLLM": ("vllm.log", VLLM, [(3, 16), (1, 8)], [0, 2]),
    "SGLang": ("sglang.log", SGLANG, [(9, 2), (5, 16)], [0, 0.5]),
    "SGLang JSON": (
        "t.jsonl",
        lines(
            {"timestamp": "2026-02-13T09:29:30Z", "event": "request.received", "rid": "r", "obj": {}},
            finished(5, 16, "2026-02-13T09:29:34Z", 1.5),
            finished(9, 2, "2026-02-13T09:29:35Z", 3.0),
        ),
        [(9, 2), (5, 16)],
        [0, 0.5],
    ),
    "Azure 2024": ("t.csv", AZURE + "2024-05-10 00:00:00.509930+00:00,3,4\n", [(2162, 5), (3, 4)], [0, 0.5]),
    "BurstGPT": (
        "t.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,0,0,0,API log\n118,GPT-4,417,276,693,API log\n",
        [(472, 18), (417, 276)],
        [0, 113],
    ),
    "Mooncake": (
        "t.jsonl",
        lines(
            {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]},
            {"timestamp": 3000, "input_length": 513, "output_length": 4, "hash_ids": [0, 2]},
        ),
        [(700, 5), (513, 4)],
        [0, 3],
    ),
    "Vidur": (
        "t.csv",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n1.75,11,3\n",
        [(10, 2), (11, 3)],
        [0, 1.25],
    ),
    "Etalon": ("t.csv", "num_prefill_tokens,num_decode_tokens,pd_ratio\n74,918,0.08\n", [(74, 918)], None),
    "APEX": (
        "t.jsonl",
        lines(
            {"StartTimeOffset": 0, "ContextTokens": 5, "GeneratedTokens": 6},
            {"StartTimeOffset": 250_000_000, "ContextTokens": 7, "GeneratedTokens": 8},
        ),
        [(5, 6), (7, 8)],
        [0, 0.25],
    ),
    "LLMServingSim": (
        "t.jsonl",
        lines({"input_toks": 5, "output_toks": 6, "arrival_time_ns": 10**9}),
        [(5, 6)],
        [0],
    ),
    "LLMServingSim sessions": (
        "t.jsonl",
        lines(
            {
                "session_id": "a",
                "arrival_time_ns": 0,
                "sub_requests": [
                    {"input_toks": 5, "output_toks": 1, "tool_duration_ns": 3 * 10**9},
                    {"input_toks": 8, "output_toks": 2, "tool_duration_ns": 0},
                ],
            },
            {"session_id": "b", "arrival_time_ns": 10**9, "sub_requests": [{"input_toks": 4, "output_toks": 3}]},
        ),
        [(5, 1), (4, 3), (8, 2)],
        [0, 1, 3],
    ),
    "ServeGen": (
        "t.jsonl",
        lines({"request_id": 0, "timestamp": 0.25, "data": {"input_tokens": 5, "output_tokens": 6}}),
        [(5, 6)],
        [0],
    ),
    "ShareGPT": (
        "t.json",
        json.dumps(
            [
                {"id": "1", "conversations": [{"from": "human", "value": "Why?"}]},
                {
                    "id": "2",
                    "conversations": [{"from": "human", "value": "Why so?"}, {"from": "gpt", "value": "x" * 41}],
                },
            ],
            indent=1,
        ),
        [(2, 11)],
        None,
    ),
    "Claude-Code": (
        "t.jsonl",
        lines(
            {
                "id": "s1",
                "block_size": 64,
                "hash_id_scope": "local",
                "requests": [
                    {"t": 0.0, "in": 128, "out": 169, "hash_ranges": [[1, 2]]},
                    {"t": 19.0, "in": 130, "out": 0, "hash_ids": [1, 2, 3]},
                    {"t": 20.0, "type": "subagent", "requests": [{"t": 1, "in": 64, "out": 2, "hash_ids": [1]}]},
                ],
            },
            {
                "id": "s2",
                "block_size": 64,
                "hash_id_scope": "local",
                "requests": [{"t": 0.0, "in": 64, "out": 3, "hash_ids": [1]}],
            },
        ),
        [(128, 169), (64, 2), (64, 3)],
        None,
    ),
    "aiperf text": ("t.jsonl", lines({"text_input": "Hello world", "output_length": 4}), [(3, 4)], None),
    "OTLP spans": ("t.json", json.dumps(OTLP), [(10, 7), (30, 7)], [0, 2]),
    "spans": (
        "t.jsonl",
        lines(
            {
                "name": "chat",
                "start_time": "2026-01-01T10:00:00Z",
                "attributes": {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 6},
            }
        ),
        [(5, 6)],
        [0],
    ),
}


@pytest.mark.parametrize("source", CASES)
def test_a_log_gives_its_requests(tmp_path: Path, source: str) -> None:
    name, text, lengths, arrivals_s = CASES[source]
    file = read(tmp_path, name, text)
    pairs = zip(file.lengths.prompt_tokens.tolist(), file.lengths.output_tokens.tolist(), strict=True)
    assert list(pairs) == lengths
    assert (file.arrivals_us is None) == (arrivals_s is None)
    if file.arrivals_us is not None and arrivals_s is not None:
        assert ((file.arrivals_us - file.arrivals_us[0]) / 1e6).tolist() == arrivals_s


def test_blocks_of_two_sessions_are_different_where_their_ids_are_their_own(tmp_path: Path) -> None:
    name, text, *_ = CASES["Claude-Code"]
    blocks = read(tmp_path, name, text).blocks
    assert blocks is not None
    assert blocks.block_tokens == 64
    assert [blocks.of_prompt(index).tolist() for index in range(3)] == [[0, 1], [0], [3]]


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    name, text, *_ = CASES["BurstGPT"]
    assert read(tmp_path, name, text).said == (
        "columns that are not used: Model, Total tokens, Log Type",
        "1 of 3 rows without tokens, which failed, are left out",
    )
    assert "max_tokens" in read(tmp_path, "vllm.log", VLLM).said[0]


def test_columns_of_any_name(tmp_path: Path) -> None:
    columns = parse_columns(["prompt=tokens in", "output=out", "arrival=when"])
    file = read(
        tmp_path, "t.csv", "when,tokens in,out\n2026-01-01T00:00:00,5,6\n2026-01-01T00:00:02,7,8\n", columns=columns
    )
    assert file.lengths.prompt_tokens.tolist() == [5, 7]
    assert file.arrivals_us is not None
    assert file.arrivals_us[1] - file.arrivals_us[0] == 2_000_000
    nested = lines({"req": {"n": 5}, "answer": {"tokens": 6}})
    file = read(tmp_path, "t.jsonl", nested, columns=parse_columns(["prompt=req.n", "output=answer.tokens"]))
    assert (file.lengths.prompt_tokens[0], file.lengths.output_tokens[0]) == (5, 6)
    text = lines({"question": "Why?", "answered": 9})
    file = read(tmp_path, "t.jsonl", text, columns=parse_columns(["prompt=question", "output=answered"]))
    assert file.prompts is not None
    assert file.prompts.contents == ("Why?",)
    assert file.lengths.output_tokens.tolist() == [9]


def test_a_column_that_is_not_there_and_words_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CbbenchError, match=r"prompt=tokens: .*t\.csv has no such column; it has a, b"):
        read(tmp_path, "t.csv", "a,b\n1,2\n", columns=(("prompt", "tokens"),))
    for text, says in (("prompts=a", "want PART=NAME"), ("prompt", "want PART=NAME"), ("output=", "want PART=NAME")):
        with pytest.raises(ValueError, match=says):
            parse_columns([text])
    with pytest.raises(ValueError, match="given twice"):
        parse_columns(["prompt=a", "prompt=b"])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.jsonl", lines({"client": 0, "trace": [], "dataset": {}}), "histograms of a client"),
        ("t.jsonl", lines({"id": 7, "conversations": []}), "no requests in it"),
        ("t.log", "Started.\n", "no requests in it"),
        ("t.json", "[1]", "entry 1: want an object"),
        ("t.json", '[{"prompt_tokens": 5, "output_tokens": "x"}]', "entry 1: output_tokens must be a whole number"),
        (
            "t.jsonl",
            lines({"session_id": 1, "sub_requests": [{"input_toks": 5, "output_toks": 6, "tool_duration_ns": "long"}]})
            + lines({"session_id": 1, "arrival_time_ns": "noon", "sub_requests": []}),
            "line 1: not a request as the first line has it (ValueError",
        ),
        ("t.jsonl", lines({"input_toks": 5, "output_toks": 6}, {"input_toks": 5}), "line 2: output_toks must be"),
        ("t.csv", "Request tokens,Response tokens\n0,0\n", "no requests in it that have both"),
    ],
)
def test_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(CbbenchError) as caught:
        read(tmp_path, name, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_packed_files(tmp_path: Path) -> None:
    for kind in KINDS:
        text = (
            "prompt_tokens,output_tokens\n3,4\n" if kind == ".csv" else lines({"prompt_tokens": 3, "output_tokens": 4})
        )
        path = tmp_path / f"t{kind}.gz"
        path.write_bytes(gzip.compress(text.encode()))
        assert read_workload_file(path).lengths.prompt_tokens.tolist() == [3]


def test_zstd_needs_a_library_and_says_which(tmp_path: Path) -> None:
    # A frame of one raw block, by RFC 8878.
    text = b"prompt_tokens,output_tokens\n3,4\n"
    block = (len(text) << 3 | 1).to_bytes(3, "little")
    (tmp_path / "t.csv.zst").write_bytes(bytes.fromhex("28b52ffd20") + bytes([len(text)]) + block + text)
    if any(find_spec(name) is not None for name in ("compression", "zstandard", "backports")):
        assert read_workload_file(tmp_path / "t.csv.zst").lengths.prompt_tokens.tolist() == [3]
    else:
        with pytest.raises(CbbenchError, match="zstd needs the library zstandard"):
            read_workload_file(tmp_path / "t.csv.zst")


def test_names_and_a_short_row_in_csv(tmp_path: Path) -> None:
    text = "prompt_tokens,output_tokens,tenant\n5,6,a\n\n7,8\n"
    file = read(tmp_path, "t.csv", text)
    assert file.lengths.tenants == ("a", "default")
    assert file.lengths.lines is not None
    assert file.lengths.lines.tolist() == [2, 4]
