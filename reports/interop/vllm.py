"""Results of `vllm bench serve` and of SGLang's bench_serving, which share most of their names.

vLLM writes the columns of single requests with its option save-detailed, SGLang with output-details; otherwise
percentiles alone. Their TTFT, TPOT, ITL and E2EL are defined as here (SGLang: e2e_latency). Sources:
vllm/benchmarks/serve.py@009e6d4a, sglang/benchmark/serving.py@00f9ec47.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import msgspec

from reports.interop.documents import Document
from reports.interop.results import Result, ToolRequest, summary_of
from reports.schema import PacingInfo
from reports.summary_schema import Distribution, Summary
from workloads.errors import CbbenchError

COLUMNS = ("input_lens", "output_lens", "ttfts", "itls", "errors")
NO_STARTS = "no start times, so requests are taken in order of index, and overload is not detected"
NO_SCHEDULE = "no queue times, so a wait in its client is unknown"
ALONE = "percentiles alone; it writes single requests with its option "


def from_result(result: Document, at: int | None = None) -> Result:
    """at: its number in a file of several, from 0. CbbenchError for columns that do not fit."""
    sglang = "random_range_ratio" in result or "total_output_tokens_retokenized" in result
    detailed = all(name in result for name in COLUMNS)
    notes = []
    if detailed:
        notes += [NO_STARTS] if "start_times" not in result else [NO_SCHEDULE] if "queue_times" not in result else []
    else:
        notes.append(ALONE + ("output-details" if sglang else "save-detailed"))
    failures_known = _failed(result) is not None
    if not detailed and not failures_known:
        notes.append("the file does not say how many requests failed")
    return Result(
        tool="SGLang" if sglang else "vLLM",
        label="" if at is None else f"{at + 1}: {_load(result)}",
        model=result.get("model_id"),
        workload=str(result.get("cbbench_workload") or result.get("dataset_name") or "not said"),
        sha256=str(result.get("cbbench_workload_sha256") or ""),
        pacing=_pacing(result),
        requests=_requests(result) if detailed else None,
        summary=None if detailed else _summary(result),
        failures_known=failures_known,
        notes=tuple(notes),
    )


def _failed(result: Document) -> int | None:
    """Requests that failed; None where the file does not say it. Some versions say only how many were asked for."""
    if (failed := result.get("failed")) is not None:
        return int(failed)
    asked, completed = result.get("num_prompts"), result.get("completed")
    return None if asked is None or completed is None else max(int(asked) - int(completed), 0)


def _load(result: Document) -> str:
    rate, most = result.get("request_rate"), result.get("max_concurrency")
    if isinstance(rate, int | float) and math.isfinite(rate):
        return f"{rate:g} per s"
    return "all at once" if most is None else f"{most} at once"


def _pacing(result: Document) -> PacingInfo:
    """No rate without a schedule ("inf", "trace"), or without times of sending."""
    if (ours := result.get("cbbench_pacing")) is not None:
        return msgspec.convert(ours, PacingInfo)
    rate, burstiness = result.get("request_rate"), result.get("burstiness")
    scheduled = "start_times" in result or "ttfts" not in result
    if not (scheduled and isinstance(rate, int | float) and math.isfinite(rate)):
        return PacingInfo(concurrency=result.get("max_concurrency"))
    arrival = "poisson" if burstiness in (None, 1) else f"burstiness {burstiness}"
    return PacingInfo(rate_per_s=float(rate), concurrency=result.get("max_concurrency"), arrival=arrival)


def _requests(result: Document) -> list[ToolRequest]:
    count = len(result["ttfts"])
    columns = [result[name] for name in COLUMNS]
    optional = [result.get(name) or [None] * count for name in ("start_times", "queue_times", "latencies")]
    if any(len(one) != count for one in (*columns, *optional)):
        raise CbbenchError(None, "its columns of single requests differ in length")
    requests = [_asked(*values) for values in zip(*columns, *optional, strict=True)]
    if "start_times" not in result and requests:  # the window is that of the tool
        last = requests[-1]
        requests[-1] = ToolRequest(**vars(last) | {"end_ns": round(1e9 * result["duration"])})
    return requests


def _asked(
    prompt_tokens: int,
    output_tokens: int,
    ttft_s: float,
    gaps_s: list[float],
    error: str,
    start_s: float | None,
    queue_s: float | None,
    latency_s: float | None,
) -> ToolRequest:
    sent = round(1e9 * (start_s or 0.0))
    scheduled = sent - round(1e9 * (queue_s or 0.0))
    if error or not output_tokens:
        return ToolRequest(
            scheduled_ns=scheduled, sent_ns=sent, first_ns=None, last_ns=None, end_ns=sent, prompt_tokens=prompt_tokens,
            output_tokens=0, status="failed", error=error or "no output",
        )  # fmt: skip
    # The ends of gaps are rounded, so that rounding errors do not add up.
    ends_us = [round(1e6 * at) for at in accumulate(gaps_s)]
    gaps_us = [end - begin for begin, end in zip([0, *ends_us], ends_us, strict=False)]
    first = sent + round(1e9 * ttft_s)
    last = sent + round(1e9 * latency_s) if latency_s else first + 1000 * sum(gaps_us)
    return ToolRequest(
        scheduled_ns=scheduled, sent_ns=sent, first_ns=first, last_ns=last, end_ns=last, prompt_tokens=prompt_tokens,
        output_tokens=output_tokens, gaps_us=gaps_us,
    )  # fmt: skip


def _summary(result: Document) -> Summary:
    return summary_of(
        completed=int(result.get("completed") or 0),
        failed=_failed(result) or 0,
        window_s=float(result["duration"]),
        request_per_s=result.get("request_throughput"),
        output_token_per_s=result.get("output_throughput"),
        total_token_per_s=result.get("total_token_throughput", result.get("total_throughput")),
        ttft_ms=_distribution(result, "ttft"),
        tpot_ms=_distribution(result, "tpot"),
        itl_ms=_distribution(result, "itl"),
        e2el_ms=_distribution(result, "e2el" if "mean_e2el_ms" in result else "e2e_latency"),
    )


def _distribution(result: Document, name: str) -> Distribution:
    def of(stat: str) -> Any:
        return result.get(f"{stat}_{name}_ms")

    mean = of("mean")
    if not mean:  # 0 stands for no value
        return Distribution(count=0)
    return Distribution(
        count=int(result.get("completed") or 0), mean=mean, std=of("std"), p50=of("median"), p90=of("p90"),
        p95=of("p95"), p99=of("p99"), p999=of("p99.9"), max=of("max"),
    )  # fmt: skip
