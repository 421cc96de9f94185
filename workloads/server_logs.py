"""Text logs of vLLM and SGLang, started with logging of requests: the requests in them.

vLLM's line says what was asked, so the output length is the max_tokens of its request; SGLang's says what was answered.
A line that is no request's is passed over; a log without one is refused.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from workloads.file_lines import Row, object_of

_VLLM = re.compile(
    r"Received request \S+: (?:prompt: (?P<prompt>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|None), )?params: "
)
_VLLM_IDS = re.compile(r"prompt_token_ids: \[([\d, ]*)\]")
_VLLM_MOST = re.compile(r"\bmax_tokens=(\d+)")
_VLLM_TIME = re.compile(r"\b(\d\d)-(\d\d) (\d\d:\d\d:\d\d)(?:[.,](\d+))?")
_SGLANG_COUNT = r"'{}': (\d+)"
_SGLANG_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?)")
_SGLANG_LATENCY = re.compile(r"'e2e_latency': ([\d.]+)")
NO_YEAR = "2000"  # vLLM's stamps have none; a leap year has every date
VLLM_NOTE = "the log has no answers, so the output lengths are the max_tokens of the requests"


def log_rows(path: Path, file: IO[str]) -> Iterator[Row]:
    """Rows of requests; a line that is a JSON object is that object. `_vllm` marks a row of vLLM's."""
    for number, line in enumerate(file, start=1):
        if line.startswith("{"):
            yield number, object_of(path, number, line)
        elif (found := _VLLM.search(line)) is not None:
            yield number, _vllm(line, found)
        elif "Finish: obj=" in line and "'meta_info'" in line:
            yield number, _sglang(line)


def _vllm(line: str, found: re.Match[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"_vllm": True}
    if (ids := _VLLM_IDS.search(line, found.end())) is not None:
        row["prompt_tokens"] = len(ids[1].split(",")) if ids[1].strip() else 0
    elif found["prompt"] not in (None, "None"):
        row["prompt"] = ast.literal_eval(found["prompt"])
    if (most := _VLLM_MOST.search(line, found.end())) is not None:
        row["max_tokens" if "prompt" in row else "output_tokens"] = int(most[1])
    if (time := _VLLM_TIME.search(line, 0, found.start())) is not None:
        month, day, clock, part = time.groups()
        row["timestamp"] = f"{NO_YEAR}-{month}-{day} {clock}.{part or 0}"
    return row


def _sglang(line: str) -> dict[str, Any]:
    meta = line[line.index("'meta_info'") :]
    counts = {
        name: int(found[1])
        for name in ("prompt_tokens", "completion_tokens")
        if (found := re.search(_SGLANG_COUNT.format(name), meta)) is not None
    }
    if (latency := _SGLANG_LATENCY.search(meta)) is not None:
        counts["e2e_latency"] = json.loads(latency[1])
    row: dict[str, Any] = {"event": "request.finished", "out": {"meta_info": counts}}
    if (time := _SGLANG_TIME.search(line)) is not None:
        row["timestamp"] = time[1]
    return row
