"""A run as the flat JSON that `vllm bench serve` saves, with the details of single requests.

Names and order are those of vllm/benchmarks/serve.py@009e6d4a. What was not measured is null, where vLLM writes 0;
a run does not keep generated texts, so that column is missing. Keys that begin with cbbench_ are as vLLM's option
metadata would add them: they identify the workload for a comparison.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from engines.base import RunRecord
from engines.request_table import MISSING
from reports.metrics import RequestTimes, request_times
from reports.schema import PacingInfo, RunFile
from reports.summary_schema import Distribution

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATS = {"mean": "mean", "median": "p50", "std": "std", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99",
         "p99.9": "p999"}  # fmt: skip


def as_vllm_json(run: RunFile, record: RunRecord) -> dict[str, Any]:
    """Of a run with a summary."""
    times = request_times(record)
    summary = run.summary
    assert summary is not None
    rates = summary.throughput
    return {
        **_setting(run),
        "duration": rates.window_s,
        "completed": summary.requests.completed,
        "failed": summary.requests.failed + summary.requests.cancelled,
        "total_input_tokens": int(times.prompt_tokens[times.completed].sum()),
        "total_output_tokens": int(times.output_tokens[times.completed].sum()),
        "request_throughput": rates.request_per_s,
        "request_goodput": summary.goodput.request_per_s,
        "output_throughput": rates.output_token_per_s,
        "total_token_throughput": rates.total_token_per_s,
        **_columns(record),
        **_peaks(record, times),
        "rtfx": 0.0,
        **{
            f"{stat}_{name}_ms": getattr(_of(summary.latency, name), ours)
            for name in LATENCIES
            for stat, ours in STATS.items()
        },
    }


def _of(latency: object, name: str) -> Distribution:
    one: Distribution = getattr(latency, f"{name}_ms")
    return one


def _setting(run: RunFile) -> dict[str, Any]:
    workload, pacing = run.workload, run.workload.pacing
    started = run.environment.get("started_at")
    return {
        "date": datetime.fromisoformat(started).strftime("%Y%m%d-%H%M%S") if started else None,
        "endpoint_type": run.engine.kind,
        "backend": run.engine.kind,
        "label": None,
        "model_id": run.engine.model,
        "tokenizer_id": None,
        "num_prompts": workload.num_requests,
        "cbbench_workload": workload.spec,
        "cbbench_workload_sha256": workload.sha256,
        "cbbench_seed": workload.seed,
        "cbbench_pacing": msgspec.to_builtins(pacing),
        "request_rate": "inf" if pacing.rate_per_s is None else pacing.rate_per_s,
        "burstiness": _burstiness(pacing),
        "max_concurrency": pacing.concurrency,
    }


def _burstiness(pacing: PacingInfo) -> float | str | None:
    """The shape of the gamma distribution of the gaps: 1 is Poisson, infinite is constant. None for a trace."""
    name, _, cv = (pacing.arrival or "poisson").partition(":")
    if name == "gamma" and cv:
        return 1 / float(cv) ** 2
    named: dict[str, float | str] = {"poisson": 1.0, "constant": "inf"}
    return named.get(name)


def _columns(record: RunRecord) -> dict[str, list[Any]]:
    """In order of the workload, as in vLLM; a request that did not complete has an error and no times."""
    rows = sorted(record.rows, key=lambda row: row.i)
    event_ns = record.event_times_ns()
    columns: dict[str, list[Any]] = {name: [] for name in (
        "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors"
    )}  # fmt: skip
    for row in rows:
        sent = row.sent if row.sent is not None else row.scheduled
        done = row.status == "completed" and row.first is not None and row.last is not None
        gaps_ns = np.diff(event_ns[row.events_at : row.events_at + row.events]) if done else np.empty(0)
        columns["input_lens"].append(row.prompt_tokens)
        columns["output_lens"].append(row.output_tokens if done else 0)
        columns["ttfts"].append(((row.first or 0) - sent) / 1e9 if done else 0.0)
        columns["itls"].append((gaps_ns / 1e9).tolist())
        columns["latencies"].append(((row.last or 0) - sent) / 1e9 if done else 0.0)
        columns["start_times"].append(sent / 1e9)
        columns["queue_times"].append((sent - row.scheduled) / 1e9)
        columns["errors"].append("" if done else row.error or row.finish_reason or row.status)
    return columns


def _peaks(record: RunRecord, times: RequestTimes) -> dict[str, float]:
    """The most token events in a second since the first sending, and the most concurrent requests, as in vLLM."""
    done = times.completed & (times.first_ns != MISSING)
    if not done.any():
        return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0}
    sent = record.column_ns("sent")[times.row][done]
    at = np.concatenate([sent, times.last_ns[done]])
    change = np.repeat([1, -1], sent.shape[0])
    order = np.lexsort((change, at))  # at equal times ends come before starts
    completed = [row for row in record.rows if row.status == "completed" and row.events]
    event_ns = record.event_times_ns()
    seconds = [(event_ns[row.events_at : row.events_at + row.events] - sent.min()) // 10**9 for row in completed]
    per_second = np.bincount(np.concatenate(seconds)) if seconds else np.zeros(1)
    return {
        "max_output_tokens_per_s": float(per_second.max()),
        "max_concurrent_requests": int(np.cumsum(change[order]).max()),
    }
