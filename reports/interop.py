"""Result files of other tools, as far as a gate can use them: `vllm bench serve` and SGLang's bench_serving.

Both write the same columns, vLLM with --save-detailed and SGLang with --output-details. Without them a file holds only
percentiles, from which no violation can be counted, so it is refused with the flag that is missing.
"""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engines.base import RequestRow, RunRecord
from reports.files import FolderError
from reports.schema import Criteria, EngineInfo, PacingInfo, RunFile, WorkloadInfo
from reports.stored import Judgement, Stored
from reports.summary import completed_run

COLUMNS = ("input_lens", "output_lens", "ttfts", "itls", "errors", "duration")
NO_STARTS = "no start times: its requests are taken in order of index, and overload cannot be seen"


def read_result(path: Path, judgement: Judgement) -> Stored:
    """FolderError says what a file lacks."""
    result = _parse(path)
    if missing := [name for name in COLUMNS if name not in result]:
        raise FolderError(
            f"{path}: no {', '.join(missing)}: only single requests can be judged; write them by "
            "--save-detailed (vLLM) or --output-details (SGLang)"
        )
    record = _record(result)
    sla = judgement.sla or ()
    confidence = judgement.confidence or Criteria().confidence
    header = RunFile(
        engine=EngineInfo(kind="openai", model=result.get("model_id")),
        workload=WorkloadInfo(
            spec=str(result.get("dataset_name", path.stem)),
            seed=0,
            sha256="",
            num_requests=record.planned,
            pacing=PacingInfo(
                rate_per_s=_rate_per_s(result),
                concurrency=result.get("max_concurrency"),
            ),
        ),
        event_unit="us",
        criteria=Criteria(sla, confidence),
    )
    notes = [f"{path}: another tool's: no scheduled times, so a wait in its client is not seen; no engine steps"]
    if "start_times" not in result:
        notes.append(f"{path}: {NO_STARTS}")
    return Stored(str(path), completed_run(record, header), record, tuple(notes))


def _rate_per_s(result: dict[str, Any]) -> float | None:
    """None without a schedule ("inf", "trace"), and where nothing says when requests were sent."""
    rate = result.get("request_rate")
    known = "start_times" in result and isinstance(rate, int | float) and np.isfinite(rate)
    return float(rate) if known else None  # type: ignore[arg-type]


def _parse(path: Path) -> dict[str, Any]:
    """The last JSON document of the file: both tools append."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        found = json.loads(text if text.count("\n{") == 0 else text[text.rindex("\n{") :])
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FolderError(f"{path}: no result of vLLM or SGLang: {error}") from None
    if not isinstance(found, dict):
        raise FolderError(f"{path}: no result of vLLM or SGLang: not an object")
    return found


def _record(result: dict[str, Any]) -> RunRecord:
    count = len(result["ttfts"])
    starts_s = result.get("start_times") or [0.0] * count
    origin_s = min(starts_s, default=0.0)
    rows: list[RequestRow] = []
    values: list[int] = []
    for i in range(count):
        gaps_s = [0.0, *result["itls"][i]]
        failed = bool(result["errors"][i])
        events = [] if failed else [round(1e6 * one) for one in gaps_s]
        rows.append(_row(i, result, round(1e9 * (starts_s[i] - origin_s)), failed, events, len(values)))
        values += events
    if "start_times" not in result and rows:  # then the window is what the tool says it was
        rows[-1] = msgspec.structs.replace(rows[-1], end=round(1e9 * result["duration"]))
    return RunRecord(planned=count, rows=rows, event_values=np.array(values, np.uint32), event_unit="us")


def _row(i: int, result: dict[str, Any], sent_ns: int, failed: bool, gaps_us: list[int], events_at: int) -> RequestRow:
    first = None if failed else sent_ns + round(1e9 * result["ttfts"][i])
    last = None if first is None else first + 1000 * list(accumulate(gaps_us))[-1]
    return RequestRow(
        i=i, scheduled=sent_ns, submitted=sent_ns, sent=sent_ns, first_byte=first, first=first, last=last,
        end=sent_ns if last is None else last, prompt_tokens=result["input_lens"][i],
        output_tokens=result["output_lens"][i], status="failed" if failed else "completed",
        finish_reason="error" if failed else "length", error=result["errors"][i] or None, token_source="counted",
        tenant="default", priority=0, preemptions=0, events_at=events_at, events=len(gaps_us),
    )  # fmt: skip
