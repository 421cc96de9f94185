"""Results of aiperf: profile_export.jsonl (a line per request) and profile_export_aiperf.json (its summary).

Its inter_token_latency is per request, which other tools call TPOT; the gaps between events, ITL here, are its
inter_chunk_latency. A request is scheduled when its credit is issued. Warm-up requests are left out, as aiperf's own
summary does. Source: aiperf 0.13.0, schema 1.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from reports.interop.documents import Document
from reports.interop.results import NOTHING, Result, ToolRequest, summary_of
from reports.schema import PacingInfo
from reports.summary_schema import Distribution
from workloads.errors import CbbenchError

RENAMED = "its inter_token_latency is a mean per request, taken as TPOT; its inter_chunk_latency is ITL"
NO_PACING = "profile_export_aiperf.json, which has the pacing, is not in its folder"
ALONE = "percentiles alone; profile_export.jsonl, which has the single requests, is not in its folder"
# ns in the unit that each metric names
NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "sec": 1e9, "s": 1e9}
FIRST_TOKEN = ("time_to_first_token", "ttft")  # its name now, and before version 0.2


def from_records(records: Sequence[Document], summary: Document | None = None) -> Result:
    """CbbenchError without a measured request."""
    measured = [one for one in records if _phase(one) != "warmup"]
    requests = sorted(map(_asked, measured), key=lambda one: (one.sent_ns, one.end_ns))
    if not requests:
        raise CbbenchError(None, "aiperf's records: all are of the warm-up")
    notes = [RENAMED] + ([NO_PACING] if summary is None else [])
    return _result(summary or {}, notes, requests=requests)


def from_summary(summary: Document) -> Result:
    """CbbenchError for a summary without its duration."""
    duration_s = _value(summary, "benchmark_duration")
    if duration_s is None:
        raise CbbenchError(None, "aiperf's summary: no benchmark_duration")
    made = summary_of(
        completed=int(_value(summary, "request_count") or 0),
        failed=int(_value(summary, "error_request_count") or 0),
        window_s=duration_s,
        request_per_s=_value(summary, "request_throughput"),
        output_token_per_s=_value(summary, "output_token_throughput"),
        total_token_per_s=_value(summary, "total_token_throughput"),
        ttft_ms=_distribution(summary, "time_to_first_token", "ttft"),
        tpot_ms=_distribution(summary, "inter_token_latency"),
        itl_ms=_distribution(summary, "inter_chunk_latency"),
        e2el_ms=_distribution(summary, "request_latency"),
    )
    return _result(summary, [RENAMED, ALONE], summary=made)


def _result(file: Document, notes: Sequence[str], **measured: Any) -> Result:
    config = file.get("input_config") or {}
    models = (config.get("models") or {}).get("items") or [{}]
    named = (config.get("endpoint") or {}).get("model_names") or [None]  # from 0.8 on
    version = file.get("aiperf_version")
    return Result(
        tool=f"aiperf {version}" if version else "aiperf",
        model=models[0].get("name") or named[0],
        workload="not said",
        pacing=_pacing(config),
        interrupted=bool(file.get("was_cancelled")),
        notes=tuple(notes),
        **measured,
    )


def _pacing(config: Document) -> PacingInfo:
    """The pacing of the measured phase."""
    phases = [one for one in config.get("phases") or [] if one.get("name", "profiling") != "warmup"]
    phase = phases[-1] if phases else {}
    rate = phase.get("rate")
    arrival = phase.get("type") if rate is not None else None
    return PacingInfo(rate_per_s=rate, concurrency=phase.get("concurrency"), arrival=arrival)


def _phase(record: Document) -> str:
    metadata = record["metadata"]
    return str(metadata.get("benchmark_phase") or metadata.get("credit_phase") or "profiling")


def _asked(record: Document) -> ToolRequest:
    metadata, metrics = record["metadata"], record["metrics"]
    sent = metadata["request_start_ns"] if "request_start_ns" in metadata else metadata["timestamp_ns"]
    scheduled = min(sent, metadata.get("credit_issued_ns") or sent)
    error = record.get("error")
    took_ns = _ns(metrics, "request_latency")
    first_ns = next((ns for name in FIRST_TOKEN if (ns := _ns(metrics, name)) is not None), None)
    prompt_tokens = int(_number(metrics, "input_sequence_length") or 0)
    if error or took_ns is None or first_ns is None:
        cancelled = bool(metadata.get("was_cancelled"))
        return ToolRequest(
            scheduled_ns=scheduled, sent_ns=sent, first_ns=None, last_ns=None,
            end_ns=metadata.get("request_end_ns") or sent, prompt_tokens=prompt_tokens, output_tokens=0,
            status="cancelled" if cancelled else "failed",
            error=str((error or {}).get("message") or "no token")[:200],
        )  # fmt: skip
    answer_ns = _ns(metrics, "time_to_first_output_token")
    return ToolRequest(
        scheduled_ns=scheduled,
        sent_ns=sent,
        first_ns=sent + first_ns,
        last_ns=sent + took_ns,
        end_ns=sent + took_ns,
        prompt_tokens=prompt_tokens,
        output_tokens=int(_number(metrics, "output_sequence_length") or 0),
        gaps_us=_gaps_us(metrics),
        first_answer_ns=None if answer_ns is None or answer_ns == first_ns else sent + answer_ns,
    )


def _gaps_us(metrics: Document) -> list[int]:
    one = metrics.get("inter_chunk_latency")
    if not one:
        return []
    scale = NS[one["unit"]] / 1e3
    ends = [round(scale * at) for at in accumulate(one["value"])]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _number(metrics: Document, name: str) -> float | None:
    one = metrics.get(name)
    return None if one is None else one["value"]


def _ns(metrics: Document, name: str) -> int | None:
    one = metrics.get(name)
    return None if one is None else round(NS[one["unit"]] * one["value"])


def _value(summary: Document, name: str) -> float | None:
    """The value of a metric with one value."""
    one = summary.get(name)
    return None if one is None else one["avg"]


def _distribution(summary: Document, *names: str) -> Distribution:
    """In ms."""
    one = next((summary[name] for name in names if summary.get(name)), None)
    if one is None:
        return NOTHING
    scale = NS[one["unit"]] / 1e6
    read = {name: scale * one[name] for name in ("std", "p50", "p90", "p95", "p99", "max") if one.get(name) is not None}
    count = int(one.get("count") or _value(summary, "request_count") or 0)
    return Distribution(count=count, mean=scale * one["avg"], **read)
